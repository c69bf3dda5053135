#include "tests/small_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/cpu/isa.h"
#include "engine/engine.h"
#include "engine/hf.h"
#include "engine/safetensors.h"
#include "tests/passes.h"
#include "tests/support.h"

struct manner {
    enum pp_isa isa;
    int n_threads, rows;
};

void small_text(int32_t *ids, int n_vocab)
{
    for (int i = 0; i < SMALL_TEXT; i++)
        ids[i] = (i * 37 + i / 7) % n_vocab;
}

/* The same text, beginning with the model's meta tokens. */
static void text_of(const struct pp_model *m, int32_t *ids)
{
    const struct pp_model_info *info = pp_model_info(m);
    small_text(ids, (int)info->n_vocab);
    for (int i = 0; i < (int)info->n_meta_tokens; i++)
        ids[i] = (int32_t)info->n_vocab + i;
}

double small_dot(const float *w, const double *x, int64_t n)
{
    double sum[4] = {0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int s = 0; s < 4; s++)
            sum[s] += (double)w[i + s] * x[i + s];
    for (; i < n; i++)
        sum[0] += (double)w[i] * x[i];
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

void small_product(const float *w, const double *x, int n_out, int n_in, double *y)
{
    for (int i = 0; i < n_out; i++)
        y[i] = small_dot(w + (int64_t)i * n_in, x, n_in);
}

double double_dot(const double *a, const double *b, int64_t n)
{
    double sum[4] = {0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int s = 0; s < 4; s++)
            sum[s] += a[i + s] * b[i + s];
    for (; i < n; i++)
        sum[0] += a[i] * b[i];
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

/* The first bytes of a name, which is at least as long, as one number. */
static uint64_t first_bytes(const char *name)
{
    uint64_t n;
    memcpy(&n, name, sizeof n);
    return n;
}

/* "blk.L." as first_bytes() gives it, at most 8 bytes; *mask: the bits to compare. */
static uint64_t layer_bytes(int l, uint64_t *mask, size_t *n)
{
    char begin[16] = "blk.";
    char digits[12];
    size_t n_digits = 0;
    *n = 4;
    do
        digits[n_digits++] = (char)('0' + l % 10);
    while (l /= 10);
    while (n_digits)
        begin[(*n)++] = digits[--n_digits];
    begin[(*n)++] = '.';
    assert_true(*n <= sizeof *mask);
    *mask = UINT64_MAX >> 8 * (sizeof *mask - *n);
    return first_bytes(begin) & *mask;
}

static bool is_both(const char *name, const char *begin, const char *end)
{
    while (*begin)
        if (*name++ != *begin++)
            return false;
    return strcmp(name, end) == 0;
}

int small_find(const char *names, size_t step, int n, int l, const char *begin, const char *end)
{
    static int found[1024]; /* where names with this hash were found last */
    int *last = &found[((uintptr_t)begin * 31 + (uintptr_t)end + (uintptr_t)l * 127) % 1024];
    uint64_t mask = 0, want = 0;
    size_t skip = 0;
    if (l >= 0)
        want = layer_bytes(l, &mask, &skip);
    for (int k = -1; k < n; k++) {
        const int i = k < 0 ? *last : k;
        const char *name = names + (size_t)i * step;
        if (i < n && (first_bytes(name) & mask) == want && is_both(name + skip, begin, end))
            return *last = i;
    }
    return -1;
}

static float *logits_of(const char *path, enum pp_kv_type kv, const struct manner *how, size_t *n)
{
    const struct pp_engine_options opt = {.kv_type = kv, .n_threads = how->n_threads, .kv_memory = 64u << 20,
                                          .n_ctx = SMALL_TEXT, .kernels = pp_isa_name(how->isa),
                                          .activations = PP_ACT_F32}; /* AMX's default for F16 has other bits */
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_error err;
    int32_t ids[SMALL_TEXT];
    assert_ok(pp_model_open(path, &m, &err), err);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    *n = SMALL_TEXT * (size_t)pp_model_info(m)->n_vocab;
    float *logits = pp_malloc(*n * sizeof *logits);
    assert_non_null(logits);
    text_of(m, ids);
    run_in_passes(e, s, ids, SMALL_TEXT, how->rows, logits);
    pp_seq_free(s);
    pp_engine_free(e);
    pp_model_close(m);
    return logits;
}

float *small_logits(const char *path, enum pp_kv_type kv, size_t *n)
{
    return logits_of(path, kv, &(struct manner){pp_isa_best(), 1, SMALL_TEXT}, n);
}

void assert_same_bits(const char *path, enum pp_kv_type kv)
{
    const struct manner manners[] = {{PP_ISA_SCALAR, 2, SMALL_TEXT}, {pp_isa_best(), 3, 1}, {pp_isa_best(), 2, 33}};
    size_t n, n_other;
    float *first = small_logits(path, kv, &n);
    for (size_t i = 0; i < sizeof manners / sizeof *manners; i++) {
        float *other = logits_of(path, kv, &manners[i], &n_other);
        assert_int_equal(n_other, n);
        assert_memory_equal(first, other, n * sizeof *first);
        pp_free(other);
    }
    pp_free(first);
}

static void assert_logits_by(const double *want, int n_vocab, const char *path, enum pp_isa isa)
{
    size_t n;
    float *got = logits_of(path, PP_KV_F32, &(struct manner){isa, 1, SMALL_TEXT}, &n);
    assert_int_equal(n, SMALL_TEXT * (size_t)n_vocab);
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= 1e-4 * fmax(1, fabs(want[i]))))
            fail_msg("%s: token %zu behind position %zu: %g, not %g", path, i % (size_t)n_vocab, i / (size_t)n_vocab,
                     (double)got[i], want[i]);
    pp_free(got);
}

