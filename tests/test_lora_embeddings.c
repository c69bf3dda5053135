/* test_lora_embeddings.c - DoRAs of the token embeddings, as PEFT and as MLX have them, compared with the model with
 * their changes merged into its weights (adapter_folder.h). */
#include <math.h>
#include <string.h>

#include "engine/adapter_file.h"
#include "engine/convert.h"
#include "engine/engine_int.h"
#include "engine/base/mem.h"
#include "engine/model.h"
#include "tests/adapter_run.h"
#include "tests/support.h"

static const char dora_config[] = "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":12,\"use_dora\":true}";

static void gives_merged(const struct folder *f, const char *model)
{
    run_gives_merged(folder_merge, f, folder_write_peft(f, dora_config), model, 4, 3);
}

static void refuses(const struct folder *f, enum pp_code code, const char *words)
{
    struct pp_adapter_file *file;
    struct pp_error err;
    assert_int_equal(pp_adapter_file_open(folder_write_peft(f, dora_config), &file, &err), code);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

/* Of the embeddings alone, with a LoRA of the output beside it, and of a vocabulary that is read in several pieces, the
 * last not full. */
static void of_values(void **state)
{
    struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 18};
    struct pp_error err;
    int64_t n_in, n_out;
    (void)state;
    folder_add_embedding_dora(&f, &s);
    gives_merged(&f, tiny_model(&s));
    folder_add_lora(&f, &s, 7, 4);
    folder_sizes(&s, 7, &n_in, &n_out);
    folder_add_named(&f, 7, ".lora_magnitude_vector", n_out, 0, 1, 0.3f);
    gives_merged(&f, tiny_model(&s));
    folder_empty(&f);
    s.n_vocab = 600;
    folder_add_embedding_dora(&f, &s);
    gives_merged(&f, tiny_model(&s));
    const struct pp_convert_options opt = {.base = tiny_model(&s)};
    assert_int_equal(pp_convert_to_gguf(folder_write_peft(&f, dora_config), fresh_path("adapter.gguf"), &opt, &err),
                     PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "DoRA's magnitudes for token_embd.weight"));
    folder_empty(&f);
}

static void refusals(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 18};
    (void)state;
    folder_add_embedding_dora(&f, &s);
    pp_free(f.parts[--f.n].data);
    refuses(&f, PP_ERR_FORMAT, "no magnitudes for token_embd.weight");
    folder_add(&f, "base_model.model.model.embed_tokens.lora_magnitude_vector", s.n_vocab, 0, 1, 0);
    refuses(&f, PP_ERR_FORMAT, "the parts for token_embd.weight have 256 and ");
    folder_empty(&f);
    folder_add_embedding_dora(&f, &s);
    folder_add(&f, "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta", 2, s.n_embd, 0, 0.5f);
    refuses(&f, PP_ERR_UNSUPPORTED, "replaces tokens of token_embd.weight and is a DoRA of it");
    folder_empty(&f);
    folder_add_embedding_dora(&f, &s);
    folder_add(&f, "base_model.model.model.embed_tokens.weight", s.n_vocab, s.n_embd, 0, 0.5f);
    refuses(&f, PP_ERR_UNSUPPORTED, "both replaces token_embd.weight and scales it");
    folder_empty(&f);
}

/* MLX changes the output as well if that is the same matrix, and its magnitudes are those of tokens. */
static void of_tokens(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    const char *config[] = {"{\"lora_parameters\":{\"rank\":4,\"scale\":3}}",
                            "{\"fine_tune_type\":\"dora\",\"lora_parameters\":{\"rank\":4,\"scale\":3}}"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        const char *own = tiny_model(&s), *model = i % 2 ? folder_tied_model(own) : own, *gguf;
        struct folder f = {.random = 19};
        struct pp_error err;
        folder_add(&f, "model.embed_tokens.lora_a", s.n_vocab, 4, 0, 0.2f);
        folder_add(&f, "model.embed_tokens.lora_b", 4, s.n_embd, 0, 0.2f);
        if (i / 2)
            folder_add(&f, "model.embed_tokens.m", s.n_vocab, 0, 10, 4);
        const char *path = folder_write(&f, config[i / 2], "adapters.safetensors");
        run_gives_merged(folder_merge_mlx, &f, path, model, 4, 3);
        gguf = fresh_path("adapter.gguf"); /* says the same of both matrices */
        const struct pp_convert_options opt = {.base = model};
        if (i / 2) {
            assert_int_equal(pp_convert_to_gguf(path, gguf, &opt, &err), PP_ERR_UNSUPPORTED);
            assert_non_null(strstr(err.text, "DoRA's magnitudes for token_embd.weight"));
        } else {
            assert_ok(pp_convert_to_gguf(path, gguf, &opt, &err), err);
            run_gives_merged(folder_merge_mlx, &f, gguf, model, 4, 3);
        }
        folder_empty(&f);
    }
}

/* Magnitudes are part of an adapter's identity. */
static void identities(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct run r = open_run(tiny_model(&s), 1);
    struct folder f = {.random = 9};
    struct pp_adapter *a, *b;
    struct pp_error err;
    (void)state;
    folder_add_embedding_dora(&f, &s);
    assert_ok(pp_adapter_load(r.model, folder_write_peft(&f, dora_config), &a, &err), err);
    f.parts[2].data[s.n_embd - 1] += 0.25f;
    assert_ok(pp_adapter_load(r.model, folder_write_peft(&f, dora_config), &b, &err), err);
    assert_memory_not_equal(&a->identity, &b->identity, sizeof a->identity);
    pp_adapter_free(a);
    pp_adapter_free(b);
    folder_empty(&f);
    close_run(&r);
}

static bool is_idle(const struct run *r, const struct folder *f)
{
    struct pp_adapter *a;
    struct pp_error err;
    assert_ok(pp_adapter_load(r->model, folder_write_peft(f, dora_config), &a, &err), err);
    const bool idle = pp_adapter_info(a)->idle;
    pp_adapter_free(a);
    return idle;
}

/* Training begins with the norms of the table's columns as magnitudes, and with zeros for A. */
static void untrained(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct run r = open_run(tiny_model(&s), 1);
    struct folder f = {.random = 10};
    struct merged m = merged_begin(r.model->info.path);
    (void)state;
    folder_add_embedding_dora(&f, &s);
    const float *table = merged_tensor(&m, "token_embd.weight")->data;
    for (int64_t i = 0; i < s.n_embd; i++) {
        double sum = 0;
        for (int64_t k = 0; k < s.n_vocab; k++)
            sum += (double)table[k * s.n_embd + i] * (double)table[k * s.n_embd + i];
        f.parts[2].data[i] = (float)sqrt(sum);
    }
    assert_false(is_idle(&r, &f));
    memset(f.parts[0].data, 0, (size_t)(4 * s.n_vocab) * sizeof(float));
    assert_true(is_idle(&r, &f));
    f.parts[2].data[7] *= 1.1f;
    assert_false(is_idle(&r, &f));
    pp_gguf_close(m.gguf);
    pp_free(m.bytes);
    folder_empty(&f);
    close_run(&r);
}

TEST_GROUP(lora_embeddings)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_values),  cmocka_unit_test(refusals),  cmocka_unit_test(of_tokens),
        cmocka_unit_test(identities), cmocka_unit_test(untrained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
