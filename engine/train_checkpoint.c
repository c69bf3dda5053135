/* train_checkpoint.c - checkpoints: a GGUF file of the type "training" with A, B and their moments. It also describes,
 * as text, what is trained, on what, and how, so that a difference can be named. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/gguf.h"
#include "engine/train_int.h"

enum { VERSION = 1, N_ARRAYS = 3 };

static const char validation_name[] = "validation"; /* its line is absent if nothing is validated */
static const char *const array_names[N_ARRAYS] = {"params", "adamw.m", "adamw.v"};

static float *array_of(const struct pp_trainer *t, int i)
{
    return i == 0 ? t->params : i == 1 ? t->m : t->v;
}

/* --- what a checkpoint belongs to ----------------------------------------------------------------------------- */

static void add_hash(struct pp_buf *b, const char *name, const struct pp_train_data *d)
{
    struct pp_hash128 h = pp_train_data_hash(d);
    pp_buf_fmt(b, "%s=%zu examples %016llx%016llx\n", name, d->n, (unsigned long long)h.hi, (unsigned long long)h.lo);
}

/* One `name=value` a line. Nine digits restore a float exactly. */
static enum pp_code describe(const struct pp_trainer *t, struct pp_buf *b, struct pp_error *err)
{
    const struct pp_train_options *o = &t->opt;
    struct pp_sha256 identity;
    char hex[65];
    enum pp_code code = pp_model_identity(t->model, o->cache_dir, &identity, err);
    if (code)
        return code;
    pp_sha256_hex(&identity, hex);
    pp_buf_fmt(b, "model=%s\n", hex);
    pp_buf_fmt(b, "rank=%d\nalpha=%.9g\nrslora=%d\n", o->rank, (double)o->alpha, o->rslora);
    pp_buf_str(b, "targets=");
    for (int i = 0; i < PP_TRAIN_TARGETS; i++)
        if (o->targets >> i & 1)
            pp_buf_fmt(b, "%s ", pp_train_target_name((enum pp_train_target)i));
    pp_buf_fmt(b, "\nlr=%.9g\nwarmup=%.9g\nweight-decay=%.9g\nclip=%.9g\n", (double)o->lr, (double)o->warmup,
               (double)o->weight_decay, (double)o->clip);
    pp_buf_fmt(b, "batch=%d\naccumulate=%d\nsteps=%lld\nseed=%llu\n", o->batch, o->accumulate,
               (long long)t->info.n_steps, (unsigned long long)o->seed);
    add_hash(b, "data", t->data);
    if (t->validation)
        add_hash(b, validation_name, t->validation);
    return b->bad ? pp_fail_nomem(err, "a checkpoint") : PP_OK;
}

/* The value of the line that begins with `name` (of n bytes). */
static struct pp_str value_of(struct pp_str text, const char *name, size_t n)
{
    const char *p = text.data, *end = text.data + text.len;
    while (p < end) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((stop ? stop : end) - p);
        if (len > n && memcmp(p, name, n) == 0 && p[n] == '=')
            return (struct pp_str){p + n + 1, len - n - 1};
        p += len + 1;
    }
    return (struct pp_str){"nothing", 7};
}

/* What changed, for lines with a hash, which tells users nothing. */
static const char *changed(struct pp_str name)
{
    static const struct {
        const char *name, *says;
    } hashed[] = {{"model", "it belongs to a different model"},
                  {"data", "the examples have changed"},
                  {validation_name, "the examples for validation have changed"}};
    for (size_t i = 0; i < sizeof hashed / sizeof *hashed; i++)
        if (name.len == strlen(hashed[i].name) && memcmp(name.data, hashed[i].name, name.len) == 0)
            return hashed[i].says;
    return NULL;
}

/* A value in readable form, unless exact: 0.0002 instead of 0.000199999995; "10 examples" without their hash. */
static void make_readable(struct pp_str value, bool exact, char out[static 80])
{
    char *end;
    while (value.len && value.data[value.len - 1] == ' ')
        value.len--;
    snprintf(out, 80, "%.*s", (int)(value.len < 80 ? value.len : 80), value.data);
    const double number = strtod(out, &end);
    if (!exact && end > out && !*end && strchr(out, '.'))
        snprintf(out, 80, "%.6g", number);
    if ((end = strstr(out, " examples ")))
        end[strlen(" examples")] = 0;
}

