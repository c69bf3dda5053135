/* decoder_checks.c - see decoder_checks.h. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/arch/arch.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "tests/adapter_folder.h"
#include "tests/decoder_checks.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* The formulas' logits of the tests' text: [SMALL_TEXT, n_vocab]. */
static double *wanted(const struct decoder *d)
{
    double *want = doubles(SMALL_TEXT * d->s.n_vocab);
    int32_t ids[SMALL_TEXT];
    small_text(ids, d->s.n_vocab);
    decoder_compute(d, ids, SMALL_TEXT, want);
    return want;
}

const char *check_decoder(const struct decoder_shape *s)
{
    struct decoder *d = decoder_make(s);
    const char *file = decoder_write(d);
    double *want = wanted(d);
    assert_same_bits(file, PP_KV_F32);
    assert_same_bits(file, PP_KV_Q8);
    const char *folder = assert_logits_everywhere(want, s->n_vocab, file);
    pp_free(want);
    decoder_free(d);
    return folder;
}

void merge_lora(struct decoder *d, const char *gguf, struct folder *f, const char *module, int n_out, int rank,
                double scale)
{
    struct matrix *w = decoder_find(d, gguf);
    char name[120];
    snprintf(name, sizeof name, "model.layers.0.%s", module);
    assert_int_equal(w->rows, n_out);
    folder_add_merged(f, name, rank, scale, w->values, n_out, w->cols);
}

void expect_adapted(const struct decoder *merged, const char *model, const char *path, double room)
{
    double *want = wanted(merged);
    assert_adapted(model, path, want, merged->s.n_vocab, room);
    pp_free(want);
}

void assert_refused(const struct decoder_shape *s, const struct spoilt *cases, size_t n)
{
    struct pp_model *m;
    struct pp_error err;
    for (size_t i = 0; i < n; i++) {
        struct decoder *d = decoder_make(s);
        decoder_spoil(d, cases[i].name, cases[i].rows, cases[i].cols);
        if (pp_model_open(decoder_write(d), &m, &err) == PP_OK || !strstr(err.text, cases[i].word))
            fail_msg("%s: \"%s\"", cases[i].name, err.text);
        decoder_free(d);
    }
}

/* Whether config.json has this word somewhere after the key. */
void assert_config(const char *folder, const char *key, const char *word)
{
    char path[400], *text;
    struct pp_error err;
    size_t n;
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
    const char *at = strstr(text, key);
    if (!at || !strstr(at, word))
        fail_msg("%s: no %s behind %s", folder, word, key);
    pp_free(text);
}

void check_other(const struct decoder_shape *s, const char *path)
{
    struct decoder *d = decoder_make(s);
    double *want = wanted(d);
    assert_logits_everywhere(want, s->n_vocab, path);
    pp_free(want);
    decoder_free(d);
}

static void assert_alike(const struct decoder *d, const double *want, const char *path, const char *quant)
{
    const double cosine = small_likeness(path, quant, want, d->s.n_vocab);
    if (!(cosine > 0.98))
        fail_msg("%s in %s: a cosine of %g", d->s.arch, quant ? quant : "MLX's bits", cosine);
}

/* mlx: receives the path of MLX's folder; or NULL. */
static void check_made_smaller(const struct decoder_shape *s, const char *mlx)
{
    struct decoder *d = decoder_make(s);
    const char *file = decoder_write(d), *folder = fresh_path("folder");
    double *want = wanted(d);
    struct pp_error err;
    assert_ok(pp_convert_to_folder(file, folder, &(struct pp_convert_options){0}, &err), err);
    assert_alike(d, want, folder, "q8_0");
    if (mlx) {
        assert_ok(pp_convert_to_folder(file, mlx, &(struct pp_convert_options){.bits = 8}, &err), err);
        assert_alike(d, want, mlx, NULL);
    }
    pp_free(want);
    decoder_free(d);
}

void check_quantised_folder(const struct decoder_shape *s)
{
    check_made_smaller(s, NULL);
}

const char *check_quantised(const struct decoder_shape *s)
{
    const char *mlx = fresh_path("mlx");
    check_made_smaller(s, mlx);
    return mlx;
}
