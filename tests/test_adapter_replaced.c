/* test_adapter_replaced.c - adapters that replace tensors of the model: norms, rows of the embedding, whole matrices;
 * and IA3s that scale an input which other matrices also read, so that the matrix's columns are scaled instead. Logits
 * must be those of the folder with the adapter merged in, on that folder and on the file converted from it. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/lora.h"
#include "tests/changed_folder.h"
#include "tests/decoder_model_int.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* --- norms --------------------------------------------------------------------------------------------------- */

/* Adds a norm's replacement to the adapter; returns the vector halfway between it and the model's own. */
static float *replace_norm(struct folder *f, const struct pp_tensor *w)
{
    char name[160];
    snprintf(name, sizeof name, "base_model.model.%s", w->name);
    const float *own = folder_add(f, name, w->ne[0], 0, changed_ends(w->name, ".bias") ? 0.2f : 0.8f, 0.5f);
    float *out = pp_malloc(w->size);
    for (int64_t i = 0; i < w->ne[0]; i++)
        out[i] = ((const float *)w->data)[i] / 2 + own[i] / 2;
    return out;
}

/* Writes the same tensors with LN tuning's names. */
static const char *as_ln_tuning(struct folder *f)
{
    for (int i = 0; i < f->n; i++) {
        char *end = strrchr(f->parts[i].name, '.');
        snprintf(end, 30, ".ln_tuning_layers%s", strcmp(end, ".bias") == 0 ? ".bias" : ".weight");
    }
    return folder_write_peft(f, "{\"peft_type\":\"LN_TUNING\"}");
}

/* Adapters that replace norms' weights and biases, or biases alone. Some families store weights as w - 1. */
static void norms(void **state)
{
    static const struct {
        const char *arch, *names[4];
        bool back; /* GGUF can hold these norms */
    } cases[] = {
        {"orion", {"post_attention_layernorm.weight", "post_attention_layernorm.bias", "model.norm.bias"}, false},
        {"starcoder", {"ln_2.bias", "ln_f.bias"}, false},
        {"nemotron", {"input_layernorm.weight", "model.norm.bias"}, false},
        {"vaultgemma", {"input_layernorm.weight", "model.norm.weight"}, true},
        {"exaone4", {"post_attention_layernorm.weight", "q_norm.weight", "k_norm.weight"}, true},
        {"glm4", {"post_self_attn_layernorm.weight", "post_mlp_layernorm.weight"}, true},
        {"olmoe", {"q_norm.weight", "k_norm.weight"}, true},
        {"ouro", {"input_layernorm_2.weight", "post_attention_layernorm_2.weight"}, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct decoder_shape s = decoder_shape(cases[i].arch);
        struct decoder *d = decoder_make(&s);
        struct folder f = {.random = 8};
        struct pp_error err;
        const int n = SMALL_TEXT * s.n_vocab;
        const char *file = decoder_write(d), *model = fresh_path("model");
        assert_ok(pp_convert_to_folder(file, model, &(struct pp_convert_options){0}, &err), err);
        const char *merged = changed_folder(model, cases[i].names, replace_norm, &f);
        const char *peft = folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"modules_to_save\":[\"norm\"]}");
        float *want = changed_logits(merged, NULL, s.n_vocab), *alone = changed_logits(model, NULL, s.n_vocab);
        assert_true(changed_off(alone, want, n) > 0.01);
        const char *gguf = fresh_path("adapter.gguf"), *again = fresh_path("adapter");
        const struct pp_convert_options base = {.base = file};
        assert_int_equal(pp_convert_to_gguf(peft, gguf, &base, &err), cases[i].back ? PP_OK : PP_ERR_UNSUPPORTED);
        if (cases[i].back)
            assert_ok(pp_convert_to_peft(gguf, again, &base, &err), err);
        const char *tuned = as_ln_tuning(&f);
        const char *const pairs[][2] = {{model, peft}, {file, peft}, {model, tuned}, {file, tuned}, {model, gguf},
                                        {file, again}};
        for (int k = 0; k < (cases[i].back ? 6 : 4); k++) {
            float *got = changed_logits_at(pairs[k][0], pairs[k][1], 0.5f, s.n_vocab);
            if (!(changed_off(got, want, n) < 1e-4))
                fail_msg("%s: %s on %s is %g off", cases[i].arch, pairs[k][1], pairs[k][0], changed_off(got, want, n));
            pp_free(got);
        }
        pp_free(want);
        pp_free(alone);
        folder_empty(&f);
        decoder_free(d);
    }
}

