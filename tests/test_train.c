/* test_train.c - training as a whole: the files it writes, resuming after a stop, and errors. Examples
 * (test_train_data.c) and gradients (test_train_gradients.c) have tests of their own. */
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/adapter_file.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/hf.h"
#include "engine/quant.h"
#include "engine/train_int.h"
#include "tests/decoder_model.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

static const char starter[] = "engine/starter/starter-Q4_K_M.gguf";

static struct pp_model *open_model(const char *path)
{
    struct pp_error err;
    struct pp_model *m;
    assert_ok(pp_model_open(path, &m, &err), err);
    return m;
}

/* --- models and examples -------------------------------------------------------------------------------------- */

static struct pp_train_data *made_up(int n_examples, int n_vocab)
{
    struct pp_error err;
    struct pp_train_data *d = pp_calloc(1, sizeof *d);
    assert_non_null(d);
    for (int e = 0; e < n_examples; e++) {
        int32_t tokens[40];
        uint8_t learnt[40];
        int n = 12 + e * 5 % 23;
        for (int i = 0; i < n; i++) {
            tokens[i] = (e % 3 * 50 + i * 7) % n_vocab; /* three patterns, so that there is something to learn */
            learnt[i] = i > 4;
        }
        assert_ok(pp_train_data_add(d, tokens, learnt, (size_t)n, 64, &err), err);
    }
    return d;
}

static struct pp_train_options few_steps(void)
{
    struct pp_train_options opt = pp_train_options_default();
    opt.rank = 4;
    opt.batch = 2;
    opt.accumulate = 2;
    opt.steps = 8;
    opt.lr = 5e-3f;
    opt.n_threads = 2;
    opt.seed = 11;
    return opt;
}

struct set {
    struct pp_model *m;
    struct pp_train_data *d, *v;
};

static struct set make_set(uint32_t type)
{
    struct tiny_shape s = tiny_shape(type);
    struct set all = {.m = open_model(tiny_model(&s)), .d = made_up(11, s.n_vocab)};
    struct pp_error err;
    assert_ok(pp_train_data_split(all.d, 0.2, 5, &all.v, &err), err);
    assert_int_equal(all.v->n, 2);
    assert_int_equal(all.d->n, 9);
    assert_int_equal(all.d->info.n_examples, 9);
    return all;
}

static void set_free(struct set *s)
{
    pp_train_data_free(s->d);
    pp_train_data_free(s->v);
    pp_model_close(s->m);
}

static struct pp_trainer *trainer_of(const struct set *s, struct pp_train_options opt)
{
    struct pp_error err;
    struct pp_trainer *t;
    assert_ok(pp_trainer_new(s->m, s->d, s->v, &opt, &t, &err), err);
    return t;
}

static void do_steps(struct pp_trainer *t, int n)
{
    struct pp_error err;
    for (int i = 0; i < n; i++)
        assert_ok(pp_trainer_step(t, NULL, NULL, &err), err);
}

static size_t param_bytes(const struct pp_trainer *t)
{
    return t->n_params * sizeof *t->params;
}

/* --- the forward pass is the engine's ------------------------------------------------------------------------- */

/* Logits of all rows of an example. */
static float *train_logits(struct pp_trainer *t, const struct pp_train_data *d, const struct pp_example *e)
{
    struct pp_error err;
    float *out = pp_malloc((size_t)(e->n * t->n_vocab) * sizeof *out);
    assert_non_null(out);
    pp_train_batch_clear(&t->batch);
    pp_train_batch_add(&t->batch, d, e);
    assert_ok(pp_train_forward(t, NULL, &err), err);
    for (int64_t at = 0; at < e->n; at += t->head_rows) {
        int64_t n = e->n - at < t->head_rows ? e->n - at : t->head_rows;
        for (int64_t i = 0; i < n; i++)
            t->ops->rms_norm(t->x[t->n_layers] + (at + i) * t->n_embd, t->output_norm, t->norm_eps, t->n_embd,
                             t->hidden + i * t->n_embd);
        pp_train_logits(t, n);
        memcpy(out + at * t->n_vocab, t->logits, (size_t)(n * t->n_vocab) * sizeof *out);
    }
    return out;
}

static float *engine_logits(const struct pp_model *m, const char *adapter, const int32_t *tokens, int n)
{
    struct pp_error err;
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_adapter *a = NULL;
    struct pp_row rows[64];
    struct pp_engine_options opt = {.n_threads = 2, .kv_type = PP_KV_F32, .kv_memory = 64u << 20, .n_ctx = 64};
    const int64_t n_vocab = pp_model_info(m)->n_vocab;
    float *out = pp_malloc((size_t)(n * n_vocab) * sizeof *out);
    assert_true(out && n <= 64);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    if (adapter) {
        assert_ok(pp_adapter_load_exact(m, adapter, &a, &err), err);
        assert_ok(pp_seq_set_adapters(s, &(struct pp_adapter_use){a, 1}, 1, &err), err);
    }
    for (int i = 0; i < n; i++)
        rows[i] = (struct pp_row){.seq = s, .token = tokens[i], .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    assert_ok(pp_step(e, rows, n, NULL, &err), err);
    for (int i = 0; i < n; i++)
        memcpy(out + i * n_vocab, pp_step_output(e, i), (size_t)n_vocab * sizeof *out);
    pp_seq_free(s);
    if (a)
        pp_adapter_free(a);
    pp_engine_free(e);
    return out;
}

static double farthest(const float *a, const float *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        most = d > most || isnan(d) ? d : most;
    }
    return most;
}

