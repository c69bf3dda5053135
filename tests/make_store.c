/* make_store.c - make-store FOLDER [CONVERSATIONS [MESSAGES]]: a data folder full of conversations, to measure with
 * (10,000 and 1,000,000 unless told otherwise): `XDG_DATA_HOME=FOLDER pippin bench sessions`. */
#include <stdlib.h>

#include "src/store.h"
#include "tests/fill_store.h"

int main(int argc, char **argv)
{
    struct pp_error err;
    struct pp_store *st;
    char path[1024];
    if (argc < 2) {
        fprintf(stderr, "use: make-store FOLDER [CONVERSATIONS [MESSAGES]]\n");
        return 2;
    }
    struct fill_options o = {
        .sessions = argc > 2 ? atoll(argv[2]) : 10000,
        .messages = argc > 3 ? atoll(argv[3]) : 1000000,
        .words = 24,
        .seed = 1,
        .progress = stderr,
    };
    snprintf(path, sizeof path, "%s/pippin/pippin.db", argv[1]);
    if (pp_store_open(path, &st, &err) != PP_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    pp_store_close(st);
    return fill_store(path, &o) == 0 ? 0 : 1;
}