/* Replaced norms, of the stream and of heads, are chosen row by row: a batch gives the same as each row alone. */
static void norms_in_a_batch(void **state)
{
    enum { SETS = 4, ROWS = 3 };
    static const char *const names[] = {"post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"};
    static const float scales[SETS] = {0, 1, -0.5f, 0.25f};
    const struct decoder_shape s = decoder_shape("exaone4");
    struct decoder *d = decoder_make(&s);
    struct folder f = {.random = 9};
    struct pp_error err;
    struct pp_adapter *a;
    struct pp_seq *alone[SETS], *together[SETS];
    struct pp_row rows[SETS * ROWS];
    const size_t bytes = (size_t)s.n_vocab * sizeof(float);
    float *want = pp_malloc(SETS * ROWS * bytes);
    (void)state;
    for (int i = 0; i < 3; i++) {
        char name[160];
        snprintf(name, sizeof name, "base_model.model.model.layers.1.%s.weight", names[i]);
        folder_add(&f, name, i ? s.head_dim : s.n_embd, 0, 0.8f, 0.5f);
    }
    struct running r = run_small(decoder_write(d), NULL);
    const char *peft = folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"modules_to_save\":[\"norm\"]}");
    assert_ok(pp_adapter_load(r.m, peft, &a, &err), err);
    for (int i = 0; i < SETS * ROWS; i++) {
        const int set = i / ROWS;
        const struct pp_adapter_use use = {a, scales[set]};
        if (i % ROWS == 0) {
            assert_ok(pp_seq_new(r.e, &alone[set], &err), err);
            assert_ok(pp_seq_new(r.e, &together[set], &err), err);
            assert_ok(pp_seq_set_adapters(alone[set], &use, 1, &err), err);
            assert_ok(pp_seq_set_adapters(together[set], &use, 1, &err), err);
        }
        rows[i] = (struct pp_row){.seq = alone[set], .token = 5 + 3 * (i % ROWS), .parent = PP_PARENT_PREVIOUS,
                                  .out = PP_OUT_LOGITS};
        assert_ok(pp_step(r.e, &rows[i], 1, NULL, &err), err);
        memcpy(want + i * s.n_vocab, pp_step_output(r.e, 0), bytes);
        rows[i].seq = together[set];
    }
    assert_ok(pp_step(r.e, rows, SETS * ROWS, NULL, &err), err);
    for (int i = 0; i < SETS * ROWS; i++) {
        assert_memory_equal(pp_step_output(r.e, i), want + i * s.n_vocab, bytes);
        if (i >= ROWS)
            assert_memory_not_equal(want + i * s.n_vocab, want + i % ROWS * s.n_vocab, bytes);
    }
    for (int i = 0; i < SETS; i++) {
        pp_seq_free(alone[i]);
        pp_seq_free(together[i]);
    }
    pp_free(want);
    pp_adapter_free(a);
    stop_small(&r);
    folder_empty(&f);
    decoder_free(d);
}