/* An adapter of noise, written both ways and loaded by the engine, gives the logits that training computes with. */
static void same_logits(const struct pp_model *m)
{
    struct pp_error err;
    struct set s = {.d = made_up(2, (int)pp_model_info(m)->n_vocab), .m = (struct pp_model *)(uintptr_t)m};
    struct pp_train_options opt = few_steps();
    opt.rslora = true;
    struct pp_trainer *t = trainer_of(&s, opt);
    const struct pp_example *e = &s.d->examples[1];
    const int32_t *tokens = s.d->tokens + e->first;
    const int64_t n = e->n * t->n_vocab;
    float *base = train_logits(t, s.d, e), *want = engine_logits(m, NULL, tokens, e->n);
    double apart = farthest(base, want, n);
    if (!(apart <= 1e-3))
        fail_msg("%s: logits without an adapter differ by %g", pp_model_info(m)->path, apart);
    pp_free(want);
    for (size_t i = 0; i < t->n_params; i++)
        t->params[i] = ((float)(pp_train_random(3, 4, i) >> 40) / 8388608.0f - 1.0f) * 0.05f;
    float *got = train_logits(t, s.d, e);
    assert_true(farthest(base, got, n) > 0.05); /* it changes something */
    const char *folder = fresh_path("adapter"), *file = fresh_path("adapter.gguf");
    assert_ok(pp_trainer_write_peft(t, folder, &err), err);
    assert_ok(pp_trainer_write_gguf(t, file, &err), err);
    const char *const paths[] = {folder, file};
    for (int i = 0; i < 2; i++) {
        want = engine_logits(m, paths[i], tokens, e->n);
        double off = farthest(got, want, n);
        if (!(off <= 1e-3))
            fail_msg("%s: logits differ by %g", paths[i], off);
        pp_free(want);
    }
    pp_free(base);
    pp_free(got);
    pp_trainer_free(t);
    pp_train_data_free(s.d);
}

static void logits_of_tiny_models(void **state)
{
    (void)state;
    static const uint32_t types[] = {PP_TYPE_F32, PP_TYPE_F16, PP_TYPE_BF16};
    for (int i = 0; i < 3; i++) {
        struct tiny_shape s = tiny_shape(types[i]);
        s.biases = i == 1;
        s.window = i == 2 ? 9 : 0;
        struct pp_model *m = open_model(tiny_model(&s));
        same_logits(m);
        pp_model_close(m);
    }
}

static void add_factors(cJSON *rope, const char *key, int n, double first)
{
    cJSON *list = cJSON_AddArrayToObject(rope, key);
    for (int i = 0; i < n; i++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber(first + 0.1 * i));
}

/* LongRoPE, whose factors depend on the length of the examples. */
static void logits_of_long_contexts(void **state)
{
    (void)state;
    for (int orig = 4; orig <= 64; orig += 60) {
        const struct tiny_shape s = tiny_shape(PP_TYPE_F32);
        const char *folder = fresh_path("longrope");
        char path[600];
        cJSON *config;
        struct pp_error err;
        assert_ok(pp_convert_to_folder(tiny_model(&s), folder, &(struct pp_convert_options){0}, &err), err);
        assert_ok(pp_json_read(folder, "config.json", &config, &err), err);
        cJSON_DeleteItemFromObject(config, "rope_parameters");
        cJSON_DeleteItemFromObject(config, "rope_scaling");
        cJSON *rope = cJSON_AddObjectToObject(config, "rope_scaling");
        cJSON_AddStringToObject(rope, "type", "longrope");
        add_factors(rope, "long_factor", s.head_dim / 2, 3);
        add_factors(rope, "short_factor", s.head_dim / 2, 1);
        cJSON_AddNumberToObject(config, "original_max_position_embeddings", orig);
        char *text = cJSON_Print(config);
        snprintf(path, sizeof path, "%s/config.json", folder);
        assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
        cJSON_free(text);
        cJSON_Delete(config);
        struct pp_model *m = open_model(folder);
        same_logits(m);
        pp_model_close(m);
    }
}

/* Layers of different widths are refused. */
static void uneven_layers(void **state)
{
    static const int sizes[][3] = {{4, 2, 256}, {4, 4, 256}, {4, 1, 256}}, wide[][3] = {{4, 2, 256}, {4, 2, 512}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct decoder_shape s = decoder_shape("deci");
        struct pp_train_options opt = few_steps();
        struct pp_trainer *t;
        struct pp_error err;
        s.n_layer = i ? 2 : 3;
        s.uneven = i ? wide : sizes;
        struct decoder *d = decoder_make(&s);
        struct pp_model *m = open_model(decoder_write(d));
        struct pp_train_data *data = made_up(2, s.n_vocab);
        assert_int_equal(pp_trainer_new(m, data, NULL, &opt, &t, &err), PP_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, "layers that differ"));
        pp_train_data_free(data);
        pp_model_close(m);
        decoder_free(d);
    }
}

