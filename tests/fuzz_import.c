/* fuzz_import.c - the bytes are a file of conversations: what is read is written again, and then stays the same. Or
 * they are a database, whose conversations are written, and then stay the same, too; all other queries on a database
 * are made as well. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/adapter_mix.h"
#include "src/export.h"
#include "src/import.h"
#include "tests/hostile.h"

static char file[64]; /* a real file name: SQLite resolves links */

static void remove_file(void)
{
    unlink(file);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    snprintf(file, sizeof file, "/dev/shm/pippin-fuzz-%d.db", (int)getpid()); /* in memory, so that there is no waiting
                                                                                 for a disk */
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

/* Asserts that the text contains no control characters for terminals. */
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

/* Queries that the lists of the screen and of commands make. */
static void ask_all(struct pp_store *st)
{
    static const struct pp_search search = {.text = "\"a b\" he", .best_first = true, .before = INT64_MAX, .limit = 5};
    struct pp_session *sessions, one;
    struct pp_message *messages;
    struct pp_adapter_note *notes;
    struct pp_preset *presets;
    struct pp_model_entry *models;
    struct pp_adapter_mix mix;
    struct pp_error err;
    int64_t left = 1, leaf;
    size_t n, n_messages;
    char *path;
    for (int i = 0; i < 3 && left > 0; i++)
        if (pp_store_index_more(st, 2, &left, &err))
            break;
    if (!pp_store_session_latest(st, &one, &err))
        pp_session_clear(&one);
    for (int newer = 0; newer < 2; newer++) {
        if (pp_store_session_page(st, NULL, newer, 5, &sessions, &n, &err))
            continue;
        for (size_t i = 0; i < n; i++) {
            pp_adapter_mix_read(sessions[i].adapters, &mix);
            if (!pp_store_branch(st, sessions[i].head, &messages, &n_messages, &err))
                pp_message_list_free(messages, n_messages);
            (void)pp_store_descend(st, sessions[i].id, 0, 0, &leaf, &err);
        }
        pp_session_list_free(sessions, n);
    }
    if (!pp_store_search(st, &search, &sessions, &n, NULL, &err))
        pp_session_list_free(sessions, n);
    if (!pp_store_adapter_list(st, &notes, &n, &err))
        pp_adapter_note_list_free(notes, n);
    if (!pp_store_preset_list(st, &presets, &n, &err)) {
        for (size_t i = 0; i < n; i++)
            pp_adapter_mix_read(presets[i].adapters, &mix);
        pp_preset_list_free(presets, n);
    }
    if (!pp_store_model_list(st, &models, &n, &err))
        pp_model_entry_list_free(models, n);
    if (!pp_store_model_find(st, "a", &path, &err))
        pp_free(path);
}

static int database(const uint8_t *data, size_t size)
{
    struct pp_store *st;
    struct pp_error err;
    if (pp_write_file(file, data, size, 0600, &err))
        abort();
    if (pp_store_open_copy(file, NULL, &st, &err))
        return 0;
    pp_conversation_each(st, take, NULL, &(bool){false}, &err);
    ask_all(st);
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