/* Norms that cannot be replaced are refused when the adapter is loaded, and named. */
static void other_norms(void **state)
{
    static const struct {
        const char *arch, *name;
        int64_t rows, n;
        const char *says;
    } cases[] = {
        {"hunyuan-dense", "self_attn.key_layernorm", 12, 0, "blk.0.attn_k_norm.weight, a norm of keys after their"},
        {"chameleon", "self_attn.q_norm", 4, 12, "blk.0.attn_q_norm.weight, of which each head has its own"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct decoder_shape s = decoder_shape(cases[i].arch);
        struct decoder *d = decoder_make(&s);
        struct folder f = {.random = 8};
        struct pp_error err;
        struct pp_model *m;
        struct pp_adapter *a;
        char name[160];
        snprintf(name, sizeof name, "base_model.model.model.layers.0.%s.weight", cases[i].name);
        folder_add(&f, name, cases[i].rows, cases[i].n, 0.8f, 0.5f);
        const char *peft = folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"modules_to_save\":[\"norm\"]}");
        assert_ok(pp_model_open(decoder_write(d), &m, &err), err);
        assert_int_equal(pp_adapter_load(m, peft, &a, &err), PP_ERR_UNSUPPORTED);
        if (!strstr(err.text, cases[i].says) || !strstr(err.text, peft))
            fail_msg("%s: %s", cases[i].arch, err.text);
        pp_model_close(m);
        folder_empty(&f);
        decoder_free(d);
    }
}

/* --- scales of inputs ----------------------------------------------------------------------------------------- */

/* W with its columns scaled: IA3 of a feed-forward part, at a strength. */
static float *scale_inputs_by(struct folder *f, const struct pp_tensor *w, float strength)
{
    char name[160];
    snprintf(name, sizeof name, "base_model.model.%.*s.ia3_l", (int)(strlen(w->name) - strlen(".weight")), w->name);
    const float *scales = folder_add(f, name, 1, w->ne[0], 1, 0.9f);
    float *out = pp_malloc(w->size);
    for (int64_t o = 0; o < w->ne[1]; o++)
        for (int64_t i = 0; i < w->ne[0]; i++)
            out[o * w->ne[0] + i] =
                ((const float *)w->data)[o * w->ne[0] + i] * (1 + strength * (scales[i] - 1));
    return out;
}

static float *scale_inputs(struct folder *f, const struct pp_tensor *w) { return scale_inputs_by(f, w, 1); }
static float *scale_inputs_less(struct folder *f, const struct pp_tensor *w) { return scale_inputs_by(f, w, 0.6f); }

/* An input that is scaled for one matrix keeps its values for its other readers; e.g. that of a scan's steps, which the
 * scan reads itself. */
static void shared_inputs(void **state)
{
    static const char *const steps[] = {".bcdt_proj.weight", NULL};
    const struct decoder_shape s = decoder_shape("plamo2");
    struct decoder *d = decoder_make(&s);
    struct folder f = {.random = 8};
    struct pp_error err;
    const int n = SMALL_TEXT * s.n_vocab;
    const char *file = decoder_write(d), *model = fresh_path("model");
    (void)state;
    assert_ok(pp_convert_to_folder(file, model, &(struct pp_convert_options){0}, &err), err);
    const char *merged = changed_folder(model, steps, scale_inputs, &f);
    const char *peft = folder_write_peft(&f, "{\"peft_type\":\"IA3\",\"feedforward_modules\":[\"bcdt_proj\"]}");
    float *want = changed_logits(merged, NULL, s.n_vocab), *alone = changed_logits(model, NULL, s.n_vocab);
    assert_true(changed_off(alone, want, n) > 0.01);
    float *got = changed_logits(model, peft, s.n_vocab);
    if (!(changed_off(got, want, n) < 1e-4))
        fail_msg("%s on %s is %g off", peft, model, changed_off(got, want, n));
    pp_free(got);
    pp_free(want);
    pp_free(alone);
    folder_empty(&f);
    decoder_free(d);
}