/* Folders, whose q and k lie otherwise than GGUF's, and their GGUF files; all scalings of positions. */
static void logits_of_golden_models(void **state)
{
    (void)state;
    static const char *const families[] = {"llama", "llama-bias", "llama-linear", "llama-yarn", "llama3-rope",
                                           "mistral-swa", "qwen2"};
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        for (int gguf = 0; gguf < (strcmp(families[i], "mistral-swa") ? 2 : 1); gguf++) {
            char relative[128];
            snprintf(relative, sizeof relative, "architectures/%s%s", families[i], gguf ? "/model.gguf" : "");
            const char *path = testdata(relative);
            if (!path)
                skip();
            struct pp_model *m = open_model(path);
            same_logits(m);
            pp_model_close(m);
        }
}

/* --- the same result whatever the machine does ---------------------------------------------------------------- */

static void threads_and_seeds(void **state)
{
    (void)state;
    struct set s = make_set(PP_TYPE_BF16);
    struct pp_train_options opt = few_steps();
    float *want = NULL;
    pp_pool_assume_cpus(4);
    for (int round = 0; round < 4; round++) {
        static const int threads[] = {1, 2, 4, 3};
        opt.n_threads = threads[round];
        opt.seed = round == 3 ? 12 : 11;
        struct pp_trainer *t = trainer_of(&s, opt);
        do_steps(t, 5);
        if (!want) {
            want = pp_malloc(param_bytes(t));
            assert_non_null(want);
            memcpy(want, t->params, param_bytes(t));
        } else if (round == 3) {
            assert_memory_not_equal(t->params, want, param_bytes(t));
        } else {
            assert_memory_equal(t->params, want, param_bytes(t));
        }
        pp_trainer_free(t);
    }
    pp_pool_assume_cpus(0);
    pp_free(want);
    set_free(&s);
}

/* Processing examples together or one after the other gives the same step, up to rounding. */
static void accumulation(void **state)
{
    (void)state;
    struct set s = make_set(PP_TYPE_F32);
    struct pp_train_options opt = few_steps();
    struct pp_train_step one, other;
    struct pp_error err;
    struct pp_trainer *t = trainer_of(&s, opt);
    assert_ok(pp_trainer_step(t, NULL, &one, &err), err);
    pp_trainer_free(t);
    opt.batch = 4;
    opt.accumulate = 1;
    t = trainer_of(&s, opt);
    assert_ok(pp_trainer_step(t, NULL, &other, &err), err);
    assert_near(one.loss, other.loss, 1e-5);
    assert_near(one.grad_norm, other.grad_norm, 1e-4 * one.grad_norm);
    assert_int_equal(one.n_tokens, other.n_tokens);
    pp_trainer_free(t);
    set_free(&s);
}

/* The rate rises to its highest and falls to almost nothing; clipping bounds what a step does. */
static void rates(void **state)
{
    (void)state;
    struct set s = make_set(PP_TYPE_F32);
    struct pp_train_options opt = few_steps();
    opt.steps = 100;
    opt.warmup = 0.1f;
    opt.lr = 1;
    struct pp_trainer *t = trainer_of(&s, opt);
    assert_near(pp_train_rate(t, 0), 0.1, 1e-6);
    assert_near(pp_train_rate(t, 9), 1, 1e-6);
    assert_near(pp_train_rate(t, 10), 1, 1e-6);
    assert_near(pp_train_rate(t, 55), 0.5, 1e-6);
    assert_true(pp_train_rate(t, 99) < 0.001f && pp_train_rate(t, 99) > 0);
    for (int i = 11; i < 100; i++)
        assert_true(pp_train_rate(t, i) < pp_train_rate(t, i - 1));
    pp_trainer_free(t);
    set_free(&s);
}

/* AdamW for one parameter as its paper defines it, in double precision. */
static void adamw(void **state)
{
    (void)state;
    struct set s = make_set(PP_TYPE_F32);
    struct pp_train_options opt = few_steps();
    struct pp_error err;
    opt.clip = 0.5f;
    struct pp_trainer *t = trainer_of(&s, opt);
    size_t at = t->layers[0].linear[PP_TRAIN_V].b + 3;
    double w = (double)t->params[at], m = 0, v = 0;
    for (int step = 1; step <= 4; step++) {
        struct pp_train_step done;
        assert_ok(pp_trainer_step(t, NULL, &done, &err), err);
        double g = (double)t->grad[at] * (done.grad_norm > 0.5 ? 0.5 / done.grad_norm : 1);
        m = 0.9 * m + 0.1 * g;
        v = 0.999 * v + 0.001 * g * g;
        double move = m / (1 - pow(0.9, step)) / (sqrt(v / (1 - pow(0.999, step))) + 1e-8);
        w -= done.lr * (move + 0.01 * w);
        assert_near(t->params[at], w, 1e-6);
    }
    assert_true(fabs(w) > 1e-3);
    pp_trainer_free(t);
    set_free(&s);
}

