/* kill_child.c - the program without its screen, used at random until tests/test_kill.c kills it.
 *
 *   kill-child FOLDER SEED
 *
 * It prints what must not be lost from now on: "S text" for a message that the model is about to see. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/random_user.h"

static void saved(const char *text)
{
    char line[160];
    int n = snprintf(line, sizeof line, "S %s\n", text);
    (void)!write(STDOUT_FILENO, line, (size_t)n); /* at once and as a whole: it may be the last thing that this process
                                                     does */
}

int main(int argc, char **argv)
{
    static struct random_user user = {.saved = saved};
    if (argc != 3)
        return 2;
    random_user_begin(&user, argv[1], strtoul(argv[2], NULL, 10));
    for (;;)
        random_user_act(&user);
}