static void check_under(const char *model, const struct changed_on *on, int n_on, const char *merged, int n_vocab)
{
    float *want = changed_logits(merged, NULL, n_vocab), *got = changed_logits_under(model, on, n_on, n_vocab);
    const double off = changed_off(got, want, SMALL_TEXT * n_vocab);
    if (!(off < 1e-4))
        fail_msg("%s with %s, %d on, gives what is %g off", on[0].path, on[n_on - 1].path, n_on, off);
    pp_free(got);
    pp_free(want);
}

static float *replace_matrix(struct folder *f, const struct pp_tensor *w)
{
    char name[160];
    snprintf(name, sizeof name, "base_model.model.%s", w->name);
    const float *values = folder_add(f, name, w->ne[1], w->ne[0], 0, 0.2f);
    float *out = pp_malloc(w->size);
    memcpy(out, values, w->size);
    return out;
}

/* Two IA3s of one shared input, or one together with an adapter that replaces its matrix, are refused with their names,
 * in any order and with others between them, and the set that was on stays on. Two adapters that replace the same
 * matrix are accepted. */
static void check_mixes(const char *model, const struct changed_on *on, const char *whole, const char *lora)
{
    enum { N = 5, MIXES = 7, A = 0, B, W, V, L };
    static const struct {
        int n, use[3];
        bool refused;
    } mixes[MIXES] = {{2, {A, B}, true},     {3, {B, L, A}, true}, {2, {A, W}, true}, {2, {W, A}, true},
                      {3, {W, V, B}, true}, {2, {W, V}, false},   {2, {A, L}, false}};
    const char *const paths[N] = {on[0].path, on[1].path, whole, whole, lora};
    struct running r = run_small(model, NULL);
    struct pp_adapter *a[N];
    struct pp_error err;
    const struct pp_row row = {.seq = r.s, .token = 5, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    for (int i = 0; i < N; i++)
        assert_ok(pp_adapter_load(r.m, paths[i], &a[i], &err), err);
    for (int i = 0; i < MIXES; i++) {
        struct pp_adapter_use uses[3] = {{NULL, 0}};
        for (int k = 0; k < mixes[i].n; k++)
            uses[k] = (struct pp_adapter_use){a[mixes[i].use[k]], 0.5f};
        const struct pp_adapter *first = uses[0].adapter, *last = uses[mixes[i].n - 1].adapter;
        assert_ok(pp_seq_set_adapters(r.s, &(struct pp_adapter_use){a[B], 0.25f}, 1, &err), err);
        pp_seq_truncate(r.s, 0);
        assert_ok(pp_step(r.e, &row, 1, NULL, &err), err);
        const enum pp_code code = pp_seq_set_adapters(r.s, uses, mixes[i].n, &err);
        assert_int_equal(code, mixes[i].refused ? PP_ERR_UNSUPPORTED : PP_OK);
        assert_int_equal(pp_seq_len(r.s), mixes[i].refused);
        assert_int_equal(pp_seq_uses(r.s, a[B]), mixes[i].refused);
        assert_int_equal(pp_seq_uses(r.s, a[mixes[i].use[0]]), !mixes[i].refused || mixes[i].use[0] == B);
        bool conflict = false; /* whether the conflict of two adapters is known beforehand */
        for (int k = 1; k < mixes[i].n; k++)
            for (int j = 0; j < k; j++)
                conflict |= pp_adapter_places_conflict(&pp_adapter_info(uses[j].adapter)->places,
                                                       &pp_adapter_info(uses[k].adapter)->places);
        assert_int_equal(conflict, mixes[i].refused);
        if (mixes[i].refused && !(strstr(err.text, first->name) && strstr(err.text, last->name) &&
                                  strstr(err.text, "switch one of them off")))
            fail_msg("mix %d: %s", i, err.text);
        uses[0].scale = 0; /* strength 0 is the same as absent */
        if (mixes[i].n == 2)
            assert_ok(pp_seq_set_adapters(r.s, uses, 2, &err), err);
    }
    pp_seq_free(r.s);
    r.s = NULL;
    for (int i = 0; i < N; i++)
        pp_adapter_free(a[i]);
    stop_small(&r);
}

/* Two IA3s multiply where the input itself is scaled; where other matrices read that input, only one is allowed. A LoRA
 * together with an IA3 reads the input without its scales. */
static void mixed_inputs(void **state)
{
    static const char *const shared[] = {".bcdt_proj.weight", NULL}, *const own[] = {".down_proj.weight", NULL};
    static const char ia3[] = "{\"peft_type\":\"IA3\",\"feedforward_modules\":[\"bcdt_proj\",\"down_proj\"]}";
    static const char saved[] = "{\"peft_type\":\"LORA\",\"modules_to_save\":[\"bcdt_proj\"]}";
    const struct decoder_shape s = decoder_shape("plamo2");
    struct decoder *d = decoder_make(&s);
    struct pp_error err;
    const char *model = fresh_path("model");
    (void)state;
    assert_ok(pp_convert_to_folder(decoder_write(d), model, &(struct pp_convert_options){0}, &err), err);
    for (int i = 0; i < 2; i++) {
        struct folder f[4] = {{.random = 8}, {.random = 9}, {.random = 10}, {.random = 11}};
        const char *const *names = i ? shared : own;
        const char *once = changed_folder(model, names, scale_inputs_less, &f[0]);
        const char *twice = changed_folder(once, names, scale_inputs, &f[1]);
        const char *beside = changed_folder(once, names, changed_by_lora, &f[2]);
        const struct changed_on on[] = {{folder_write_peft(&f[0], ia3), 0.6f}, {folder_write_peft(&f[1], ia3), 1}};
        const struct changed_on lora[] = {on[0], {folder_write_peft(&f[2], changed_config), 1}};
        check_under(model, on, 1, once, s.n_vocab);
        check_under(model, lora, 2, beside, s.n_vocab);
        changed_folder(model, names, replace_matrix, &f[3]);
        if (i)
            check_mixes(model, on, folder_write_peft(&f[3], saved), lora[1].path);
        else
            check_under(model, on, 2, twice, s.n_vocab);
        for (int k = 0; k < 4; k++)
            folder_empty(&f[k]);
    }
    decoder_free(d);
}

/* --- tokens with embeddings of their own --------------------------------------------------------------------- */

static const int own_ids[] = {9, 2, 30};
enum { OWN = sizeof own_ids / sizeof *own_ids };

static float *replace_tokens(struct folder *f, const struct pp_tensor *w)
{
    char name[160];
    snprintf(name, sizeof name, "base_model.model.%.*s.token_adapter.trainable_tokens_delta",
             (int)(strlen(w->name) - strlen(".weight")), w->name);
    const float *rows = folder_add(f, name, OWN, w->ne[0], 0, 0.5f);
    float *out = pp_malloc(w->size);
    memcpy(out, w->data, w->size);
    for (int i = 0; i < OWN; i++)
        memcpy(out + own_ids[i] * w->ne[0], rows + i * w->ne[0], (size_t)w->ne[0] * sizeof *out);
    return out;
}

/* Tokens that were never trained have zero rows in the embeddings and in the output matrix. */
static void untrain(struct decoder *d)
{
    static const char *const names[] = {"token_embd.weight", "output.weight"};
    for (int i = 0; i < 2 * OWN; i++) {
        struct matrix *m = decoder_find(d, names[i % 2]);
        memset(m->values + own_ids[i / 2] * m->cols, 0, (size_t)m->cols * sizeof *m->values);
    }
}

/* The layout of an adapter that consists of token rows only. */
static const char *as_tokens_alone(struct folder *f)
{
    for (int i = 0; i < f->n; i++)
        strcpy(strstr(f->parts[i].name, ".token_adapter"), ".trainable_tokens_delta");
    return folder_write_peft(f, "{\"peft_type\":\"TRAINABLE_TOKENS\",\"token_indices\":[9, 2, 30]}");
}

/* indices: trainable_token_indices of the configuration. */
static void check_tokens(const char *arch, const char *const *names, const char *indices, bool untrained)
{
    const struct decoder_shape s = decoder_shape(arch);
    struct decoder *d = decoder_make(&s);
    struct folder f = {.random = 8};
    struct pp_error err;
    char text[256];
    const int n = SMALL_TEXT * s.n_vocab;
    if (untrained)
        untrain(d);
    const char *file = decoder_write(d), *model = fresh_path("model");
    snprintf(text, sizeof text, "{\"peft_type\":\"LORA\",\"trainable_token_indices\":%s}", indices);
    assert_ok(pp_convert_to_folder(file, model, &(struct pp_convert_options){0}, &err), err);
    const char *merged = changed_folder(model, names, replace_tokens, &f), *peft = folder_write_peft(&f, text);
    float *want = changed_logits(merged, NULL, s.n_vocab), *alone = changed_logits(model, NULL, s.n_vocab);
    assert_true(changed_off(alone, want, n) > 0.1);
    const char *alike = as_tokens_alone(&f);
    for (int i = 0; i < 4; i++) {
        float *got = changed_logits(i % 2 ? file : model, i < 2 ? peft : alike, s.n_vocab);
        if (!(changed_off(got, want, n) < 1e-5))
            fail_msg("%s: %s is %g off", arch, i % 2 ? file : model, changed_off(got, want, n));
        pp_free(got);
    }
    assert_int_equal(pp_convert_to_gguf(peft, fresh_path("a.gguf"), &(struct pp_convert_options){.base = file}, &err),
                     PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "tokens with rows of their own"));
    pp_free(want);
    pp_free(alone);
    folder_empty(&f);
    decoder_free(d);
}