void assert_logits(const double *want, int n_vocab, const char *path)
{
    assert_logits_by(want, n_vocab, path, pp_isa_best());
}

void assert_model_type(const char *folder)
{
    cJSON *config;
    struct pp_error err;
    assert_ok(pp_json_read(folder, "config.json", &config, &err), err);
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItem(config, "model_type"));
    assert_non_null(type);
    if (strstr(type, "For") || strstr(type, "Model"))
        fail_msg("%s: the model's type is %s", folder, type);
    cJSON_Delete(config);
}

const char *assert_logits_everywhere(const double *want, int n_vocab, const char *file)
{
    const struct pp_convert_options opt = {0};
    const char *folder = fresh_path("folder"), *again = fresh_path("again.gguf");
    struct pp_error err;
    assert_logits_by(want, n_vocab, file, PP_ISA_SCALAR);
    assert_logits(want, n_vocab, file);
    assert_ok(pp_convert_to_folder(file, folder, &opt, &err), err);
    assert_model_type(folder);
    assert_logits(want, n_vocab, folder);
    assert_ok(pp_convert_to_gguf(folder, again, &opt, &err), err);
    assert_logits(want, n_vocab, again);
    return folder;
}

struct running run_small(const char *path, const char *quant)
{
    const struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = 2, .kv_memory = 64u << 20,
                                          .n_ctx = SMALL_TEXT};
    struct running r;
    struct pp_error err;
    assert_ok(pp_model_open_as(path, quant, NULL, &r.m, &err), err);
    assert_ok(pp_engine_new(r.m, &opt, NULL, NULL, &r.e, &err), err);
    assert_ok(pp_seq_new(r.e, &r.s, &err), err);
    return r;
}

void stop_small(struct running *r)
{
    pp_seq_free(r->s);
    pp_engine_free(r->e);
    pp_model_close(r->m);
}

void stop_adapted(struct running *r, struct pp_adapter *adapter)
{
    pp_seq_free(r->s);
    r->s = NULL;
    pp_adapter_free(adapter);
    stop_small(r);
}

void assert_adapted(const char *model, const char *path, const double *want, int n_vocab, double room)
{
    struct running r = run_small(model, NULL);
    struct pp_adapter *adapter;
    struct pp_error err;
    int32_t ids[SMALL_TEXT];
    float *got = pp_calloc((size_t)(SMALL_TEXT * n_vocab), sizeof *got);
    text_of(r.m, ids);
    assert_ok(pp_adapter_load(r.m, path, &adapter, &err), err);
    assert_ok(pp_seq_set_adapters(r.s, &(struct pp_adapter_use){adapter, 1}, 1, &err), err);
    run_in_passes(r.e, r.s, ids, SMALL_TEXT, 7, got);
    for (int i = 0; i < SMALL_TEXT * n_vocab; i++)
        if (!(fabs((double)got[i] - want[i]) <= room * fmax(1, fabs(want[i]))))
            fail_msg("%s: value %d is %g, not %g", model, i, (double)got[i], want[i]);
    pp_free(got);
    stop_adapted(&r, adapter);
}

double small_likeness(const char *path, const char *quant, const double *want, int n_vocab)
{
    struct running r = run_small(path, quant);
    int32_t ids[SMALL_TEXT];
    float *got = pp_calloc((size_t)(SMALL_TEXT * n_vocab), sizeof *got);
    double both = 0, ours = 0, theirs = 0;
    text_of(r.m, ids);
    run_in_passes(r.e, r.s, ids, SMALL_TEXT, 16, got);
    for (int i = 0; i < SMALL_TEXT * n_vocab; i++) {
        both += (double)got[i] * want[i];
        ours += (double)got[i] * (double)got[i];
        theirs += want[i] * want[i];
    }
    pp_free(got);
    stop_small(&r);
    return both / sqrt(ours * theirs);
}

