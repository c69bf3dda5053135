/* test_configs.c - config.json of published models: tests/data/configs.json holds their text, with the numbers that
 * must be read from it, or a word of the error message that refuses it. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/hf.h"
#include "engine/source.h"
#include "tests/hostile.h"
#include "tests/support.h"

/* A folder with this configuration; its two tensors are the embeddings and the output, whose sizes do not matter
 * here. */
static const char *folder_of(const cJSON *config, const char *embeddings)
{
    static char dir[256];
    static int serial;
    char path[300], head[240], data[8 + 256 + 16] = {0}, *text = cJSON_PrintUnformatted(config);
    struct pp_error err;
    snprintf(dir, sizeof dir, "%s/config-%d", test_tmpdir(), serial++);
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    cJSON_free(text);
    const int n = snprintf(head, sizeof head, "{\"%s\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]},"
                           "\"%s\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[8,16]}}", embeddings,
                           strncmp(embeddings, "text_model.", 11) == 0  ? "text_model.lm_head.linear.weight"
                           : strncmp(embeddings, "gpt_neox", 8) == 0    ? "embed_out.weight"
                           : strstr(embeddings, "embeddings.tok_embed") ? "decoder.weight"
                           : strstr(embeddings, "model.encoder")        ? "decoder.weight"
                           : strstr(embeddings, "model.tok_embeddings") ? "output.weight"
                           : strncmp(embeddings, "rwkv.", 5) == 0       ? "head.weight"
                           : strstr(embeddings, "wte.embedding")        ? "model.transformer.wte.new_embedding"
                           : strstr(embeddings, "model.transformer.")   ? "model.transformer.ff_out.weight"
                           : strncmp(embeddings, "biogpt.", 7) == 0     ? "output_projection.weight"
                                                                        : "lm_head.weight");
    const size_t whole = ((size_t)n + 7) / 8 * 8;
    data[0] = (char)(uint8_t)whole;
    memset(data + 8, ' ', whole);
    memcpy(data + 8, head, (size_t)n);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_write_file(path, data, 8 + whole + 16, 0600, &err), err);
    return dir;
}