/* Where output and embeddings are tied, the output changes with them; otherwise it is a module of its own. */
static void own_tokens(void **state)
{
    static const char *const table[] = {"embed_tokens.weight", "wte.weight", NULL};
    static const char *const output[] = {"lm_head.weight", NULL};
    static const char *const both[] = {"wte.weight", "lm_head.weight", NULL};
    (void)state;
    check_tokens("opt", table, "[9, 2, 30]", false);
    check_tokens("qwen", table, "{\"wte\": [9, 2, 30]}", false);
    check_tokens("qwen", output, "{\"lm_head\": [9, 2, 30]}", false);
    check_tokens("qwen", both, "{\"lm_head\": [9, 2, 30], \"transformer.wte\": [9, 2, 30]}", false);
    check_tokens("qwen", table, "{\"wte\": [9, 2, 30]}", true);
}

/* Adapters that differ in the bias of a norm, in one value of a token's row or in the token it is for have different
 * identities. */
static void identities(void **state)
{
    static const struct {
        const char *arch, *config, *name;
        float changed;
    } cases[] = {
        {"orion", "{\"peft_type\":\"LORA\",\"modules_to_save\":[\"norm\"]}", "model.norm.bias", 0},
        {"orion", "{\"peft_type\":\"LORA\",\"modules_to_save\":[\"norm\"]}", "model.norm.bias", 0.25f},
        {"qwen", "{\"peft_type\":\"LORA\",\"trainable_token_indices\":{\"wte\":[9]}}",
         "transformer.wte.token_adapter.trainable_tokens_delta", 0},
        {"qwen", "{\"peft_type\":\"LORA\",\"trainable_token_indices\":{\"wte\":[9]}}",
         "transformer.wte.token_adapter.trainable_tokens_delta", 0.25f},
        {"qwen", "{\"peft_type\":\"LORA\",\"trainable_token_indices\":{\"wte\":[8]}}",
         "transformer.wte.token_adapter.trainable_tokens_delta", 0},
    };
    enum { CASES = sizeof cases / sizeof *cases };
    struct pp_sha256 seen[CASES];
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const struct decoder_shape s = decoder_shape(cases[i].arch);
        struct decoder *d = decoder_make(&s);
        struct folder f = {.random = 9};
        struct pp_adapter *a;
        struct pp_model *m;
        struct pp_error err;
        char name[160];
        snprintf(name, sizeof name, "base_model.model.%s", cases[i].name);
        const bool row = strstr(name, "delta") != NULL;
        folder_add(&f, name, row ? 1 : s.n_embd, row ? s.n_embd : 0, 0, 0.5f);
        f.parts[0].data[7] += cases[i].changed;
        assert_ok(pp_model_open(decoder_write(d), &m, &err), err);
        assert_ok(pp_adapter_load(m, folder_write_peft(&f, cases[i].config), &a, &err), err);
        seen[i] = a->identity;
        for (int k = 0; k < i; k++)
            if (memcmp(&seen[k], &seen[i], sizeof seen[i]) == 0)
                fail_msg("%s: adapters %d and %d have one identity", cases[i].name, k, i);
        pp_adapter_free(a);
        pp_model_close(m);
        folder_empty(&f);
        decoder_free(d);
    }
}