static enum pp_code fail_differs(const char *path, struct pp_str name, struct pp_str there, struct pp_str here,
                                 struct pp_error *err)
{
    const char *what = changed(name);
    char old[80], new[80];
    make_readable(there, false, old);
    make_readable(here, false, new);
    if (!what && strcmp(old, new) == 0) {
        make_readable(there, true, old);
        make_readable(here, true, new);
    }
    if (what && (name.data[0] == 'm' || strcmp(old, new) == 0))
        return pp_fail(err, PP_ERR_MISMATCH, "%s cannot be continued: %s", path, what);
    if (what)
        return pp_fail(err, PP_ERR_MISMATCH, "%s cannot be continued: %s: %s then, %s now", path, what, old, new);
    return pp_fail(err, PP_ERR_MISMATCH, "%s cannot be continued: %.*s was %s and is now %s; give the same options, "
                                         "or another folder", path, (int)name.len, name.data, old, new);
}

/* Fails with the first line that differs between ours and the checkpoint's. */
static enum pp_code compare(const char *path, const struct pp_buf *ours, struct pp_str theirs, struct pp_error *err)
{
    const struct pp_str own = {pp_buf_cstr(ours), ours->len}, last = {validation_name, strlen(validation_name)};
    const char *p = own.data;
    if (theirs.len == own.len && memcmp(theirs.data, p, own.len) == 0)
        return PP_OK;
    for (const char *stop; (stop = strchr(p, '\n')); p = stop + 1) {
        const struct pp_str name = {p, strcspn(p, "=")};
        struct pp_str here = {p + name.len + 1, (size_t)(stop - p) - name.len - 1};
        struct pp_str there = value_of(theirs, p, name.len);
        if (here.len != there.len || memcmp(here.data, there.data, here.len) != 0)
            return fail_differs(path, name, there, here, err);
    }
    const struct pp_str there = value_of(theirs, last.data, last.len), here = value_of(own, last.data, last.len);
    if (there.len != here.len || memcmp(there.data, here.data, here.len) != 0)
        return fail_differs(path, last, there, here, err);
    return pp_fail(err, PP_ERR_MISMATCH, "%s cannot be continued: it was started with different options", path);
}

/* --- saving --------------------------------------------------------------------------------------------------- */

static void add_double(struct pp_gguf_writer *w, const char *key, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    pp_gguf_add_u64(w, key, bits);
}

/* Over the values of all arrays, to check that they are as written. */
static void checksum(const struct pp_trainer *t, char out[33])
{
    struct pp_hash128 each[N_ARRAYS];
    for (int i = 0; i < N_ARRAYS; i++)
        each[i] = pp_hash128(array_of(t, i), t->n_params * sizeof(float));
    struct pp_hash128 h = pp_hash128(each, sizeof each);
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.hi, (unsigned long long)h.lo);
}

static enum pp_code write_file(const struct pp_trainer *t, struct pp_gguf_writer *w, const struct pp_buf *text,
                               struct pp_error *err)
{
    const int64_t ne[] = {(int64_t)t->n_params};
    char sum[33];
    checksum(t, sum);
    pp_gguf_add_text(w, "general.architecture", t->model->info.arch);
    pp_gguf_add_text(w, "general.type", "training");
    pp_gguf_add_u32(w, "pippin.training.version", VERSION);
    pp_gguf_add_str(w, "pippin.training.settings", pp_buf_cstr(text), text->len);
    pp_gguf_add_u64(w, "pippin.training.step", (uint64_t)t->step);
    add_double(w, "pippin.training.first_loss", t->first_loss);
    add_double(w, "pippin.training.first_validation", t->first_validation);
    pp_gguf_add_text(w, "pippin.training.checksum", sum);
    for (int i = 0; i < N_ARRAYS; i++)
        pp_gguf_add_tensor(w, array_names[i], PP_TYPE_F32, 1, ne);
    enum pp_code code = pp_gguf_writer_begin(w, err);
    for (int i = 0; i < N_ARRAYS && !code; i++)
        code = pp_gguf_write(w, array_of(t, i), t->n_params * sizeof(float), err);
    return code ? code : pp_gguf_writer_finish(w, err);
}