static const char *embeddings_of(const cJSON *config)
{
    const cJSON *type = cJSON_GetObjectItem(config, "model_type");
    if (strcmp(type->valuestring, "gpt2") == 0 || strcmp(type->valuestring, "exaone") == 0)
        return "transformer.wte.weight";
    if (strcmp(type->valuestring, "gpt_neox") == 0)
        return "gpt_neox.embed_in.weight";
    if (strcmp(type->valuestring, "internlm2") == 0)
        return "model.tok_embeddings.weight";
    if (strcmp(type->valuestring, "falcon") == 0 || strncmp(type->valuestring, "RefinedWeb", 10) == 0)
        return "transformer.word_embeddings.weight";
    if (strcmp(type->valuestring, "nemotron_h") == 0 || strcmp(type->valuestring, "mamba2") == 0 ||
        strcmp(type->valuestring, "mamba") == 0 || strcmp(type->valuestring, "falcon_mamba") == 0 ||
        strcmp(type->valuestring, "xlstm") == 0)
        return "backbone.embeddings.weight";
    if (strcmp(type->valuestring, "lille-130m") == 0)
        return "transformer.tok_embeddings.weight";
    if (strcmp(type->valuestring, "openelm") == 0)
        return "transformer.token_embeddings.weight";
    if (strcmp(type->valuestring, "modernbert") == 0 || strcmp(type->valuestring, "modernbert-decoder") == 0)
        return "model.embeddings.tok_embeddings.weight";
    if (strcmp(type->valuestring, "neobert") == 0)
        return "model.encoder.weight";
    if (strcmp(type->valuestring, "rwkv7") == 0 || cJSON_GetObjectItem(config, "proj_low_rank_dim"))
        return "model.embeddings.weight";
    if (strcmp(type->valuestring, "rwkv6") == 0 || strcmp(type->valuestring, "rwkv") == 0)
        return "rwkv.embeddings.weight";
    if (strcmp(type->valuestring, "openai-gpt") == 0)
        return "tokens_embed.weight";
    if (strcmp(type->valuestring, "ctrl") == 0)
        return "transformer.w.weight";
    if (strcmp(type->valuestring, "opt") == 0)
        return "model.decoder.embed_tokens.weight";
    if (strcmp(type->valuestring, "biogpt") == 0)
        return "biogpt.embed_tokens.weight";
    if (strcmp(type->valuestring, "bloom") == 0)
        return "word_embeddings.weight";
    if (strcmp(type->valuestring, "mpt") == 0 || strcmp(type->valuestring, "gpt_bigcode") == 0 ||
        strcmp(type->valuestring, "qwen") == 0 || strcmp(type->valuestring, "gptj") == 0 ||
        strcmp(type->valuestring, "gpt_neo") == 0 || strcmp(type->valuestring, "codegen") == 0 ||
        strcmp(type->valuestring, "dbrx") == 0)
        return "transformer.wte.weight";
    if (strncmp(type->valuestring, "molmo", 5) == 0)
        return "model.transformer.wte.embedding";
    if (strcmp(type->valuestring, "jvlm") == 0)
        return "model.language_model.embedding.embedding";
    if (strcmp(type->valuestring, "hf_olmo") == 0)
        return "model.transformer.wte.weight";
    if (strcmp(type->valuestring, "telechat") == 0)
        return "transformer.word_embeddings.weight";
    if (strcmp(type->valuestring, "sarvam_moe") == 0 || strcmp(type->valuestring, "bailing_hybrid") == 0)
        return "model.word_embeddings.weight";
    if (strcmp(type->valuestring, "moondream1") == 0)
        return "text_model.transformer.embd.wte.weight";
    if (strcmp(type->valuestring, "embedding_gemma2") == 0)
        return "language_model.embed_tokens.weight";
    return cJSON_GetObjectItem(config, "text_config") ? "language_model.model.embed_tokens.weight"
                                                      : "model.embed_tokens.weight";
}

static double layers_with(const struct pp_hparams *hp, uint8_t bit)
{
    double n = 0;
    for (int64_t l = 0; l < hp->n_layer; l++)
        n += (hp->layer[l] & bit) != 0;
    return n;
}

static double sparse_layers(const struct pp_hparams *hp)
{
    double n = 0;
    for (int64_t l = 0; l < hp->n_layer; l++)
        n += hp->sparsity[l] > 1.6448f && hp->sparsity[l] < 1.6449f;
    return n;
}

