/* ui_fake_main.c - the screen with the double of the controller in fake_controller.c: the program that
 * tests/screens/run.sh drives. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/paths.h"
#include "ui/ui.h"

int main(int argc, char **argv)
{
    struct pp_options o = {.command = "chat", .bell = -1};
    struct pp_paths paths;
    struct pp_error err;
    const char *no_color = getenv("NO_COLOR");
    o.no_color = no_color && *no_color;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--plain") == 0)
            o.plain = true;
        else if (strcmp(argv[i], "--mouse") == 0)
            o.mouse = true;
        else if (strcmp(argv[i], "--theme") == 0 && i + 1 < argc)
            o.theme = argv[++i];
        else if (strcmp(argv[i], "--reasoning") == 0 && i + 1 < argc)
            o.reasoning = argv[++i];
        else if (strcmp(argv[i], "--bell") == 0 && i + 1 < argc)
            o.bell = atoi(argv[++i]);
    }
    if (pp_paths_init(&paths, &err) != PP_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    return pp_ui_run(&o, &paths);
}
