/* test_more_decoders.c - what test_folder_decoders.c tests, of further families. */
#include <stdio.h>
#include <string.h>

#include "engine/arch/arch.h"
#include "engine/convert.h"
#include "engine/hf.h"
#include "tests/adapter_folder.h"
#include "tests/decoder_checks.h"
#include "tests/passes.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* BioGPT: embeddings that are scaled, or not. */
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
    s.epsilon = 1e-12f; /* what config.json says, and no norm has */
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

TEST_GROUP(more_decoders)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(biogpt),
    };
    return cmocka_run_group_tests_name("more_decoders", tests, NULL, NULL);
}