/* The number that was read for a name; NAN: the name is unknown. */
static double number_of(const struct pp_source *s, const char *name)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
    const struct {
        const char *name;
        double v;
    } all[] = {
#define ONE(field) {#field, (double)hp->field}
        ONE(n_vocab), ONE(n_embd), ONE(n_layer), ONE(n_head), ONE(n_head_kv), ONE(head_dim), ONE(n_ff),
        ONE(n_ctx_train), ONE(attn_temperature), ONE(window), ONE(parallel), ONE(qk_norm), ONE(attn_scale),
        ONE(qkv_clamp), ONE(attn_softcap),
        ONE(final_softcap), ONE(embd_scale), ONE(residual_scale), ONE(logit_scale), ONE(n_expert), ONE(n_expert_used),
        ONE(v_head_dim),
        ONE(n_ff_expert), ONE(norm_eps), ONE(rope_base), ONE(rope_base_local), ONE(rope_dim), ONE(rope_dim_local),
        ONE(rope_reversed), ONE(lru_width), ONE(lightning), ONE(n_shared_block),
        ONE(adapter_rank), ONE(adapted_attention), ONE(rope_scaling),
        ONE(rope_factor), ONE(rope_low_freq), ONE(rope_high_freq), ONE(rope_orig_ctx), ONE(rope_attn_factor),
        ONE(rope_no_truncate), ONE(expert_no_renorm), ONE(expert_sigmoids), ONE(expert_scale), ONE(n_expert_group),
        ONE(n_expert_group_used), ONE(n_nextn), ONE(two_norms), ONE(alibi), ONE(unit_output), ONE(chunked),
        ONE(kv_lora_rank), ONE(q_lora_rank), ONE(qk_nope_dim), ONE(v_head_dim), ONE(expert_group_largest),
        ONE(n_state_head), ONE(n_state_key_head), ONE(state_key_dim), ONE(state_value_dim), ONE(state_tiled),
        ONE(state_rank), ONE(state_by_head), ONE(rwkv), ONE(dt_bc_norms), ONE(state_eps), ONE(beta_doubled),
        ONE(kda), ONE(dynamic_conv_rank),
        ONE(rwkv4), ONE(localized_filtering), ONE(rwkv6), ONE(rescale_every), ONE(rwkv_qwen), ONE(state_norm),
        {"rwkv_rank_0", (double)hp->rwkv_ranks[0]}, {"rwkv_rank_1", (double)hp->rwkv_ranks[1]},
        {"rwkv_rank_3", (double)hp->rwkv_ranks[3]},
        ONE(n_expert_idle), ONE(idle_output_zero), ONE(router_rank), ONE(convolved_heads),
        ONE(latent_scale), ONE(decay_bound), ONE(attn_res_block), ONE(skip_share),
        {"skips_20", (double)hp->skips[20]}, {"skips_24", (double)hp->skips[24]}, {"skips_48", (double)hp->skips[48]},
        ONE(per_head_gates),
        ONE(conv_taps), ONE(head_dim_local), ONE(rope_n_pairs), ONE(keys_as_values), ONE(n_embd_layer), ONE(n_stream),
        ONE(laurel_rank), ONE(n_embd_expert), ONE(rms_norm), ONE(shared_mean),
        ONE(heads_tiled), ONE(norms_after), ONE(n_meta_tokens), ONE(states_mean),
        {"silent_end", (double)hp->suppressed[0].end},
        {"silent_3_first", (double)hp->suppressed[3].first}, {"silent_3_end", (double)hp->suppressed[3].end},
        ONE(n_local_blocks), ONE(vert_stride), ONE(dense_attn_step), ONE(kv_taps), ONE(post_ln),
        ONE(nonparametric_norms), ONE(no_output_norm), ONE(n_embd_in), ONE(n_embd_out),
        ONE(qkv_pieces), ONE(post_norms), ONE(differential), ONE(n_noise_head), ONE(polynorm_gates), ONE(key_scores),
        ONE(yarn_log_multiplier), ONE(n_loops), ONE(skip_loop_norm), ONE(head_mixture), ONE(n_scan_head),
        ONE(n_value_expert), ONE(n_value_expert_used), ONE(binary_gates),
        ONE(query_scale), ONE(attn_log_length), ONE(dense_parallel), ONE(router_softcap),
        ONE(n_index_head), ONE(index_dim), ONE(index_top_k), ONE(index_neox), ONE(hyper),
        ONE(index_block), ONE(index_n_local), ONE(index_pooled), ONE(stream_mean), ONE(stream_rank),
        ONE(state_sigmoids), ONE(norm_groups), ONE(norm_rank), ONE(state_scale),
        {"hash_size", (double)hp->hashed.size}, {"hash_heads", (double)hp->hashed.heads},
        {"hash_width", (double)hp->hashed.width}, {"hash_taps", (double)hp->hashed.taps},
        {"hash_layer", (double)hp->hashed.layer}, {"hash_end", (double)hp->hashed.end},
        {"hash_parts", (double)hp->hashed.parts}, {"hash_rows_0", (double)hp->hashed.n_rows[0]},
        {"hash_rows_15", (double)hp->hashed.n_rows[15]}, {"hash_multiplier_0", (double)hp->hashed.multiplier[0]},
        {"hash_multiplier_2", (double)hp->hashed.multiplier[2]},
        ONE(compressed), ONE(o_groups), ONE(o_rank), ONE(n_hash_routed_layers),
        ONE(expert_sqrt_softplus), {"compress_first", (double)hp->compress[0]},
        {"compress_third", (double)hp->compress[2]}, {"compress_last", (double)hp->compress[hp->n_layer - 1]},
        ONE(state_groups), ONE(state_silu), ONE(state_rotated), ONE(same_decays), ONE(mlstm),
        ONE(gate_cap), ONE(fused_parts),
        ONE(biased_parts),
        {"written_least", (double)hp->connection.write_eps},
        {"stream_least", (double)hp->connection.eps}, {"stream_most", (double)hp->connection.write_scale},
        {"ngram_size", (double)hp->ngram.size}, {"ngram_splits", (double)hp->ngram.splits},
        {"ngram_base", (double)hp->ngram.base}, {"ngram_end", (double)hp->ngram.end},
        {"stream_rounds", (double)hp->connection.sinkhorn_iters},
        {"expert_bound", (double)hp->expert_bound[hp->n_layer - 1]},
        {"gate_bound", (double)hp->gate_bound[hp->n_layer - 1]},
        {"idle", layers_with(hp, PP_LAYER_PICKED_BEFORE)},
#undef ONE
        {"alpha", (double)hp->stream_scales[PP_STREAM_STATES][0]},
        {"beta", (double)hp->stream_scales[PP_STREAM_STATES][1]},
        {"ff_alpha", (double)hp->stream_scales[PP_STREAM_FF][0]},
        {"wide", layers_with(hp, PP_LAYER_WIDE)}, {"unrotated", layers_with(hp, PP_LAYER_UNROTATED)},
        {"local", layers_with(hp, PP_LAYER_LOCAL_ROPE)}, {"dense", layers_with(hp, PP_LAYER_DENSE)},
        {"recurrent", layers_with(hp, PP_LAYER_RECURRENT)}, {"sharing", layers_with(hp, PP_LAYER_SHARING)},
        {"shared", layers_with(hp, PP_LAYER_SHARED)},
        {"sparse", sparse_layers(hp)},
        {"convolved", layers_with(hp, PP_LAYER_CONVOLVED)},
        {"tied", !pp_source_tensor(s, "output.weight")}, {"activation", (double)hp->activation},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i].v;
    return (double)NAN;
}

