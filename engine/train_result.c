/* train_result.c - writes the trained adapter: as a PEFT folder and as a GGUF adapter. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/adapter_file.h"
#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/peft_write.h"
#include "engine/train_int.h"

/* A or B of one projection. */
struct half {
    const struct pp_train_linear *linear;
    int layer, target;
    bool b;
    struct pp_tensor tensor;    /* data: the parameters, or `moved` */
    float *moved;               /* permuted rows; or NULL */
};

struct halves {
    struct half *list;
    size_t n;
    struct pp_tensor *tensors;  /* [n] */
    struct pp_buf names;
};

static const char *gguf_kind(int target)
{
    static const char *const names[PP_TRAIN_TARGETS] = {"attn_q",      "attn_k",   "attn_v",  "attn_output",
                                                        "ffn_gate",    "ffn_up",   "ffn_down"};
    return names[target];
}

static const struct pp_arch *family(const struct pp_trainer *t)
{
    return pp_arch_by_name(pp_source_hparams(t->model->source)->arch);
}

static bool hf_module(const struct pp_trainer *t, const char *gguf, struct pp_buf *module)
{
    return pp_arch_hf_module(family(t), pp_source_hparams(t->model->source), gguf, module);
}

static void gguf_name(const struct half *h, char out[64])
{
    snprintf(out, 64, "blk.%d.%s.weight", h->layer, gguf_kind(h->target));
}

static void add_name(struct pp_buf *names, const struct pp_trainer *t, const struct half *h, bool peft)
{
    char gguf[64];
    struct pp_buf module = {0};
    gguf_name(h, gguf);
    if (!peft)
        pp_buf_fmt(names, "%s.lora_%c", gguf, h->b ? 'b' : 'a');
    else if (hf_module(t, gguf, &module))
        pp_buf_fmt(names, "base_model.model.%s.lora_%c.weight", pp_buf_cstr(&module), h->b ? 'B' : 'A');
    names->bad = names->bad || module.bad;
    pp_buf_free(&module);
    pp_buf_char(names, 0);
}

/* Permutes rows of q's and k's B to the file's order: Hugging Face's (neox), or the one of the family's GGUF files. */
static bool move_rows(const struct pp_trainer *t, struct half *h, bool peft)
{
    const bool neox = peft || family(t)->gguf_neox;
    char gguf[64];
    gguf_name(h, gguf);
    if (!h->b || neox == t->neox || pp_arch_rows(family(t), gguf) == PP_ROWS_SAME)
        return true;
    const size_t rank = (size_t)t->opt.rank;
    const float *from = h->tensor.data;
    h->moved = pp_malloc(h->tensor.size);
    for (int64_t r = 0; h->moved && r < h->linear->n_out; r++) {
        int64_t old = neox ? pp_gguf_row(r, t->head_dim) : pp_hf_row(r, t->head_dim);
        memcpy(h->moved + (size_t)r * rank, from + (size_t)old * rank, rank * sizeof *from);
    }
    h->tensor.data = h->moved;
    return h->moved != NULL;
}

static bool add_half(const struct pp_trainer *t, struct halves *all, int layer, int target, bool b, bool peft)
{
    struct half *h = &all->list[all->n++];
    const struct pp_train_linear *l = &t->layers[layer].linear[target];
    const int64_t rows = b ? l->n_out : t->opt.rank, cols = b ? t->opt.rank : l->n_in;
    *h = (struct half){.linear = l, .layer = layer, .target = target, .b = b,
                       .tensor = {.type = PP_TYPE_F32, .n_dims = 2, .ne = {cols, rows, 1, 1},
                                  .data = t->params + (b ? l->b : l->a),
                                  .size = (size_t)(rows * cols) * sizeof(float)}};
    add_name(&all->names, t, h, peft);
    return move_rows(t, h, peft);
}

static void halves_free(struct halves *all)
{
    for (size_t i = 0; i < all->n; i++)
        pp_free(all->list[i].moved);
    pp_free(all->list);
    pp_free(all->tensors);
    pp_buf_free(&all->names);
}

