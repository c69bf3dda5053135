#include "engine/model.h"

#include "engine/base/mem.h"
#include "engine/hparams.h"
#include "engine/text.h"

static char *model_name(const struct pp_source *s)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
    char name[256];
    pp_name_of_path(pp_source_path(s), name, sizeof name);
    return pp_strdup(hp->name[0] ? hp->name : name);
}

static int64_t n_values(const struct pp_tensor *t)
{
    return t ? t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3] : 0;
}

/* Parameters of experts that are not used for a token. */
static int64_t params_at_rest(const struct pp_plan *p)
{
    int64_t sum = 0;
    for (int i = 0; i < p->n_experts; i++) {
        const struct pp_experts *x = &p->experts[i];
        const int64_t biases = n_values(x->gate_b) + n_values(x->up_b) + n_values(x->down_b);
        const int64_t gate = x->gate ? n_values(x->gate[0]) : 0;
        const int64_t each = gate + (x->up ? n_values(x->up[0]) : 0) + n_values(x->down[0]) + biases / x->n;
        const int n = pp_experts_matrices(x); /* if experts share them: as many as can be active are */
        sum += (n > x->n_used ? n - x->n_used : 0) * each;
    }
    return sum;
}

enum pp_code pp_model_open(const char *path, struct pp_model **out, struct pp_error *err)
{
    return pp_model_open_as(path, NULL, NULL, out, err);
}

enum pp_code pp_model_open_as(const char *path, const char *quant, const char *imatrix, struct pp_model **out,
                              struct pp_error *err)
{
    struct pp_error own;
    err = err ? err : &own;
    *out = NULL;
    struct pp_model *m = pp_calloc(1, sizeof *m);
    if (!m)
        return pp_fail_nomem(err, "the model");
    pthread_mutex_init(&m->identity_lock, NULL);
    enum pp_code code = pp_source_open_as(path, quant, imatrix, &m->source, err);
    if (!code)
        code = pp_plan_build(m->source, &m->plan, err);
    if (!code) {
        code = pp_tokenizer_from_source(m->source, &m->tokenizer, err);
        if (code == PP_ERR_NOT_FOUND) { /* runs on ids alone */
            m->tokenizer = NULL;
            code = PP_OK;
        }
    }
    if (!code && m->tokenizer && pp_source_hparams(m->source)->n_meta_tokens)
        code = pp_tokenizer_put_ahead(m->tokenizer, (int32_t)pp_source_hparams(m->source)->n_vocab,
                                      (size_t)pp_source_hparams(m->source)->n_meta_tokens, err);
    if (!code && !(m->name = model_name(m->source)))
        code = pp_fail_nomem(err, "the model's name");
    if (code) {
        pp_model_close(m);
        return code;
    }
    pp_model_note_files(m);
    const struct pp_hparams *hp = pp_source_hparams(m->source);
    m->info = (struct pp_model_info){
        .path = pp_source_path(m->source),
        .name = m->name,
        .arch = hp->arch,
        .type_name = pp_source_type_name(m->source),
        .chat_template = pp_source_chat_template(m->source),
        .tool_template = pp_source_tool_template(m->source),
        .n_params = pp_source_n_params(m->source),
        .n_params_active = pp_source_n_params(m->source) - params_at_rest(&m->plan),
        .n_expert = hp->n_expert,
        .n_expert_used = hp->n_expert ? hp->n_expert_used : 0,
        .bytes = pp_source_bytes(m->source),
        .n_ctx_train = hp->n_ctx_train,
        .n_vocab = hp->n_vocab,
        .n_meta_tokens = hp->n_meta_tokens,
        .n_embd = hp->n_embd,
        .n_embd_out = hp->n_embd_out ? hp->n_embd_out : hp->n_embd,
        .n_layer = hp->n_layer,
        .n_head = hp->n_head,
        .n_head_kv = hp->n_head_kv,
        .head_dim = hp->head_dim,
        .n_ff = hp->n_ff,
        .encoder = m->plan.encoder,
        .pooling = (enum pp_pooling)hp->pooling,
    };
    *out = m;
    return PP_OK;
}

void pp_model_close(struct pp_model *m)
{
    if (!m)
        return;
    pp_plan_free(&m->plan);
    pp_tokenizer_free(m->tokenizer);
    pp_source_close(m->source);
    pthread_mutex_destroy(&m->identity_lock);
    pp_free(m->name);
    pp_free(m);
}

const struct pp_model_info *pp_model_info(const struct pp_model *m)
{
    return &m->info;
}

const struct pp_tokenizer *pp_model_tokenizer(const struct pp_model *m)
{
    return m->tokenizer;
}

enum pp_code pp_model_check_writes(const struct pp_model *m, struct pp_error *err)
{
    if (!m->plan.encoder)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED,
                   "%s is an encoder (%s): it computes embeddings (pippin embed -m ...) but cannot write text; choose "
                   "another model for the chat", m->info.path, m->info.arch);
}