static void check_numbers(const char *model, const struct pp_source *s, const cJSON *is)
{
    const cJSON *want;
    cJSON_ArrayForEach(want, is)
    {
        if (strcmp(want->string, "arch") == 0) {
            if (strcmp(pp_source_hparams(s)->arch, want->valuestring) != 0)
                fail_msg("%s is of the family %s", model, pp_source_hparams(s)->arch);
            continue;
        }
        const double v = number_of(s, want->string), w = cJSON_IsNumber(want) ? want->valuedouble : cJSON_IsTrue(want);
        if (!(fabs(v - w) <= 1e-6 * fabs(w)))
            fail_msg("%s: %s is %.9g, not %.9g", model, want->string, v, w);
    }
}

/* A folder that is refused is refused with the same message if it has no weights; otherwise the message says that
 * weights are missing. */
static void check_without_weights(const char *model, const char *folder, const char *word)
{
    char path[300];
    struct pp_error err;
    struct pp_source *s;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_not_equal(pp_source_open(folder, &s, &err), PP_OK);
    if (!strstr(err.text, word ? word : "has no model.safetensors"))
        fail_msg("%s without weights is refused: %s", model, err.text);
}

static void published(void **state)
{
    char *text;
    size_t n;
    struct pp_error err;
    const cJSON *one;
    (void)state;
    assert_ok(pp_read_file("tests/data/configs.json", 1 << 20, &text, &n, &err), err);
    cJSON *all = cJSON_ParseWithLength(text, n);
    pp_free(text);
    assert_true(cJSON_GetArraySize(all) > 60);
    cJSON_ArrayForEach(one, all)
    {
        const char *model = cJSON_GetObjectItem(one, "model")->valuestring;
        const cJSON *config = cJSON_GetObjectItem(one, "config"), *word = cJSON_GetObjectItem(one, "refused");
        const char *folder = folder_of(config, embeddings_of(config));
        struct pp_source *s;
        const enum pp_code code = pp_source_open(folder, &s, &err);
        if (code && (!word || !strstr(err.text, word->valuestring)))
            fail_msg("%s is refused: %s", model, err.text);
        if (!code && word)
            fail_msg("%s is not refused", model);
        if (!code)
            check_numbers(model, s, cJSON_GetObjectItem(one, "is"));
        pp_source_close(s);
        check_without_weights(model, folder, word ? word->valuestring : NULL);
    }
    cJSON_Delete(all);
}

