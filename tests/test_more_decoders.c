/* test_more_decoders.c - further families, tested as in test_folder_decoders.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/arch/arch.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/safetensors.h"
#include "engine/source.h"
#include "src/cmd_common.h"
#include "src/paths.h"
#include "tests/adapter_folder.h"
#include "tests/decoder_checks.h"
#include "tests/hymba_model.h"
#include "tests/passes.h"
#include "tests/sambay_model.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* BioGPT, with scaled embeddings and without. */
static void biogpt(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("biogpt");
    const char *folder = check_decoder(&s);
    struct pp_model *m;
    struct pp_error err;
    assert_tensor(folder, "biogpt.layers.1.self_attn.out_proj.bias", 1, s.n_embd);
    s.embd_scale = 0;
    s.tied = false;
    folder = check_decoder(&s);
    assert_tensor(folder, "output_projection.weight", 2, s.n_embd);
    s.epsilon = 1e-12f; /* given in config.json, but not used by any norm */
    struct decoder *d = decoder_make(&s);
    assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "epsilon"));
    decoder_free(d);
    s.epsilon = 1e-5f;
    s.embd_scale = 3;
    d = decoder_make(&s);
    assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "embedding_scale"));
    decoder_free(d);
}

/* ZAYA1: convolved queries and keys, values partly from the previous position, a router whose state is carried from
 * layer to layer; windows in some layers, with a RoPE of their own. */
static void zaya(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("zaya");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.qkv_proj.conv_qk_depthwise.weight", 3, 2);
    assert_tensor(folder, "model.layers.1.self_attn.qkv_proj.conv_qk_grouped.weight", 3, 2);
    assert_tensor(folder, "model.layers.0.self_attn.qk_norm.temp", 1, s.n_head_kv);
    assert_tensor(folder, "model.layers.2.mlp.experts.gate_up_proj", 3, s.n_embd);
    assert_tensor(folder, "model.layers.2.mlp.gate.balancing_biases", 1, s.n_expert + 1);
    assert_tensor(folder, "model.layers.0.post_mlp_residual_scale.residual_bias", 1, s.n_embd);
    assert_tensor(folder, "model.input_hidden_states_scale", 1, s.n_embd);
    s.window = 7;
    s.wide = 2;
    s.base = 500;
    s.say_windows = true;
    s.n_layer = 4;
    s.tied = false;
    check_decoder(&s);
}

/* LoRA adapters of ZAYA's projections, by PEFT's names. */
static void lora_of_zaya(void **state)
{
    (void)state;
    const struct decoder_shape s = decoder_shape("zaya");
    struct decoder *d = decoder_make(&s);
    struct folder f = {.random = 5};
    const char *file = decoder_write(d), *folder = fresh_path("folder");
    struct pp_error err;
    assert_ok(pp_convert_to_folder(file, folder, &(struct pp_convert_options){0}, &err), err);
    merge_lora(d, "blk.0.attn_q.weight", &f, "self_attn.qkv_proj.q_proj", s.n_head * s.head_dim, 4, 2);
    merge_lora(d, "blk.0.attn_v_last.weight", &f, "self_attn.qkv_proj.v_proj_delayed", s.head_dim, 4, 2);
    merge_lora(d, "blk.0.ffn_router_2.weight", &f, "mlp.gate.router_mlp.fc2", s.n_router, 4, 2);
    const char *path = folder_write_peft(&f, "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8,"
                                             "\"target_modules\": [\"q_proj\", \"v_proj_delayed\", \"fc2\"]}");
    expect_adapted(d, file, path, 1e-4);
    expect_adapted(d, folder, path, 1e-3);
    folder_empty(&f);
    decoder_free(d);
}