enum pp_code pp_trainer_save(const struct pp_trainer *t, const char *path, struct pp_error *err)
{
    struct pp_buf text = {0};
    struct pp_gguf_writer *w = NULL;
    enum pp_code code = describe(t, &text, err);
    if (!code)
        code = pp_gguf_writer_new(path, &w, err);
    if (!code)
        code = write_file(t, w, &text, err);
    pp_gguf_writer_free(w);
    pp_buf_free(&text);
    return code;
}

/* --- loading -------------------------------------------------------------------------------------------------- */

static double read_double(const struct pp_gguf *g, const char *key)
{
    struct pp_str raw;
    double v = (double)NAN;
    for (size_t i = 0; i < pp_gguf_n_kv(g); i++) {
        struct pp_str name = pp_gguf_kv_key(g, i);
        if (name.len != strlen(key) || memcmp(name.data, key, name.len) != 0)
            continue;
        raw = pp_gguf_kv_raw(g, i);
        if (pp_gguf_kv_type(g, i) == PP_GGUF_U64 && raw.len == sizeof v)
            memcpy(&v, raw.data, sizeof v);
    }
    return v;
}

static enum pp_code damaged(const char *path, const char *what, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT, "%s is damaged (%s); delete it and start again", path, what);
}

static enum pp_code read_arrays(struct pp_trainer *t, const struct pp_gguf *g, const char *path, struct pp_error *err)
{
    char sum[33];
    for (int i = 0; i < N_ARRAYS; i++) {
        const struct pp_tensor *from = pp_gguf_tensor(g, array_names[i]);
        if (!from || from->type != PP_TYPE_F32 || from->n_dims != 1 || from->ne[0] != (int64_t)t->n_params)
            return damaged(path, "an array is missing or has the wrong length", err);
        memcpy(array_of(t, i), from->data, from->size);
    }
    checksum(t, sum);
    if (pp_gguf_lost(g) || !pp_gguf_string_is(g, "pippin.training.checksum", sum))
        return damaged(path, "its checksum does not match", err);
    return PP_OK;
}

static enum pp_code read_file(struct pp_trainer *t, const struct pp_gguf *g, const char *path, struct pp_error *err)
{
    int64_t version = 0, step = -1;
    struct pp_str theirs;
    struct pp_buf ours = {0};
    if (!pp_gguf_string_is(g, "general.type", "training") || !pp_gguf_int(g, "pippin.training.version", &version))
        return pp_fail(err, PP_ERR_FORMAT, "%s is not a training checkpoint", path);
    if (version != VERSION)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s was written by a different version of pippin", path);
    if (!pp_gguf_string(g, "pippin.training.settings", &theirs) || !pp_gguf_int(g, "pippin.training.step", &step))
        return damaged(path, "settings or step are missing", err);
    enum pp_code code = describe(t, &ours, err);
    if (!code)
        code = compare(path, &ours, theirs, err);
    pp_buf_free(&ours);
    if (code)
        return code;
    if (step < 0 || step > t->info.n_steps)
        return damaged(path, "there is no such step", err);
    t->step = step;
    t->first_loss = read_double(g, "pippin.training.first_loss");
    t->first_validation = read_double(g, "pippin.training.first_validation");
    return read_arrays(t, g, path, err);
}

enum pp_code pp_trainer_load(struct pp_trainer *t, const char *path, struct pp_error *err)
{
    struct pp_gguf *g;
    enum pp_code code = pp_gguf_open(path, &g, err);
    if (code == PP_ERR_FORMAT) /* unlike other files, it cannot be downloaded again */
        return damaged(path, "it cannot be read completely", err);
    if (code)
        return code;
    code = read_file(t, g, path, err);
    pp_gguf_close(g);
    return code;
}