/* Replaces some numbers at random. With `huge`, every second number gets the largest integer, except those of layers:
 * they are read first, and the model would be refused before anything is computed from several numbers. Otherwise one
 * in four gets a value that may only be wrong together with others. */
static void change_some(cJSON *node, bool huge, uint32_t *random)
{
    static const double others[] = {9007199254740991, -9007199254740991, 1099511627776, 2147483647, 1, 0, -1, 3, 0.5};
    enum { OTHERS = sizeof others / sizeof *others };
    for (cJSON *item = node->child; item; item = item->next) {
        *random = *random * 1664525 + 1013904223;
        if (cJSON_IsNumber(item) && huge && *random >> 31 && !(item->string && strstr(item->string, "layer")))
            cJSON_SetNumberHelper(item, others[0]);
        else if (cJSON_IsNumber(item) && !huge && *random >> 30 == 0)
            cJSON_SetNumberHelper(item, others[(*random >> 8) % OTHERS]);
        change_some(item, huge, random);
    }
}

/* Whatever the numbers are, the sanitizers check what is done with them. */
static void hostile_numbers(void **state)
{
    char *text, path[300];
    size_t n;
    struct pp_error err;
    const cJSON *one;
    uint32_t random = 1;
    (void)state;
    assert_ok(pp_read_file("tests/data/configs.json", 1 << 20, &text, &n, &err), err);
    cJSON *all = cJSON_ParseWithLength(text, n);
    pp_free(text);
    cJSON_ArrayForEach(one, all)
    {
        const cJSON *config = cJSON_GetObjectItem(one, "config");
        const char *folder = folder_of(config, embeddings_of(config));
        snprintf(path, sizeof path, "%s/config.json", folder);
        for (int i = 0; i < 2; i++) {
            struct pp_source *s;
            cJSON *other = cJSON_Duplicate(config, true);
            change_some(other, i % 2 > 0, &random);
            text = cJSON_PrintUnformatted(other);
            FILE *f = fopen(path, "w"); /* a thousand times, so without fsync */
            assert_non_null(f);
            fputs(text, f);
            fclose(f);
            if (pp_source_open(folder, &s, &err) == PP_OK)
                pp_source_close(s);
            cJSON_free(text);
            cJSON_Delete(other);
        }
    }
    cJSON_Delete(all);
}

/* Whether the configuration is refused or not matters little: it is read without fault. */
static void try_config(const char *path, const char *folder, const cJSON *config)
{
    struct pp_source *s;
    struct pp_error err;
    char *text = cJSON_PrintUnformatted(config);
    FILE *f = fopen(path, "w"); /* thousands of times, so without fsync */
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    if (pp_source_open(folder, &s, &err) == PP_OK)
        pp_source_close(s);
    cJSON_free(text);
}