/* Quantising ZAYA leaves out the router and tensors that are applied element by element. */
static void quantised_zaya(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("zaya");
    s.n_embd = 64;
    s.head_dim = s.n_router = 32;
    s.rope_dim = 16;
    check_quantised_folder(&s);
    struct decoder *d = decoder_make(&s);
    const char *file = decoder_write(d), *small = fresh_path("small.gguf");
    static const struct {
        const char *name;
        uint32_t type;
    } kinds[] = {{"blk.1.attn_qk_conv.weight", PP_TYPE_F32}, {"blk.1.ffn_router_1.weight", PP_TYPE_Q8_0},
                 {"blk.1.attn_q.weight", PP_TYPE_Q4_0},      {"blk.1.attn_qk_mix.weight", PP_TYPE_Q4_0},
                 {"blk.1.ffn_up_exps.weight", PP_TYPE_Q4_0}, {"blk.1.ffn_gate_inp.weight", PP_TYPE_F32}};
    struct pp_gguf *g;
    struct pp_model *m;
    struct pp_error err;
    assert_ok(pp_quantize_file(file, small, "Q4_0", NULL, &err), err);
    assert_ok(pp_gguf_open(small, &g, &err), err);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        assert_int_equal(pp_gguf_tensor(g, kinds[i].name)->type, kinds[i].type);
    pp_gguf_close(g);
    assert_ok(pp_model_open(small, &m, &err), err);
    pp_model_close(m);
    decoder_free(d);
}

/* Step 3: low-rank queries and a single KV head. */
static void step3(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("step3_text");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.wq.weight", 2, s.q_rank);
    assert_tensor(folder, "model.layers.0.self_attn.inter_norm.weight", 1, s.q_rank);
    assert_tensor(folder, "model.layers.1.moe.up_proj.weight", 3, s.n_embd);
    assert_config(folder, "moe_layers_enum", "0,1");
    s.n_head_kv = 2;
    struct decoder *d = decoder_make(&s);
    struct pp_model *m;
    struct pp_error err;
    assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "heads of keys"));
    decoder_free(d);
}

/* Phi 4 mini Flash: from a file, from folders with one window or one for each layer, and from a file converted from
 * such a folder. Writing folders is not supported. */