void assert_resumes(const char *path, int n_vocab)
{
    enum { FIRST = 70 };
    const char *base = fresh_path("states");
    int32_t ids[SMALL_TEXT];
    struct pp_sha256 identity;
    struct pp_save *save;
    struct pp_error err;
    uint64_t bytes;
    size_t n;
    bool done = false;
    float *want = small_logits(path, PP_KV_F32, &n), *got = pp_calloc(n, sizeof *got);
    struct running r = run_small(path, NULL);
    text_of(r.m, ids);
    run_in_passes(r.e, r.s, ids, FIRST, 16, got);
    assert_ok(pp_model_identity(r.m, NULL, &identity, &err), err);
    assert_ok(pp_save_new(r.s, &identity, base, "states", &save, &err), err);
    assert_ok(pp_save_plan(save, UINT64_MAX, &bytes, &err), err);
    while (!done)
        assert_ok(pp_save_write(save, UINT64_MAX, NULL, &done, &err), err);
    pp_save_free(save);
    stop_small(&r);
    r = run_small(path, NULL);
    assert_ok(pp_snapshot_restore(r.s, &identity, base, "states", ids, SMALL_TEXT, NULL, &err), err);
    assert_int_equal(pp_seq_len(r.s), FIRST);
    run_in_passes(r.e, r.s, ids + FIRST, SMALL_TEXT - FIRST, 5, got);
    assert_memory_equal(got, want + FIRST * n_vocab, (size_t)((SMALL_TEXT - FIRST) * n_vocab) * sizeof *got);
    pp_free(want);
    pp_free(got);
    stop_small(&r);
}

void assert_goes_back(const char *path, int n_vocab)
{
    static const int to[] = {65, 20, 64, 0, 40};
    int32_t ids[SMALL_TEXT];
    size_t n;
    float *want = small_logits(path, PP_KV_F32, &n), *got = pp_calloc(n, sizeof *got);
    struct running r = run_small(path, NULL);
    text_of(r.m, ids);
    run_in_passes(r.e, r.s, ids, SMALL_TEXT, 16, got);
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        struct pp_seq *other;
        struct pp_error err;
        const int rest = SMALL_TEXT - to[i], half = rest / 2;
        assert_ok(pp_seq_fork(r.s, to[i], &other, &err), err);
        pp_seq_truncate(r.s, to[i]);
        memset(got, 0, n * sizeof *got);
        run_in_passes(r.e, other, ids, 3, 2, got); /* other tokens */
        run_in_passes(r.e, r.s, ids + to[i], half, 3, got);
        run_in_passes(r.e, other, ids, 3, 2, got + half * n_vocab);
        run_in_passes(r.e, r.s, ids + to[i] + half, rest - half, 7, got + half * n_vocab);
        assert_memory_equal(got, want + to[i] * n_vocab, (size_t)(rest * n_vocab) * sizeof *got);
        pp_seq_truncate(other, to[i]);
        run_in_passes(r.e, other, ids + to[i], rest, 64, got);
        assert_memory_equal(got, want + to[i] * n_vocab, (size_t)(rest * n_vocab) * sizeof *got);
        pp_seq_free(other);
    }
    pp_free(want);
    pp_free(got);
    stop_small(&r);
}

void assert_tensor(const char *folder, const char *name, int n_dims, int64_t n)
{
    char path[400];
    struct pp_safetensors *s;
    struct pp_error err;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(pp_safetensors_open(path, &s, &err), err);
    const struct pp_tensor *t = pp_safetensors_find(s, name);
    if (!t)
        fail_msg("%s has no %s", folder, name);
    assert_int_equal(t->n_dims, n_dims);
    assert_int_equal(t->ne[0], n);
    pp_safetensors_close(s);
}

double *doubles(int64_t n)
{
    double *p = pp_calloc((size_t)n, sizeof *p);
    assert_non_null(p);
    return p;
}

void convolve_row(const float *taps, int n_taps, const float *bias, const double *in, int r, int width, double *out)
{
    for (int i = 0; i < width; i++) {
        out[i] = bias ? (double)bias[i] : 0;
        for (int j = 0; j < n_taps; j++) {
            const int position = r - n_taps + 1 + j;
            out[i] += position < 0 ? 0 : (double)taps[i * n_taps + j] * in[(int64_t)position * width + i];
        }
    }
}

void attend_query(const double *q, const double *k, const double *v, int first, int position, int dim, int n_kv,
                  double scale, double slope, double *out)
{
    attend_capped(q, k, v, first, position, dim, n_kv, scale, slope, 0, 1, out);
}

void attend_capped(const double *q, const double *k, const double *v, int first, int position, int dim, int n_kv,
                   double scale, double slope, double cap, double growth, double *out)
{
    double *p = doubles(position + 1), most = -INFINITY, sum = 0;
    for (int j = first; j <= position; j++) {
        p[j] = double_dot(q, k + (int64_t)j * n_kv, dim) * scale;
        p[j] = (cap != 0 ? cap * tanh(p[j] / cap) : p[j]) * growth - slope * (position - j);
        most = fmax(most, p[j]);
    }
    for (int j = first; j <= position; j++)
        sum += p[j] = exp(p[j] - most);
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int j = first; j <= position; j++)
        for (int i = 0; i < dim; i++)
            out[i] += p[j] / sum * v[(int64_t)j * n_kv + i];
    pp_free(p);
}
