/* fuzz_import.c - the bytes are a file of conversations: what is read is written again, and then stays as it is. Or
 * they are a database, whose conversations are written, and what is read of that stays as it is, too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "src/export.h"
#include "src/import.h"
#include "tests/hostile.h"

static char file[64]; /* one with a name: SQLite resolves links */

static void remove_file(void)
{
    unlink(file);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    snprintf(file, sizeof file, "/dev/shm/pippin-fuzz-%d.db", (int)getpid()); /* no disk waits for us there */
    atexit(remove_file);
    return 0;
}

static struct pp_buf text_of(const struct pp_import *im, enum pp_export_form form)
{
    struct pp_export x = {.form = form, .several = true};
    struct pp_error err;
    for (size_t i = 0; i < im->n; i++)
        pp_export_add(&x, &im->list[i]);
    if (pp_export_end(&x, &err))
        abort();
    return x.out;
}

/* Nothing that a terminal obeys. */
static void check_harmless(const struct pp_buf *b)
{
    for (size_t i = 0; i < b->len; i++) {
        const unsigned char c = (unsigned char)b->data[i];
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F)
            abort();
    }
}

static void check_again(const struct pp_import *im, enum pp_export_form form)
{
    struct pp_import again;
    struct pp_error err;
    struct pp_buf once = text_of(im, form);
    check_harmless(&once);
    if (pp_import_read(once.data, once.len, &again, &err) || again.n != im->n)
        abort();
    struct pp_buf twice = text_of(&again, form);
    if (once.len != twice.len || memcmp(once.data, twice.data, once.len) != 0)
        abort();
    pp_buf_free(&once);
    pp_buf_free(&twice);
    pp_import_free(&again);
}

static enum pp_code take(void *user, struct pp_conversation *c, size_t i, size_t n, struct pp_error *err)
{
    struct pp_export x = {.form = PP_EXPORT_JSON};
    struct pp_import im;
    (void)user;
    (void)i;
    (void)n;
    pp_export_add(&x, c);
    if (pp_export_end(&x, err))
        abort();
    check_harmless(&x.out);
    if (!c->n) {
        pp_buf_free(&x.out);
        return PP_OK;
    }
    if (pp_import_read(x.out.data, x.out.len, &im, err) || im.n != 1)
        abort();
    check_again(&im, PP_EXPORT_JSON);
    pp_import_free(&im);
    pp_buf_free(&x.out);
    return PP_OK;
}

static int database(const uint8_t *data, size_t size)
{
    struct pp_store *st;
    struct pp_error err;
    if (pp_write_file(file, data, size, 0600, &err))
        abort();
    if (pp_store_open_copy(file, NULL, &st, &err))
        return 0;
    pp_conversation_each(st, take, NULL, &(size_t){0}, &err);
    pp_store_close(st);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pp_import im;
    struct pp_error err;
    if (pp_store_is_database(hostile_file(0, data, size)))
        return database(data, size);
    if (pp_import_read((const char *)data, size, &im, &err))
        return 0;
    check_again(&im, PP_EXPORT_JSON);
    check_again(&im, PP_EXPORT_JSONL);
    struct pp_buf text = text_of(&im, PP_EXPORT_MARKDOWN);
    check_harmless(&text);
    pp_buf_free(&text);
    pp_import_free(&im);
    return 0;
}