static void phi4flash(void **state)
{
    static const char *const windows[] = {"11", "[null, 11, null, 11, null, null, null, null]"};
    int32_t ids[SMALL_TEXT];
    double *want = doubles(SMALL_TEXT * SAMBAY_VOCAB);
    const char *made = fresh_path("sambay-made.gguf"), *quantised = fresh_path("sambay-q8_0.gguf");
    struct pp_source *source;
    struct pp_error err;
    (void)state;
    sambay_make();
    small_text(ids, SAMBAY_VOCAB);
    sambay_compute(ids, SMALL_TEXT, want);
    const char *file = sambay_file();
    assert_logits(want, SAMBAY_VOCAB, file);
    assert_same_bits(file, PP_KV_F32);
    assert_goes_back(file, SAMBAY_VOCAB);
    assert_resumes(file, SAMBAY_VOCAB);
    for (int i = 0; i < 2; i++)
        assert_logits(want, SAMBAY_VOCAB, sambay_folder(windows[i]));
    const char *folder = sambay_folder(windows[0]);
    assert_ok(pp_convert_to_gguf(folder, made, &(struct pp_convert_options){0}, &err), err);
    assert_logits(want, SAMBAY_VOCAB, made);
    assert_ok(pp_quantize_file(made, quantised, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    assert_true(small_likeness(quantised, NULL, want, SAMBAY_VOCAB) > 0.99);
    assert_int_not_equal(pp_convert_to_folder(made, fresh_path("sambay-no"), &(struct pp_convert_options){0}, &err),
                         PP_OK);
    folder = sambay_folder("[null, 11, null, 11, null, 11, null, null]"); /* also for the shared cache's layer */
    assert_int_equal(pp_source_open(folder, &source, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "sliding_window has 11 for layer 5"));
    sambay_drop();
    pp_free(want);
}

/* Texts longer than a chunk of attention, with windows that begin in any of two or three chunks: with few rows,
 * threads divide the chunks among themselves. */
static void assert_hymba_long(const char *file)
{
    enum { LONG = 400 };
    static const struct {
        int n_threads, rows;
    } manners[] = {{1, 256}, {4, 1}, {4, 7}, {3, 50}};
    int32_t ids[LONG];
    double *want = doubles(LONG * HYMBA_VOCAB);
    float *got = pp_calloc(LONG * HYMBA_VOCAB, sizeof *got), *first = pp_calloc(LONG * HYMBA_VOCAB, sizeof *got);
    for (int i = 0; i < LONG; i++)
        ids[i] = i < HYMBA_START ? HYMBA_VOCAB + i : (i * 37 + i / 7) % HYMBA_VOCAB;
    hymba_compute(ids, LONG, want);
    for (size_t k = 0; k < sizeof manners / sizeof *manners; k++) {
        const struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = manners[k].n_threads, .n_ctx = LONG,
                                              .kv_memory = 256u << 20};
        struct pp_model *m;
        struct pp_engine *e;
        struct pp_seq *s;
        struct pp_error err;
        assert_ok(pp_model_open(file, &m, &err), err);
        assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
        assert_ok(pp_seq_new(e, &s, &err), err);
        run_in_passes(e, s, ids, LONG, manners[k].rows, k ? got : first);
        for (int i = 0; i < LONG * HYMBA_VOCAB && !k; i++)
            if (!(fabs((double)first[i] - want[i]) <= 1e-4 * fmax(1, fabs(want[i]))))
                fail_msg("token %d behind position %d: %g, not %g", i % HYMBA_VOCAB, i / HYMBA_VOCAB,
                         (double)first[i], want[i]);
        if (k)
            assert_memory_equal(got, first, LONG * HYMBA_VOCAB * sizeof *got);
        const struct pp_stats *stats = pp_engine_stats(e); /* besides the window only the meta tokens are kept */
        int windowed = 0;
        for (int t = 0; t < stats->n_tiers && manners[k].rows == 1; t++) {
            windowed += stats->tiers[t].window == HYMBA_WINDOW;
            if (stats->tiers[t].window == HYMBA_WINDOW)
                assert_in_range(stats->tiers[t].pages_used, 2, 3);
        }
        assert_true(manners[k].rows != 1 || windowed > 0);
        pp_seq_free(s);
        pp_engine_free(e);
        pp_model_close(m);
    }
    pp_free(first);
    pp_free(got);
    pp_free(want);
}

/* Commands that evaluate a text put the meta tokens before it, and do not count them. */
static void assert_hymba_commands(const char *file, const int32_t *ids, const double *want)
{
    enum { TEXT = SMALL_TEXT - HYMBA_START };
    struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = 1, .kv_memory = 64u << 20, .n_ctx = TEXT};
    struct pp_paths paths = {0};
    struct pp_cli_model m = {.chunks = true};
    struct pp_seq *s;
    struct pp_error err;
    float *got = pp_calloc(TEXT * HYMBA_VOCAB, sizeof *got);
    struct pp_cli_rows rows = {.values = got, .n_vocab = HYMBA_VOCAB};
    assert_ok(pp_cli_model_open(&m, &paths, file, &opt, &err), err);
    assert_int_equal(pp_model_info(m.model)->n_meta_tokens, HYMBA_START);
    for (int i = 0; i < 2; i++) {
        assert_ok(pp_seq_new(m.engine, &s, &err), err);
        assert_ok(pp_cli_feed(m.engine, s, ids + HYMBA_START, TEXT, 0, pp_cli_store_row, &rows, NULL, &err), err);
        for (int k = 0; k < TEXT * HYMBA_VOCAB; k++)
            assert_true(fabs((double)got[k] - want[HYMBA_START * HYMBA_VOCAB + k]) < 1e-3);
        pp_seq_free(s);
    }
    pp_cli_model_close(&m);
    pp_free(got);
}

