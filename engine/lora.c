#include "engine/lora.h"

#include <stdio.h>
#include <string.h>

#include "engine/adapter_file.h"
#include "engine/base/mem.h"
#include "engine/hparams.h"
#include "engine/model.h"
#include "engine/quant.h"

/* Ranks are added up over adapters and projections, and work space is made for the sum. */
enum { MAX_RANK = 1 << 16 };

int pp_adapter_set_rank(const struct pp_adapter_set *set, int linear)
{
    int rank = 0;
    for (int i = 0; i < set->n; i++)
        rank += set->use[i].adapter->targets[linear].rank;
    return rank;
}

static int linear_by_name(const struct pp_plan *plan, const char *name)
{
    for (int i = 0; i < plan->n_linears; i++)
        if (strcmp(plan->linears[i].w->name, name) == 0)
            return i;
    return -1;
}

/* The rows of a tensor as floats; refuses NaN and infinity, which would poison every answer. */
static enum pp_code to_floats(const struct pp_adapter *a, const struct pp_tensor *t, float **out, struct pp_error *err)
{
    int64_t n = t->ne[0], rows = t->ne[1];
    size_t row_bytes = pp_type_row_bytes(t->type, n);
    float *f = *out = pp_malloc((size_t)n * (size_t)rows * sizeof *f); /* they are in a file: no overflow */
    if (!f)
        return pp_fail_nomem(err, "an adapter");
    for (int64_t r = 0; r < rows; r++) {
        const uint8_t *src = (const uint8_t *)t->data + (size_t)r * row_bytes;
        if (!pp_row_finite(t->type, src, n))
            return pp_fail(err, PP_ERR_FORMAT,
                           "adapter %s: %.200s holds values that are no numbers; the file is damaged, get it again",
                           a->path, t->name);
        pp_dequantize_row(t->type, src, f + r * n, n);
    }
    return PP_OK;
}

/* Moves the rows of B between the orders of Hugging Face and GGUF (see engine/arch/arch.h). b: [n_out, rank] */
static enum pp_code reorder_rows(float *b, int64_t n_out, int rank, int64_t head_dim, bool from_hf,
                                 struct pp_error *err)
{
    size_t bytes = (size_t)n_out * (size_t)rank * sizeof *b;
    float *old = pp_malloc(bytes);
    if (!old)
        return pp_fail_nomem(err, "an adapter");
    memcpy(old, b, bytes);
    for (int64_t r = 0; r < n_out; r++) {
        int64_t from = from_hf ? pp_hf_row(r, head_dim) : pp_gguf_row(r, head_dim);
        memcpy(b + r * rank, old + from * rank, (size_t)rank * sizeof *b);
    }
    pp_free(old);
    return PP_OK;
}

static enum pp_code load_target(const struct pp_model *m, struct pp_adapter *a, const struct pp_adapter_file *f,
                                const struct pp_adapter_target *t, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(m->source);
    int index = linear_by_name(&m->plan, t->name);
    if (index < 0)
        return pp_fail(err, PP_ERR_MISMATCH,
                       "adapter %s changes %s, which %s does not have; it was made for another model", a->path, t->name,
                       m->info.name);
    const struct pp_tensor *w = m->plan.linears[index].w;
    if (t->a.ne[0] != w->ne[0] || t->b.ne[1] != w->ne[1])
        return pp_fail(err, PP_ERR_MISMATCH,
                       "adapter %s: %s is made for a matrix of %lld x %lld, but in %s it has %lld x %lld", a->path,
                       t->name, (long long)t->b.ne[1], (long long)t->a.ne[0], m->info.name, (long long)w->ne[1],
                       (long long)w->ne[0]);
    struct pp_lora_target *own = &a->targets[index];
    if (own->rank)
        return pp_fail(err, PP_ERR_FORMAT, "adapter %s has %s twice", a->path, t->name);
    if (t->a.ne[1] > MAX_RANK)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s: %s has rank %lld; at most %d can be run", a->path, t->name,
                       (long long)t->a.ne[1], MAX_RANK);
    own->rank = (int)t->a.ne[1];
    own->scale = t->scale;
    enum pp_code code = to_floats(a, &t->a, &own->a, err);
    if (!code)
        code = to_floats(a, &t->b, &own->b, err);
    if (code)
        return code;
    bool hf = pp_adapter_file_hf_order(f);
    if (t->rows != PP_ROWS_SAME && hf != hp->rope_neox)
        return reorder_rows(own->b, w->ne[1], own->rank, hp->head_dim, hf, err);
    return PP_OK;
}