static void bad_tokens(void **state)
{
    static const struct {
        const char *indices, *text;
    } cases[] = {
        {"[9, 2]", "does not name as many"},
        {"[9, 2, 9]", "a list of distinct tokens"},
        {"[9, 2, 1.5]", "a list of distinct tokens"},
        {"[9, 2, -1]", "a list of distinct tokens"},
        {"{\"lm_head\": [9, 2, 30]}", "does not name as many"},
        {"[9, 2, 100000]", "token 100000"},
    };
    const struct decoder_shape s = decoder_shape("qwen");
    struct decoder *d = decoder_make(&s);
    struct folder f = {.random = 8};
    struct running r = run_small(decoder_write(d), NULL);
    struct pp_adapter *a;
    struct pp_error err;
    char text[256];
    (void)state;
    folder_add(&f, "base_model.model.transformer.wte.token_adapter.trainable_tokens_delta", OWN, s.n_embd, 0, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "{\"peft_type\":\"LORA\",\"trainable_token_indices\":%s}", cases[i].indices);
        assert_int_not_equal(pp_adapter_load(r.m, folder_write_peft(&f, text), &a, &err), PP_OK);
        if (!strstr(err.text, cases[i].text))
            fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].text);
    }
    folder_add(&f, "base_model.model.transformer.wte.weight", s.n_vocab, s.n_embd, 0, 1);
    assert_int_equal(pp_adapter_load(r.m, folder_write_peft(&f, text), &a, &err), PP_ERR_UNSUPPORTED);
    folder_empty(&f);
    folder_add(&f, "base_model.model.transformer.wte.weight", s.n_vocab, s.n_embd, 0, 1);
    assert_int_equal(pp_adapter_load(r.m, folder_write_peft(&f, text), &a, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "no tensor for it"));
    folder_empty(&f);
    folder_add(&f, "base_model.model.transformer.ln_f.bias", s.n_embd, 0, 0, 1);
    assert_int_equal(pp_adapter_load(r.m, folder_write_peft(&f, changed_config), &a, &err), PP_ERR_MISMATCH);
    assert_non_null(strstr(err.text, "the bias of output_norm.weight, which"));
    folder_empty(&f);
    stop_small(&r);
    decoder_free(d);
}

TEST_GROUP(adapter_replaced)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),         cmocka_unit_test(norms_in_a_batch), cmocka_unit_test(other_norms),
        cmocka_unit_test(shared_inputs), cmocka_unit_test(mixed_inputs),     cmocka_unit_test(own_tokens),
        cmocka_unit_test(bad_tokens),    cmocka_unit_test(identities),
    };
    return cmocka_run_group_tests_name("adapter_replaced", tests, NULL, NULL);
}
