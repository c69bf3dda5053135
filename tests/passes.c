#include "tests/passes.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/engine.h"
#include "tests/support.h"

void run_in_passes(struct pp_engine *e, struct pp_seq *s, const int32_t *tokens, int n, int rows, float *logits)
{
    const size_t n_vocab = (size_t)pp_model_info(pp_engine_model(e))->n_vocab;
    struct pp_row *pass = pp_calloc((size_t)rows, sizeof *pass);
    struct pp_error err;
    assert_non_null(pass);
    for (int at = 0, m; at < n; at += m) {
        m = n - at < rows ? n - at : rows;
        for (int i = 0; i < m; i++)
            pass[i] = (struct pp_row){.seq = s, .token = tokens[at + i], .parent = PP_PARENT_PREVIOUS,
                                      .out = PP_OUT_LOGITS};
        assert_ok(pp_step(e, pass, m, NULL, &err), err);
        for (int i = 0; i < m; i++)
            memcpy(logits + (size_t)(at + i) * n_vocab, pp_step_output(e, i), n_vocab * sizeof *logits);
    }
    pp_free(pass);
}