static struct pp_sha256 adapter_identity(const struct pp_adapter *a, const struct pp_model *m)
{
    struct pp_sha256_stream s;
    pp_sha256_begin(&s);
    for (int i = 0; i < a->n_linears; i++) {
        const struct pp_lora_target *t = &a->targets[i];
        const struct pp_tensor *w = m->plan.linears[i].w;
        if (!t->rank)
            continue;
        pp_sha256_update(&s, &i, sizeof i);
        pp_sha256_update(&s, &t->rank, sizeof t->rank);
        pp_sha256_update(&s, &t->scale, sizeof t->scale);
        pp_sha256_update(&s, t->a, (size_t)t->rank * (size_t)w->ne[0] * sizeof *t->a);
        pp_sha256_update(&s, t->b, (size_t)t->rank * (size_t)w->ne[1] * sizeof *t->b);
    }
    return pp_sha256_end(&s);
}

/* "attn_q attn_v ...": each kind of projection once. */
static char *describe_targets(const struct pp_adapter_file *f)
{
    struct pp_buf b = {0};
    for (size_t i = 0; i < pp_adapter_file_n(f); i++) {
        char kind[64];
        const char *name = pp_adapter_file_at(f, i)->name;
        const char *dot = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
        snprintf(kind, sizeof kind, "%s", dot ? dot + 1 : name);
        char *end = strrchr(kind, '.');
        if (end)
            *end = 0;
        const char *found = strstr(pp_buf_cstr(&b), kind);
        size_t n = strlen(kind);
        if (found && (found[n] == ' ' || !found[n]))
            continue;
        if (b.len)
            pp_buf_char(&b, ' ');
        pp_buf_str(&b, kind);
    }
    return pp_buf_take(&b);
}

enum pp_code pp_adapter_load(const struct pp_model *m, const char *path, struct pp_adapter **out, struct pp_error *err)
{
    struct pp_adapter_file *f;
    *out = NULL;
    enum pp_code code = pp_adapter_file_open(path, &f, err);
    if (code)
        return code;
    struct pp_adapter *a = pp_calloc(1, sizeof *a);
    if (a) {
        char name[256];
        pp_name_of_path(path, name, sizeof name);
        a->model = m;
        a->n_linears = m->plan.n_linears;
        a->targets = pp_calloc((size_t)a->n_linears, sizeof *a->targets);
        a->path = pp_strdup(path);
        a->name = pp_strdup(name);
        a->target_names = describe_targets(f);
    }
    if (!a || !a->targets || !a->path || !a->name || !a->target_names) {
        pp_adapter_file_close(f);
        pp_adapter_free(a);
        return pp_fail_nomem(err, "an adapter");
    }
    for (size_t i = 0; !code && i < pp_adapter_file_n(f); i++) {
        const struct pp_adapter_target *t = pp_adapter_file_at(f, i);
        code = load_target(m, a, f, t, err);
        a->info.bytes += t->a.size + t->b.size;
        if (t->a.ne[1] > a->info.rank)
            a->info.rank = (int)t->a.ne[1];
    }
    if (!code)
        code = pp_adapter_file_check(f, err);
    a->info.n_targets = (int)pp_adapter_file_n(f);
    a->info.alpha = pp_adapter_file_alpha(f);
    pp_adapter_file_close(f);
    if (code) {
        pp_adapter_free(a);
        return code;
    }
    a->info.path = a->path;
    a->info.name = a->name;
    a->info.targets = a->target_names;
    a->identity = adapter_identity(a, m);
    *out = a;
    return PP_OK;
}

void pp_adapter_free(struct pp_adapter *a)
{
    if (!a)
        return;
    for (int i = 0; a->targets && i < a->n_linears; i++) {
        pp_free(a->targets[i].a);
        pp_free(a->targets[i].b);
    }
    pp_free(a->targets);
    pp_free(a->path);
    pp_free(a->name);
    pp_free(a->target_names);
    pp_free(a);
}

const struct pp_adapter_info *pp_adapter_info(const struct pp_adapter *a)
{
    return &a->info;
}