/* --- stopping and going on ------------------------------------------------------------------------------------ */

static void exact_resumption(void **state)
{
    (void)state;
    struct set s = make_set(PP_TYPE_Q8_0);
    struct pp_error err;
    const char *path = fresh_path("checkpoint.gguf");
    struct pp_trainer *whole = trainer_of(&s, few_steps()), *first = trainer_of(&s, few_steps());
    do_steps(whole, 8);
    do_steps(first, 3);
    assert_ok(pp_trainer_save(first, path, &err), err);
    pp_trainer_free(first);
    struct pp_train_options opt = few_steps();
    opt.n_threads = 1; /* settings that do not affect the result may differ */
    opt.memory = 100u << 20;
    struct pp_trainer *second = trainer_of(&s, opt);
    assert_ok(pp_trainer_load(second, path, &err), err);
    assert_int_equal(pp_trainer_step_number(second), 3);
    do_steps(second, 5);
    assert_memory_equal(second->params, whole->params, param_bytes(whole));
    assert_memory_equal(second->m, whole->m, param_bytes(whole));
    assert_memory_equal(second->v, whole->v, param_bytes(whole));
    pp_trainer_free(second);
    pp_trainer_free(whole);
    set_free(&s);
}

static void refuse_checkpoint(const struct set *s, struct pp_train_options opt, const char *path, enum pp_code code,
                              const char *want)
{
    struct pp_error err = {0};
    struct pp_trainer *t = trainer_of(s, opt);
    enum pp_code got = pp_trainer_load(t, path, &err);
    if (got != code || !strstr(err.text, want))
        fail_msg("code %d, \"%s\" has no \"%s\"", (int)got, err.text, want);
    pp_trainer_free(t);
}

static void foreign_checkpoints(void **state)
{
    (void)state;
    struct set s = make_set(PP_TYPE_F32), other_model = make_set(PP_TYPE_F16);
    struct pp_error err;
    const char *path = fresh_path("checkpoint.gguf"), *damaged = fresh_path("damaged.gguf");
    struct pp_trainer *t = trainer_of(&s, few_steps());
    do_steps(t, 1);
    assert_ok(pp_trainer_save(t, path, &err), err);
    pp_trainer_free(t);
    struct pp_train_options opt = few_steps();
    opt.rank = 5;
    refuse_checkpoint(&s, opt, path, PP_ERR_MISMATCH, "rank was 4 and is now 5");
    opt = few_steps();
    opt.lr = 0.25f;
    refuse_checkpoint(&s, opt, path, PP_ERR_MISMATCH, "lr was 0.005 and is now 0.25");
    opt = few_steps();
    opt.targets = 1;
    refuse_checkpoint(&s, opt, path, PP_ERR_MISMATCH, "targets");
    refuse_checkpoint(&other_model, few_steps(), path, PP_ERR_MISMATCH, "it belongs to a different model");
    s.d->tokens[3]++;
    refuse_checkpoint(&s, few_steps(), path, PP_ERR_MISMATCH, "the examples have changed");
    s.d->tokens[3]--;
    s.v->tokens[3]++;
    refuse_checkpoint(&s, few_steps(), path, PP_ERR_MISMATCH, "the examples for validation have changed");
    s.v->tokens[3]--;
    struct set without = {.m = s.m, .d = s.d};
    refuse_checkpoint(&without, few_steps(), path, PP_ERR_MISMATCH,
                      "validation have changed: 2 examples then, nothing now");
    t = trainer_of(&without, few_steps());
    assert_ok(pp_trainer_save(t, damaged, &err), err);
    pp_trainer_free(t);
    refuse_checkpoint(&s, few_steps(), damaged, PP_ERR_MISMATCH, "have changed: nothing then, 2 examples now");
    refuse_checkpoint(&s, few_steps(), "/nowhere/x.gguf", PP_ERR_NOT_FOUND, "/nowhere/x.gguf");

    char *bytes;
    size_t n;
    assert_ok(pp_read_file(path, 1 << 28, &bytes, &n, &err), err);
    bytes[n - 100] ^= 1;
    assert_ok(pp_write_file(damaged, bytes, n, 0666, &err), err);
    refuse_checkpoint(&s, few_steps(), damaged, PP_ERR_FORMAT, "checksum");
    assert_ok(pp_write_file(damaged, bytes, n / 2, 0666, &err), err);
    refuse_checkpoint(&s, few_steps(), damaged, PP_ERR_FORMAT, "delete it and start again");
    pp_free(bytes);
    refuse_checkpoint(&s, few_steps(), tiny_adapter(&(struct tiny_shape){.n_vocab = 8, .n_embd = 8, .n_layer = 1,
                                                                        .n_head = 1, .n_head_kv = 1, .head_dim = 8,
                                                                        .n_ff = 8, .type = PP_TYPE_F32}, 1),
                      PP_ERR_FORMAT, "not a training checkpoint");
    set_free(&s);
    set_free(&other_model);
}

/* --- whole runs ----------------------------------------------------------------------------------------------- */

