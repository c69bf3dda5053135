/* fuzz_checkpoint.c - the checkpoint of a training, edited: if it is accepted, it has a step of this training, and the
 * next step is computed or refused.
 *
 * The first byte says what is repaired at the end: 1 the checksum of the values. Then edits: two bytes for the place,
 * one for the new value. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/gguf.h"
#include "engine/train_int.h"
#include "engine/types.h"
#include "tests/hostile.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { N_STEPS = 4, N_ARRAYS = 3, CHECKSUM = 32 };

static struct pp_model *model;
static struct pp_train_data *examples;
static char *whole, *edited;           /* [n_bytes] */
static size_t n_bytes, checksum_at, arrays_at[N_ARRAYS], array_bytes;

static void require(enum pp_code code, const struct pp_error *err)
{
    if (!code)
        return;
    fprintf(stderr, "%s\n", err->text);
    abort();
}

static struct pp_trainer *trainer(void)
{
    struct pp_train_options opt = pp_train_options_default();
    struct pp_trainer *t;
    struct pp_error err;
    opt.rank = 1;
    opt.targets = 1 << PP_TRAIN_Q;
    opt.batch = 1;
    opt.steps = N_STEPS;
    opt.n_threads = 1;
    require(pp_trainer_new(model, examples, NULL, &opt, &t, &err), &err);
    return t;
}

/* Finds where the writer put them. */
static void find_places(const char *path)
{
    static const char *const names[N_ARRAYS] = {"params", "adamw.m", "adamw.v"};
    struct pp_gguf *g;
    struct pp_str sum;
    struct pp_error err;
    require(pp_gguf_open(path, &g, &err), &err);
    if (!pp_gguf_string(g, "pippin.training.checksum", &sum) || sum.len != CHECKSUM)
        abort();
    checksum_at = (size_t)((char *)memmem(whole, n_bytes, sum.data, sum.len) - whole);
    for (int i = 0; i < N_ARRAYS; i++) {
        const struct pp_tensor *t = pp_gguf_tensor(g, names[i]), *last = pp_gguf_tensor(g, names[N_ARRAYS - 1]);
        const size_t behind = (size_t)((const char *)last->data - (const char *)t->data);
        array_bytes = t->size;
        arrays_at[i] = n_bytes - array_bytes - behind; /* the last array ends the file */
    }
    pp_gguf_close(g);
}

static void free_all(void)
{
    pp_free(whole);
    pp_free(edited);
    pp_train_data_free(examples);
    pp_model_close(model);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const struct tiny_shape shape = {.n_vocab = TINY_VOCAB, .n_embd = 32, .n_layer = 1, .n_head = 1,
                                            .n_head_kv = 1, .head_dim = 32, .n_ff = 32, .n_ctx = 64,
                                            .type = PP_TYPE_F32, .seed = 1};
    static const int32_t tokens[] = {1, 5, 2, 7};
    static const uint8_t learnt[] = {0, 1, 1, 1};
    struct pp_error err;
    char path[300];
    (void)argc;
    (void)argv;
    require(pp_model_open(tiny_model(&shape), &model, &err), &err);
    examples = pp_calloc(1, sizeof *examples);
    require(pp_train_data_add(examples, tokens, learnt, 4, 64, &err), &err);
    struct pp_trainer *t = trainer();
    require(pp_trainer_step(t, NULL, NULL, &err), &err);
    snprintf(path, sizeof path, "%s", test_path("checkpoint.gguf"));
    require(pp_trainer_save(t, path, &err), &err);
    pp_trainer_free(t);
    require(pp_read_file(path, 1 << 20, &whole, &n_bytes, &err), &err);
    if (!(edited = pp_malloc(n_bytes)))
        abort();
    find_places(path);
    atexit(free_all);
    return 0;
}

static void correct_checksum(void)
{
    struct pp_hash128 each[N_ARRAYS];
    char text[CHECKSUM + 1];
    for (int i = 0; i < N_ARRAYS; i++)
        each[i] = pp_hash128(edited + arrays_at[i], array_bytes);
    const struct pp_hash128 h = pp_hash128(each, sizeof each);
    snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)h.hi, (unsigned long long)h.lo);
    memcpy(edited + checksum_at, text, CHECKSUM);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hostile_input in = {data, size};
    struct pp_error err;
    const bool correct = hostile_byte(&in) & 1;
    memcpy(edited, whole, n_bytes);
    while (in.size) {
        const size_t low = hostile_byte(&in), at = (low | (size_t)hostile_byte(&in) << 8) % n_bytes;
        edited[at] = (char)hostile_byte(&in);
    }
    if (correct)
        correct_checksum();
    struct pp_trainer *t = trainer();
    const enum pp_code code = pp_trainer_load(t, hostile_file(0, edited, n_bytes), &err);
    const int64_t step = pp_trainer_step_number(t);
    if (code && size <= 1)
        require(code, &err); /* unedited */
    if (!code && (step < 0 || step > N_STEPS))
        abort();
    if (!code && step < N_STEPS)
        pp_trainer_step(t, NULL, NULL, &err);
    pp_trainer_free(t);
    return 0;
}
