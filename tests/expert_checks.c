#include "tests/expert_checks.h"

#include <math.h>

#include "engine/base/mem.h"
#include "engine/convert.h"
#include "tests/small_model.h"
#include "tests/support.h"

void check_quantised_experts(const double *want, const char *path, bool picks)
{
    const double least = picks ? 0.6 : 0.95; /* otherwise other experts are chosen here and there */
    const struct pp_convert_options opt = {0};
    const char *quantised = fresh_path("q8_0.gguf");
    double both = 0, ours = 0, theirs = 0;
    struct pp_error err;
    size_t n;
    assert_ok(pp_quantize_file(path, quantised, "Q8_0", &opt, &err), err);
    assert_same_bits(quantised, PP_KV_F32);
    float *got = small_logits(quantised, PP_KV_F32, &n);
    for (size_t i = 0; i < n; i++) {
        both += (double)got[i] * want[i];
        ours += (double)got[i] * (double)got[i];
        theirs += want[i] * want[i];
    }
    if (!(both / sqrt(ours * theirs) > least))
        fail_msg("%s: the logits of Q8_0 have a cosine of %g to those of the floats", path, both / sqrt(ours * theirs));
    pp_free(got);
}

const char *check_experts(const struct expert_shape *s)
{
    struct expert_model *m = expert_model_make(s);
    const char *file = expert_model_write(m);
    double *want = pp_calloc((size_t)(SMALL_TEXT * s->n_vocab), sizeof *want);
    const int n_picked = s->index_top_k * (s->index_block ? s->index_block : 1);
    int32_t ids[SMALL_TEXT];
    assert_non_null(want);
    small_text(ids, s->n_vocab);
    expert_model_compute(m, ids, SMALL_TEXT, want);
    assert_same_bits(file, PP_KV_F32);
    const char *folder = assert_logits_everywhere(want, s->n_vocab, file);
    if (s->n_used > 1) /* if there is only one, another choice is another result */
        check_quantised_experts(want, file, n_picked && n_picked < SMALL_TEXT);
    pp_free(want);
    expert_model_free(m);
    return folder;
}

void check_goes_on(const struct expert_shape *s)
{
    struct expert_model *m = expert_model_make(s);
    const char *file = expert_model_write(m);
    assert_resumes(file, s->n_vocab);
    assert_goes_back(file, s->n_vocab);
    expert_model_free(m);
}