struct watcher {
    struct pp_trainer *t;
    struct pp_cancel cancel;
    int64_t stop_at, spoil_at;  /* steps; 0: never */
    const char *blocked;        /* a checkpoint's path, where a folder is in the way up to step 4 */
    const char *blocked_result; /* the same for the adapter at the end */
    int n_reports, n_validations, n_unsaved, n_again;
    int64_t first_step;         /* of the latest report */
    double first_validation, validation;
};

static void watch(void *user, const struct pp_train_progress *p)
{
    struct watcher *w = user;
    if (p->unsaved) {
        w->n_unsaved += strstr(p->unsaved, w->blocked) != NULL;
        return;
    }
    w->n_reports++;
    w->first_step = p->first_step;
    if (w->blocked_result && !p->validated && p->step == 1)
        assert_int_equal(mkdir(w->blocked_result, 0700), 0);
    if (w->blocked && !p->validated && p->step == 1)
        assert_int_equal(mkdir(w->blocked, 0700), 0);
    if (w->blocked && !p->validated && p->step == 5)
        assert_int_equal(rmdir(w->blocked), 0);
    if (p->validated) {
        w->n_validations++;
        w->validation = p->validation;
        w->first_validation = p->step ? w->first_validation : p->validation;
    } else if (p->step && p->step == w->stop_at) {
        pp_cancel_request(&w->cancel);
    } else if (p->step && p->step == w->spoil_at) {
        w->t->params[0] = NAN;
    }
}

/* Reports that there is room again when asked for the second time. */
static bool make_room(void *user, const char *why)
{
    struct watcher *w = user;
    assert_non_null(strstr(why, w->blocked_result));
    if (++w->n_again == 2)
        assert_int_equal(rmdir(w->blocked_result), 0);
    return true;
}

static enum pp_code run_in(const char *folder, const struct set *s, struct pp_train_options opt, struct watcher *w,
                           bool resume, struct pp_train_result *result, struct pp_error *err)
{
    struct pp_trainer *t = w->t = trainer_of(s, opt);
    struct pp_train_run run = {.folder = folder, .resume = resume, .eval_every = 2, .report = watch, .user = w,
                               .again = w->blocked_result ? make_room : NULL, .cancel = &w->cancel};
    enum pp_code code = pp_train(t, &run, result, err);
    pp_trainer_free(t);
    return code;
}

static void same_file(const char *folder, const char *other, const char *name)
{
    struct pp_error err;
    char path[2][512], *bytes[2];
    size_t n[2];
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", i ? other : folder, name);
        assert_ok(pp_read_file(path[i], 1 << 28, &bytes[i], &n[i], &err), err);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    pp_free(bytes[0]);
    pp_free(bytes[1]);
}

static bool has(const char *folder, const char *name)
{
    char path[512];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &st) == 0;
}

static void run_and_resume(void **state)
{
    (void)state;
    struct set s = make_set(PP_TYPE_F32);
    struct pp_error err;
    struct pp_train_result whole, part, rest;
    struct watcher w = {0};
    const char *straight = fresh_path("straight"), *broken = fresh_path("broken");
    assert_ok(run_in(straight, &s, few_steps(), &w, false, &whole, &err), err);
    assert_int_equal(whole.steps, 8);
    assert_int_equal(w.n_validations, 5); /* before training, and after steps 2, 4, 6 and 8 */
    assert_int_equal(w.n_reports, 13);
    assert_int_equal(w.first_step, 0);
    assert_true(whole.first_validation == w.first_validation && whole.validation == w.validation);
    assert_true(whole.validation < whole.first_validation - 0.05);
    assert_true(has(straight, "adapter_config.json") && has(straight, "adapter_model.safetensors"));
    assert_false(has(straight, pp_train_checkpoint));
    char gguf[64];
    snprintf(gguf, sizeof gguf, "%s.gguf", strrchr(straight, '/') + 1);
    assert_true(has(straight, gguf));

    w = (struct watcher){.stop_at = 5};
    assert_int_equal(run_in(broken, &s, few_steps(), &w, false, &part, &err), PP_ERR_CANCELLED);
    assert_non_null(strstr(err.text, "--continue"));
    assert_non_null(strstr(err.text, "step 5 of 8"));
    assert_int_equal(part.steps, 5);
    assert_true(has(broken, pp_train_checkpoint));
    assert_false(has(broken, "adapter_config.json"));
    w = (struct watcher){0};
    assert_int_equal(run_in(broken, &s, few_steps(), &w, false, &rest, &err), PP_ERR_USAGE); /* only if asked to */
    assert_non_null(strstr(err.text, "--continue"));
    assert_ok(run_in(broken, &s, few_steps(), &w, true, &rest, &err), err);
    assert_int_equal(w.first_step, 5); /* the remaining time is estimated from this run's steps */
    assert_int_equal(rest.steps, 8);
    assert_true(rest.first_loss == whole.first_loss && rest.first_validation == whole.first_validation);
    assert_true(rest.last_loss == whole.last_loss && rest.validation == whole.validation);
    same_file(straight, broken, "adapter_model.safetensors");
    assert_false(has(broken, pp_train_checkpoint));
    assert_int_equal(run_in(broken, &s, few_steps(), &w, true, &rest, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "no training to continue"));
    set_free(&s);
}