/* Lists in place of objects, and objects in place of lists, one at a time. */
static void hostile_containers(void **state)
{
    char *text, path[300];
    size_t n;
    struct pp_error err;
    const cJSON *one;
    (void)state;
    assert_ok(pp_read_file("tests/data/configs.json", 1 << 20, &text, &n, &err), err);
    cJSON *all = cJSON_ParseWithLength(text, n);
    pp_free(text);
    cJSON_ArrayForEach(one, all)
    {
        const cJSON *config = cJSON_GetObjectItem(one, "config");
        const char *folder = folder_of(config, embeddings_of(config));
        snprintf(path, sizeof path, "%s/config.json", folder);
        for (int i = 0; i >= 0; i++) {
            cJSON *other = cJSON_Duplicate(config, true), *node;
            int k = i;
            if ((node = hostile_container(other, &k))) {
                hostile_turn(node, i % 2 > 0 ? PP_MAX_LAYERS + 100 : 0);
                try_config(path, folder, other);
            } else {
                i = -2;
            }
            cJSON_Delete(other);
        }
    }
    cJSON_Delete(all);
}

/* The same for members that no published configuration has as they are here: thousands of members in place of a list,
 * and lists in place of objects, whose items have no names. */
static void hostile_members(void **state)
{
    static const struct {
        const char *head, *member, *begin, *end;
    } cases[] = {
        {"\"model_type\":\"nemotron-nas\"", "\"%d\":1", "\"num_key_value_heads_per_layer\":{", "}"},
        {"\"model_type\":\"nemotron-nas\"",
         "\"%d\":{\"attention\":{\"n_heads_in_group\":1},\"ffn\":{\"ffn_mult\":1}}", "\"block_configs\":{", "}"},
        {"\"model_type\":\"zaya\",\"sliding_window\":4", "\"%d\":\"hybrid_sliding\"", "\"layer_types\":{",
         "}"},
        {"\"model_type\":\"chameleon\"", "%d", "\"vocabulary_map\":[", "]"},
    };
    const cJSON *nothing = cJSON_CreateObject();
    const char *folder = folder_of(nothing, "model.embed_tokens.weight");
    char path[300];
    (void)state;
    snprintf(path, sizeof path, "%s/config.json", folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_buf text = {0};
        pp_buf_fmt(&text, "{\"vocab_size\":2,\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":2,"
                          "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":32,%s,%s",
                   cases[i].head, cases[i].begin);
        for (int k = 0; k < 200000; k++) {
            pp_buf_str(&text, k ? "," : "");
            pp_buf_fmt(&text, cases[i].member, k);
        }
        pp_buf_fmt(&text, "%s}", cases[i].end);
        cJSON *config = cJSON_ParseWithLength(text.data, text.len);
        assert_non_null(config);
        try_config(path, folder, config);
        cJSON_Delete(config);
        pp_buf_free(&text);
    }
    cJSON_Delete((cJSON *)(uintptr_t)nothing);
}

/* Python writes Infinity, which JSON does not have. */
static void infinity(void **state)
{
    static const char text[] = "{\"a\": [0.0, Infinity], \"b\": -Infinity, \"c\": \"\\\"Infinity\"}";
    char path[300];
    struct pp_error err;
    cJSON *json;
    (void)state;
    snprintf(path, sizeof path, "%s/infinity.json", test_tmpdir());
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    assert_ok(pp_json_read(test_tmpdir(), "infinity.json", &json, &err), err);
    assert_true(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "a"), 1)->valuedouble >= 1e308);
    assert_true(cJSON_GetObjectItem(json, "b")->valuedouble <= -1e308);
    assert_string_equal(cJSON_GetObjectItem(json, "c")->valuestring, "\"Infinity");
    cJSON_Delete(json);
}

TEST_GROUP(configs)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(published), cmocka_unit_test(hostile_numbers),
                                       cmocka_unit_test(hostile_containers), cmocka_unit_test(hostile_members),
                                       cmocka_unit_test(infinity)};
    return cmocka_run_group_tests_name("configs", tests, NULL, NULL);
}
