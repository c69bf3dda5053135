/* fuzz_tokenizer.c - any bytes as a tokenizer.json or tekken.json (if they begin with a brace), as PLaMo's
 * tokenizer.jsonl (with a bracket), as tiktoken's ranks or RWKV's vocabulary (if they begin like these), or as a
 * SentencePiece model. A tokenizer that loads tokenises a text and decodes it again, and so do the GGUF file and the
 * folder made of it. RWKV's format is written again, too, and then stays the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/tokenizer_internal.h"
#include "tests/hostile.h"

/* A NUL follows the data, as when the file is read. */
static enum pp_code from_lines(const void *data, size_t n, struct pp_tokenizer **out, struct pp_error *err)
{
    char *text = pp_calloc(n + 1, 1);
    if (!text)
        abort();
    memcpy(text, data, n);
    const enum pp_code code = n && text[0] == '[' ? tok_from_plamo(text, n, NULL, out, err)
                                                  : tok_from_rwkv(text, n, out, err);
    pp_free(text);
    return code;
}

static void check_rwkv(const struct pp_tokenizer *t)
{
    struct pp_buf once = {0}, twice = {0};
    struct pp_tokenizer *again;
    struct pp_error err;
    tok_rwkv_write(t, &once);
    if (from_lines(once.data, once.len, &again, &err))
        abort();
    tok_rwkv_write(again, &twice);
    if (once.len != twice.len || memcmp(once.data, twice.data, once.len) != 0)
        abort();
    pp_tokenizer_free(again);
    pp_buf_free(&once);
    pp_buf_free(&twice);
}

static void check_same_ids(const struct pp_tokenizer *a, const struct pp_tokenizer *b)
{
    static const char text[] = "Hello  world, it's 1234 \xe4\xb8\xad\xe6\x96\x87 \n\n\t</s><s>[INST] x\xff\x80 "
                               "\xe2\x96\x81 ab<|eot_id|> <unk>aaaa";
    for (unsigned flags = 0; flags < 8; flags++) {
        int32_t *ids[2];
        size_t n[2];
        const enum pp_code code = pp_tokenize(a, text, sizeof text - 1, flags, &ids[0], &n[0], NULL);
        if (pp_tokenize(b, text, sizeof text - 1, flags, &ids[1], &n[1], NULL) != code)
            abort();
        if (code)
            continue;
        if (n[0] != n[1] || memcmp(ids[0], ids[1], n[0] * sizeof *ids[0]) != 0) {
            for (int i = 0; i < 2; i++)
                for (size_t k = 0; k < n[i]; k++)
                    fprintf(stderr, "%d%c", ids[i][k], k + 1 < n[i] ? ' ' : '\n');
            abort();
        }
        pp_free(ids[0]);
        pp_free(ids[1]);
    }
}

/* Whether an ordinary token of a is a special one in b: readers of a folder take what its settings name for special. */
static bool makes_special(const struct pp_tokenizer *a, const struct pp_tokenizer *b)
{
    for (uint32_t i = 0; i < a->n_vocab; i++)
        if (a->type[i] == TOK_NORMAL && b->type[i] == TOK_CONTROL)
            return true;
    return false;
}

static void check_reads_again(const struct pp_tokenizer *t, const char *path)
{
    struct pp_tokenizer *again;
    struct pp_error err = {0};
    if (pp_tokenizer_open(path, &again, &err) || !pp_tokenizer_equal(t, again, &err)) {
        fprintf(stderr, "%s: %s\n", path, err.text);
        abort();
    }
    if (!makes_special(t, again))
        check_same_ids(t, again);
    pp_tokenizer_free(again);
}

/* For a few kinds readers of GGUF files search these among the tokens if no key names them. */
static bool names_all(const struct pp_tokenizer *t)
{
    return t->kind == TOK_BYTE_LEVEL || (t->bos >= 0 && t->eos >= 0 && t->unk >= 0);
}

static void check_written(const struct pp_tokenizer *t)
{
    const struct hostile_room *room = hostile_room();
    struct pp_gguf_writer *w;
    struct pp_error err;
    if (pp_gguf_writer_new(room->file, &w, &err))
        abort();
    pp_gguf_add_text(w, "general.architecture", "llama");
    enum pp_code code = pp_tokenizer_to_gguf(t, 0, w, &err);
    if (!code)
        code = pp_gguf_writer_begin(w, &err);
    if (!code)
        code = pp_gguf_writer_finish(w, &err);
    pp_gguf_writer_free(w);
    if (!code && names_all(t))
        check_reads_again(t, room->file);
    if (mkdir(room->folder, 0700))
        abort();
    if (!pp_tokenizer_to_folder(t, room->folder, &err))
        check_reads_again(t, room->folder);
    hostile_room_empty();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pp_tokenizer *t;
    struct pp_error err;
    enum pp_code code;
    if (size > 0 && data[0] == '{')
        code = tok_from_json((const char *)data, size, NULL, &t, &err);
    else if (tok_is_tiktoken((const char *)data, size))
        code = tok_from_tiktoken((const char *)data, size, "qwen.tiktoken", NULL, &t, &err);
    else if (tok_is_rwkv((const char *)data, size) || (size > 0 && data[0] == '['))
        code = from_lines(data, size, &t, &err);
    else
        code = tok_from_sentencepiece(data, size, NULL, &t, &err);
    if (code == PP_OK) {
        hostile_tokenize(t);
        check_written(t);
        if (t->kind == TOK_RWKV)
            check_rwkv(t);
        pp_tokenizer_free(t);
    }
    return 0;
}