/* An existing adapter or model in the folder is never overwritten, and no other training can use the folder at the same
 * time. */
static void folder_in_use(void **state)
{
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors", NULL};
    (void)state;
    struct set s = make_set(PP_TYPE_F32);
    struct pp_error err;
    struct pp_train_result r;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct watcher w = {0};
        const char *folder = fresh_path("used");
        char path[600];
        snprintf(path, sizeof path, "%s/%s%s", folder, names[i] ? names[i] : strrchr(folder, '/') + 1,
                 names[i] ? "" : ".gguf");
        assert_int_equal(mkdir(folder, 0700), 0);
        assert_ok(pp_write_file(path, "mine", 4, 0600, &err), err);
        assert_int_equal(run_in(folder, &s, few_steps(), &w, false, &r, &err), PP_ERR_USAGE);
        if (!strstr(err.text, "which the training would overwrite") || !strstr(err.text, strrchr(path, '/') + 1))
            fail_msg("\"%s\" does not name %s", err.text, path);
        assert_int_equal(w.n_reports, 0);
        assert_false(has(folder, pp_train_checkpoint));
    }
    struct watcher w = {0};
    const char *folder = fresh_path("locked");
    assert_int_equal(mkdir(folder, 0700), 0);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(run_in(folder, &s, few_steps(), &w, false, &r, &err), PP_ERR_BUSY);
    assert_non_null(strstr(err.text, "another pippin is writing to"));
    close(fd);
    assert_ok(run_in(folder, &s, few_steps(), &w, false, &r, &err), err);
    set_free(&s);
}

static void loss_is_no_number(void **state)
{
    (void)state;
    struct set s = make_set(PP_TYPE_F32);
    struct pp_error err;
    struct pp_train_result r;
    struct watcher w = {.spoil_at = 3};
    const char *folder = fresh_path("spoilt");
    assert_int_equal(run_in(folder, &s, few_steps(), &w, false, &r, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "step 4 is NaN or infinite"));
    assert_non_null(strstr(err.text, "last checkpoint remains"));
    assert_int_equal(r.steps, 3);
    w = (struct watcher){0};
    assert_ok(run_in(folder, &s, few_steps(), &w, true, &r, &err), err); /* from step 2 on */
    assert_int_equal(r.steps, 8);
    set_free(&s);
}