static enum pp_code list_halves(const struct pp_trainer *t, bool peft, struct halves *all, struct pp_error *err)
{
    const size_t most = (size_t)t->n_layers * PP_TRAIN_TARGETS * 2;
    *all = (struct halves){.list = pp_calloc(most, sizeof *all->list),
                           .tensors = pp_calloc(most, sizeof *all->tensors)};
    bool ok = all->list && all->tensors;
    for (int l = 0; l < t->n_layers && ok; l++)
        for (int i = 0; i < PP_TRAIN_TARGETS && ok; i++)
            if (t->layers[l].linear[i].learnt)
                ok = add_half(t, all, l, i, false, peft) && add_half(t, all, l, i, true, peft);
    if (!ok || all->names.bad)
        return pp_fail_nomem(err, "the adapter");
    const char *name = pp_buf_cstr(&all->names);
    for (size_t i = 0; i < all->n; i++, name += strlen(name) + 1) {
        all->tensors[i] = all->list[i].tensor;
        all->tensors[i].name = name;
    }
    return PP_OK;
}

/* --- PEFT ----------------------------------------------------------------------------------------------------- */

/* Hugging Face's name of a projection of the first layer; false: it has none. */
static bool module_of(const struct pp_trainer *t, int target, struct pp_buf *module)
{
    char gguf[64];
    gguf_name(&(struct half){.target = target}, gguf);
    return hf_module(t, gguf, module) && !module->bad && strrchr(pp_buf_cstr(module), '.');
}

static cJSON *make_config(const struct pp_trainer *t)
{
    const struct pp_peft_lora lora = {.base = t->model->info.path, .rank = t->opt.rank, .alpha = t->opt.alpha,
                                      .rslora = t->opt.rslora};
    cJSON *modules, *c = pp_peft_lora_config(&lora, &modules);
    bool ok = c != NULL;
    for (int i = 0; i < PP_TRAIN_TARGETS && ok; i++) {
        struct pp_buf module = {0};
        ok = module_of(t, i, &module);
        if (ok && t->opt.targets >> i & 1)
            ok = pp_peft_add_once(modules, strrchr(pp_buf_cstr(&module), '.') + 1);
        pp_buf_free(&module);
    }
    if (ok)
        return c;
    cJSON_Delete(c);
    return NULL;
}

static enum pp_code check_names(const struct pp_trainer *t, struct pp_error *err)
{
    for (int i = 0; i < PP_TRAIN_TARGETS; i++) {
        struct pp_buf module = {0};
        bool known = module_of(t, i, &module), bad = module.bad;
        pp_buf_free(&module);
        if (bad)
            return pp_fail_nomem(err, "the adapter");
        if (!known)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "the family %s has no name for its projection %s",
                           t->model->info.arch, pp_train_target_name((enum pp_train_target)i));
    }
    return PP_OK;
}

enum pp_code pp_trainer_write_peft(const struct pp_trainer *t, const char *folder, struct pp_error *err)
{
    struct halves all = {0};
    enum pp_code code = check_names(t, err);
    cJSON *config = code ? NULL : make_config(t);
    if (!code && !config)
        code = pp_fail_nomem(err, "the adapter's configuration");
    if (!code)
        code = list_halves(t, true, &all, err);
    if (!code)
        code = pp_peft_write(folder, config, all.tensors, all.n, err);
    cJSON_Delete(config);
    halves_free(&all);
    return code;
}

/* --- GGUF ----------------------------------------------------------------------------------------------------- */

enum pp_code pp_trainer_write_gguf(const struct pp_trainer *t, const char *path, struct pp_error *err)
{
    struct halves all = {0};
    struct pp_gguf_writer *w = NULL;
    char name[128];
    pp_title_of_path(path, name, sizeof name);
    enum pp_code code = list_halves(t, false, &all, err);
    if (!code)
        code = pp_gguf_writer_new(path, &w, err);
    if (!code) {
        pp_gguf_add_text(w, "general.architecture", t->model->info.arch);
        pp_gguf_add_text(w, "general.type", "adapter");
        pp_gguf_add_text(w, "adapter.type", "lora");
        pp_gguf_add_text(w, "general.name", name);
        pp_gguf_add_f32(w, "adapter.lora.alpha", t->scale * (float)t->opt.rank); /* readers divide by the rank */
        for (size_t i = 0; i < all.n; i++)
            pp_gguf_add_tensor(w, all.tensors[i].name, PP_TYPE_F32, 2, all.tensors[i].ne);
        code = pp_gguf_writer_begin(w, err);
    }
    for (size_t i = 0; i < all.n && !code; i++)
        code = pp_gguf_write(w, all.tensors[i].data, all.tensors[i].size, err);
    if (!code)
        code = pp_gguf_writer_finish(w, err);
    pp_gguf_writer_free(w);
    halves_free(&all);
    return code;
}
