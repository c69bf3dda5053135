#include "ui/terminal.h"

#include <curses.h>
#include <langinfo.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <term.h>
#include <unistd.h>

struct pp_terminal_facts pp_terminal_query(void)
{
    const char *name = getenv("TERM");
    struct winsize size = {0};
    int error = 0;
    struct pp_terminal_facts t = {.name = name ? name : "", .charset = nl_langinfo(CODESET)};
    t.is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    t.known = setupterm(NULL, STDOUT_FILENO, &error) == OK;
    if (t.known) {
        const int colors = tigetnum("colors");
        const char *move = tigetstr("cup");
        t.colors = colors > 0 ? colors : 0;
        t.moves_cursor = move && move != (const char *)-1;
    }
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
        t.rows = size.ws_row;
        t.cols = size.ws_col;
    }
    return t;
}