/* A disk that takes no more: what was there stays, and the error says what could not be written. */
static void full_disk(void **state)
{
    (void)state;
    struct set s = make_set(PP_TYPE_F32);
    struct pp_error err;
    const char *path = fresh_path("checkpoint.gguf"), *folder = fresh_path("full");
    struct rlimit old, tight;
    struct pp_trainer *t = trainer_of(&s, few_steps());
    do_steps(t, 1);
    assert_ok(pp_trainer_save(t, path, &err), err);
    float *before = pp_malloc(param_bytes(t));
    assert_non_null(before);
    memcpy(before, t->params, param_bytes(t));
    do_steps(t, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    tight = (struct rlimit){.rlim_cur = 4096, .rlim_max = old.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    enum pp_code saved = pp_trainer_save(t, path, &err), peft = pp_trainer_write_peft(t, folder, NULL);
    const char *mine = fresh_path("mine"), *yours = fresh_path("yours");
    struct pp_train_result r;
    struct pp_error begun;
    struct watcher w = {0};
    assert_int_equal(mkdir(yours, 0700), 0);
    enum pp_code trained = run_in(mine, &s, few_steps(), &w, false, &r, &begun);
    enum pp_code again = run_in(yours, &s, few_steps(), &w, false, &r, &begun);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    assert_true(trained == PP_ERR_IO && again == PP_ERR_IO);
    assert_non_null(strstr(begun.text, "for the adapter"));
    assert_int_not_equal(access(mine, F_OK), 0); /* no empty folder is left either */
    assert_int_equal(rmdir(yours), 0);
    assert_int_equal(saved, PP_ERR_IO);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(peft, PP_ERR_IO);
    assert_false(has(folder, "adapter_config.json"));
    char config[600]; /* where this cannot be written, the weights are not either: they would be useless without it */
    snprintf(config, sizeof config, "%s/adapter_config.json", folder);
    assert_int_equal(mkdir(config, 0700), 0);
    assert_int_equal(pp_trainer_write_peft(t, folder, NULL), PP_ERR_IO);
    assert_false(has(folder, "adapter_model.safetensors"));
    pp_trainer_free(t);
    t = trainer_of(&s, few_steps());
    assert_ok(pp_trainer_load(t, path, &err), err);
    assert_memory_equal(t->params, before, param_bytes(t));
    pp_free(before);
    pp_trainer_free(t);
    set_free(&s);
}

/* A checkpoint that cannot be written does not end the training: the next one may be, and the adapter. */
static void goes_on_without_checkpoint(void **state)
{
    (void)state;
    struct set s = make_set(PP_TYPE_F32);
    struct pp_error err;
    struct pp_train_result whole, r;
    const char *straight = fresh_path("saved"), *folder = fresh_path("unsaved");
    char path[600];
    struct watcher w = {0};
    assert_ok(run_in(straight, &s, few_steps(), &w, false, &whole, &err), err);
    snprintf(path, sizeof path, "%s/%s", folder, pp_train_checkpoint);
    w = (struct watcher){.blocked = path};
    assert_ok(run_in(folder, &s, few_steps(), &w, false, &r, &err), err);
    assert_int_equal(w.n_unsaved, 2); /* after steps 2 and 4 of 8 */
    assert_int_equal(w.n_reports, 13);
    same_file(straight, folder, "adapter_model.safetensors");
    assert_false(has(folder, pp_train_checkpoint));
    folder = fresh_path("unwritten"); /* at the end room may be made */
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    w = (struct watcher){.blocked_result = path};
    assert_ok(run_in(folder, &s, few_steps(), &w, false, &r, &err), err);
    assert_int_equal(w.n_again, 2);
    same_file(straight, folder, "adapter_model.safetensors");
    set_free(&s);
}

static void bad_options(void **state)
{
    (void)state;
    struct set s = make_set(PP_TYPE_F32);
    struct pp_error err;
    struct pp_trainer *t;
    unsigned targets;
    assert_ok(pp_train_targets_parse("q, v_proj down", &targets, &err), err);
    assert_int_equal(targets, 1u << PP_TRAIN_Q | 1u << PP_TRAIN_V | 1u << PP_TRAIN_DOWN);
    assert_ok(pp_train_targets_parse("all", &targets, &err), err);
    assert_int_equal(targets, 127);
    assert_int_equal(pp_train_targets_parse("q,kq", &targets, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "\"kq\""));
    assert_non_null(strstr(err.text, "gate"));
    assert_int_equal(pp_train_targets_parse(" ,", &targets, &err), PP_ERR_USAGE);
    for (int i = 0; i < 8; i++) {
        struct pp_train_options opt = few_steps();
        opt.rank = i == 0 ? 0 : 4;
        opt.alpha = i == 1 ? 0 : 8;
        opt.targets = i == 2 ? 1u << PP_TRAIN_TARGETS : 1;
        opt.lr = i == 3 ? NAN : 1e-3f;
        opt.warmup = i == 4 ? 2 : 0;
        opt.batch = i == 5 ? 0 : 1;
        opt.steps = i == 6 ? -1 : 1;
        opt.kernels = i == 7 ? "none" : NULL;
        assert_int_equal(pp_trainer_new(s.m, s.d, s.v, &opt, &t, &err), PP_ERR_USAGE);
        assert_null(t);
    }
    struct pp_train_data *one = made_up(1, 320), *none;
    assert_int_equal(pp_train_data_split(one, 0.5, 0, &none, &err), PP_ERR_USAGE);
    pp_train_data_free(one);
    set_free(&s);
    struct tiny_shape small = tiny_shape(PP_TYPE_F32);
    small.n_ctx = 16;
    struct set too_long = {.m = open_model(tiny_model(&small)), .d = made_up(11, small.n_vocab)};
    struct pp_train_options opt = few_steps();
    assert_int_equal(pp_trainer_new(too_long.m, too_long.d, NULL, &opt, &t, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "--max-length"));
    /* Examples for validation must fit into the model's context, too. */
    static const int32_t tokens[] = {4, 5, 6, 7};
    static const uint8_t learnt[] = {0, 1, 1, 1};
    too_long.v = too_long.d;
    too_long.d = pp_calloc(1, sizeof *too_long.d);
    assert_non_null(too_long.d);
    assert_ok(pp_train_data_add(too_long.d, tokens, learnt, 4, 16, &err), err);
    assert_int_equal(pp_trainer_new(too_long.m, too_long.d, too_long.v, &opt, &t, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "--max-length"));
    set_free(&too_long);
}

/* Every allocation that fails is an error, and nothing is lost. */
static void out_of_memory(void **state)
{
    (void)state;
    struct set s = make_set(PP_TYPE_F32);
    const char *path = fresh_path("checkpoint.gguf"), *folder = fresh_path("oom");
    for (uint64_t nth = 1;; nth++) {
        struct pp_error err;
        struct pp_trainer *t = NULL;
        struct pp_train_options opt = few_steps();
        pp_mem_fail_at(nth, 0);
        enum pp_code code = pp_trainer_new(s.m, s.d, s.v, &opt, &t, &err);
        if (!code)
            code = pp_trainer_save(t, path, &err);
        if (!code)
            code = pp_trainer_write_peft(t, folder, &err);
        pp_mem_fail_at(0, 0);
        pp_trainer_free(t);
        assert_true(code == PP_OK || code == PP_ERR_NOMEM || code == PP_ERR_IO);
        if (code == PP_OK && nth > 20)
            break;
        assert_true(nth < 2000);
    }
    set_free(&s);
}

/* --- the bundled model learns verse --------------------------------------------------------------------------- */

static void widen_to(const struct pp_tensor *from, float *to)
{
    for (int64_t r = 0; r < from->ne[1]; r++)
        pp_dequantize_row(from->type,
                          (const uint8_t *)from->data + (size_t)r * pp_type_row_bytes(from->type, from->ne[0]),
                          to + r * from->ne[0], from->ne[0]);
}

/* Puts the bundled adapter in place of what is being trained: it has the same rank, alpha and projections. */
static void take_bard(struct pp_trainer *t)
{
    static const char *const kinds[PP_TRAIN_TARGETS] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                                        "ffn_gate", "ffn_up", "ffn_down"};
    struct pp_error err;
    struct pp_adapter_file *f;
    size_t found = 0;
    assert_ok(pp_adapter_file_open("engine/starter/bard.gguf", &f, &err), err);
    for (int l = 0; l < t->n_layers; l++)
        for (int i = 0; i < PP_TRAIN_TARGETS; i++) {
            const struct pp_train_linear *lin = &t->layers[l].linear[i];
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, kinds[i]);
            for (size_t k = 0; k < pp_adapter_file_n(f); k++) {
                const struct pp_adapter_target *from = pp_adapter_file_at(f, k);
                if (strcmp(from->name, name) != 0)
                    continue;
                assert_int_equal(from->rank, t->opt.rank);
                assert_true(from->scale == t->scale);
                widen_to(&from->a, t->params + lin->a);
                widen_to(&from->b, t->params + lin->b);
                found++;
            }
        }
    assert_int_equal(found, 56);
    pp_adapter_file_close(f);
}