/* An adapter that is invoked by tokens of the text acts from there on, and never on the meta tokens. */
static void assert_hymba_invoked(const char *file)
{
    enum { TEXT = 40, AT = 20, RANK = 2 };
    static const char *const ends[] = {"lora_A.weight", "lora_B.weight"};
    struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = 1, .kv_memory = 64u << 20, .n_ctx = TEXT};
    struct pp_paths paths = {0};
    struct pp_cli_model m = {.chunks = true};
    struct folder f = {.random = 5};
    struct pp_adapter *a;
    struct pp_seq *s;
    struct pp_error err;
    int32_t ids[TEXT];
    float *logits[2];
    char name[120];
    for (int i = 0; i < TEXT; i++)
        ids[i] = i >= AT && i < AT + 3 ? 7 + i - AT : 11 + i % 30;
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "base_model.model.model.layers.1.moe.experts.0.up_proj.%s", ends[i]);
        folder_add(&f, name, i ? 96 : RANK, i ? RANK : 64, 0, 2);
    }
    assert_ok(pp_cli_model_open(&m, &paths, file, &opt, &err), err);
    assert_ok(pp_adapter_load(m.model, folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4,"
                                                             "\"alora_invocation_tokens\":[7,8,9]}"), &a, &err), err);
    for (int k = 0; k < 2; k++) {
        logits[k] = pp_calloc(TEXT * HYMBA_VOCAB, sizeof **logits);
        struct pp_cli_rows rows = {.values = logits[k], .n_vocab = HYMBA_VOCAB};
        assert_ok(pp_seq_new(m.engine, &s, &err), err);
        assert_ok(pp_seq_set_adapters(s, &(struct pp_adapter_use){a, 1}, k, &err), err);
        assert_ok(pp_cli_feed(m.engine, s, ids, TEXT, 0, pp_cli_store_row, &rows, NULL, &err), err);
        pp_seq_free(s);
    }
    const size_t row = HYMBA_VOCAB * sizeof **logits;
    assert_memory_equal(logits[0], logits[1], AT * row);
    for (int i = AT; i < TEXT; i++)
        assert_memory_not_equal(logits[0] + i * HYMBA_VOCAB, logits[1] + i * HYMBA_VOCAB, row);
    pp_free(logits[0]);
    pp_free(logits[1]);
    pp_adapter_free(a);
    pp_cli_model_close(&m);
    folder_empty(&f);
}

/* Hymba: meta tokens before the text, which all layers see; keys shared by pairs of layers; and the mean of attention
 * and states. */