/* Trains the bundled model on some sonnets and measures the loss on others: without an adapter, with bard, which learnt
 * Shakespeare's plays and no sonnet, and after training. */
static void learn_verse(struct pp_train_options opt, size_t n_validation, double loss[3])
{
    struct pp_error err;
    struct pp_train_data_options data = {.max_tokens = 128};
    struct set s = {.m = open_model(starter)};
    assert_ok(pp_train_data_read(s.m, "tests/data/sonnets.jsonl", &data, &s.d, &err), err);
    assert_ok(pp_train_data_read(s.m, "tests/data/sonnets-val.jsonl", &data, &s.v, &err), err);
    assert_int_equal(s.d->n, 184);
    assert_int_equal(s.v->n, 32);
    s.v->n = n_validation;
    s.v->info.n_learnt = 0;
    for (size_t i = 0; i < s.v->n; i++)
        s.v->info.n_learnt += (size_t)s.v->examples[i].n_learnt;
    struct pp_trainer *t = trainer_of(&s, opt);
    assert_ok(pp_trainer_validate(t, NULL, NULL, &loss[0], &err), err);
    take_bard(t);
    assert_ok(pp_trainer_validate(t, NULL, NULL, &loss[1], &err), err);
    pp_train_init_params(t);
    do_steps(t, (int)t->info.n_steps);
    assert_ok(pp_trainer_validate(t, NULL, NULL, &loss[2], &err), err);
    pp_trainer_free(t);
    set_free(&s);
}

/* 8 steps of 4 examples, and 4 others to see what they brought: from about 10.5, as the model never met any verse, to
 * less than 7. */
static void learns_verse(void **state)
{
    (void)state;
    struct pp_train_options opt = pp_train_options_default();
    double loss[3];
    opt.batch = 4;
    opt.steps = 8;
    opt.lr = 3e-3f;
    learn_verse(opt, 4, loss);
    if (!(loss[0] > 9 && loss[2] < 7))
        fail_msg("the validation loss went from %g to %g", loss[0], loss[2]);
}

/* Minutes: for `make test-long`. Better than bard, which knows the manner, but not the form. */
static void learns_verse_well(void **state)
{
    (void)state;
    struct pp_train_options opt = pp_train_options_default();
    double loss[3];
    opt.lr = 1e-3f;
    learn_verse(opt, 32, loss);
    printf("validation loss: %.3f without an adapter, %.3f with bard, %.3f after training\n", loss[0], loss[1],
           loss[2]);
    if (!(loss[2] < 4.5 && loss[2] < loss[1] - 0.3 && loss[1] < loss[0]))
        fail_msg("the validation loss went from %g to %g; bard's is %g", loss[0], loss[2], loss[1]);
}

TEST_GROUP(train)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_long_contexts), cmocka_unit_test(uneven_layers),
        cmocka_unit_test(logits_of_tiny_models), cmocka_unit_test(logits_of_golden_models),
        cmocka_unit_test(threads_and_seeds), cmocka_unit_test(accumulation), cmocka_unit_test(rates),
        cmocka_unit_test(adamw), cmocka_unit_test(exact_resumption), cmocka_unit_test(foreign_checkpoints),
        cmocka_unit_test(run_and_resume), cmocka_unit_test(folder_in_use), cmocka_unit_test(loss_is_no_number),
        cmocka_unit_test(full_disk), cmocka_unit_test(goes_on_without_checkpoint), cmocka_unit_test(bad_options),
        cmocka_unit_test(out_of_memory), cmocka_unit_test(learns_verse),
    };
    const struct CMUnitTest long_ones[] = {cmocka_unit_test(learns_verse_well)};
    int failed = cmocka_run_group_tests_name("train", tests, NULL, NULL);
    if (getenv("PIPPIN_LONG"))
        failed += cmocka_run_group_tests_name("train_long", long_ones, NULL, NULL);
    return failed;
}