static void hymba(void **state)
{
    int32_t ids[SMALL_TEXT];
    double *want = doubles(SMALL_TEXT * HYMBA_VOCAB);
    const char *quantised = fresh_path("hymba-q8_0.gguf");
    struct pp_error err;
    (void)state;
    hymba_make();
    small_text(ids, HYMBA_VOCAB);
    for (int i = 0; i < HYMBA_START; i++)
        ids[i] = HYMBA_VOCAB + i;
    hymba_compute(ids, SMALL_TEXT, want);
    const char *file = hymba_file(), *folder = assert_logits_everywhere(want, HYMBA_VOCAB, file);
    assert_tensor(folder, "model.memory_tokens", 2, 64);
    assert_tensor(folder, "model.layers.2.mamba.x_proj.0.weight", 2, 128);
    assert_tensor(folder, "model.layers.1.moe.experts.0.down_proj.weight", 2, 96);
    assert_config(folder, "kv_reuse_group", "2");
    assert_config(folder, "global_attn_idx", "5");
    assert_same_bits(file, PP_KV_F32);
    assert_same_bits(file, PP_KV_Q8);
    assert_goes_back(file, HYMBA_VOCAB);
    assert_resumes(file, HYMBA_VOCAB);
    assert_hymba_long(file);
    assert_hymba_commands(file, ids, want);
    assert_hymba_invoked(file);
    assert_ok(pp_quantize_file(file, quantised, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    assert_true(small_likeness(quantised, NULL, want, HYMBA_VOCAB) > 0.99);
    hymba_drop();
    pp_free(want);
}

/* Adds a tensor of a written folder to t under the name of OLMo's first program, joined to what t already has. */
static void take_as_first(const struct pp_safetensors *from, const char *name, struct pp_tensor *t, char *room)
{
    const struct pp_tensor *one = pp_safetensors_find(from, name);
    assert_non_null(one);
    assert_int_equal(one->type, PP_TYPE_F32);
    memcpy(room + t->size, one->data, one->size);
    const int64_t rows = t->size ? t->ne[1] : 0;
    const char *called = t->name;
    const size_t size = t->size + one->size;
    *t = *one;
    t->name = called;
    t->data = room;
    t->size = size;
    t->ne[1] += rows;
}

static void write_first_olmo(const char *from, const char *to, const struct decoder_shape *s, const char *more)
{
    enum { MOST = 32, ROOM = 1 << 15 };
    static const struct {
        const char *own, *others[4];
    } parts[] = {{"att_proj", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                 {"attn_out", {"self_attn.o_proj"}}, {"ff_proj", {"mlp.up_proj", "mlp.gate_proj"}},
                 {"ff_out", {"mlp.down_proj"}}};
    struct pp_tensor t[MOST] = {{.name = "model.transformer.wte.weight"}, {.name = "model.transformer.ff_out.weight"}};
    char names[MOST][80], path[700], config[900];
    char *room = pp_malloc(MOST * ROOM);
    struct pp_safetensors *old;
    struct pp_error err;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    assert_ok(pp_safetensors_open(path, &old, &err), err);
    take_as_first(old, "model.embed_tokens.weight", &t[n], room);
    if (!s->tied)
        take_as_first(old, "lm_head.weight", &t[n + 1], room + ROOM);
    n += s->tied ? 1 : 2;
    for (int l = 0; l < s->n_layer; l++)
        for (int i = 0; i < 4; i++, n++) {
            snprintf(names[n], sizeof names[n], "model.transformer.blocks.%d.%s.weight", l, parts[i].own);
            t[n] = (struct pp_tensor){.name = names[n]};
            for (const char *const *other = parts[i].others; *other; other++) {
                snprintf(path, sizeof path, "model.layers.%d.%s.weight", l, *other);
                take_as_first(old, path, &t[n], room + n * ROOM);
                assert_true(t[n].size <= ROOM);
            }
        }
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    assert_ok(pp_safetensors_write(path, t, n, &err), err);
    snprintf(config, sizeof config,
             "{\"architectures\": [\"OLMoForCausalLM\"], \"model_type\": \"hf_olmo\", \"d_model\": %d, \"n_heads\": %d,"
             "\"n_kv_heads\": %d, \"n_layers\": %d, \"mlp_hidden_size\": %d, \"max_sequence_length\": %d,"
             "\"vocab_size\": 9, \"embedding_size\": %d, \"activation_type\": \"swiglu\", \"rope\": true,"
             "\"block_type\": \"sequential\", \"layer_norm_type\": \"default\", \"layer_norm_with_affine\": false,"
             "\"include_bias\": false, \"weight_tying\": %s, \"rope_theta\": %g%s}",
             s->n_embd, s->n_head, s->n_head_kv, s->n_layer, 2 * s->n_ff, s->n_ctx, s->n_vocab,
             s->tied ? "true" : "false", (double)DECODER_ROPE_BASE, more);
    snprintf(path, sizeof path, "%s/config.json", to);
    assert_ok(pp_write_file(path, config, strlen(config), 0600, &err), err);
    pp_safetensors_close(old);
    pp_free(room);
}

/* OLMo in the folders of its first program: with clamped q, k and v and an output matrix, and without. */
static void first_olmo(void **state)
{
    struct decoder_shape s = decoder_shape("olmo");
    struct pp_error err;
    (void)state;
    for (int i = 0; i < 2; i++) {
        s.epsilon = 1e-5f;
        s.tied = i;
        s.qkv_clamp = i ? 0 : 0.5f;
        struct decoder *d = decoder_make(&s);
        const char *folder = fresh_path("olmo"), *first = fresh_path("first-olmo"), *again = fresh_path("olmo-again");
        assert_ok(pp_convert_to_folder(decoder_write(d), folder, &(struct pp_convert_options){0}, &err), err);
        assert_int_equal(mkdir(first, 0700), 0);
        write_first_olmo(folder, first, &s, i ? ", \"clip_qkv\": null" : ", \"clip_qkv\": 0.5");
        check_other(&s, first);
        assert_ok(pp_convert_to_folder(first, again, &(struct pp_convert_options){0}, &err), err);
        check_other(&s, again);
        assert_tensor(again, "model.layers.1.self_attn.v_proj.weight", 2, s.n_embd);
        assert_config(again, "architectures", "OlmoForCausalLM");
        decoder_free(d);
    }
}

TEST_GROUP(more_decoders)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(biogpt),
        cmocka_unit_test(zaya),
        cmocka_unit_test(lora_of_zaya),
        cmocka_unit_test(quantised_zaya),
        cmocka_unit_test(step3),
        cmocka_unit_test(phi4flash), cmocka_unit_test(hymba),
        cmocka_unit_test(first_olmo),
    };
    return cmocka_run_group_tests_name("more_decoders", tests, NULL, NULL);
}
