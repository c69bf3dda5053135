/* random_adapter.c - adapters with random weights, to measure their cost. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/adapter_file.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/bench.h"
#include "engine/gguf.h"
#include "engine/lora.h"
#include "engine/model.h"
#include "engine/peft_write.h"
#include "engine/quant.h"
#include "engine/random_rows.h"

enum { MOST_RANK = 256, PARTS = 3 /* of a target, at most */, STACKS = 2 * PP_EXPERT_KINDS /* of a mixture */ };

/* Tensors of the file; data and names are owned (pp_free). */
struct made {
    const struct pp_model *model;
    const struct pp_random_adapter *spec;
    struct pp_random *random;
    struct pp_tensor *tensors;  /* [n] */
    size_t n;
    cJSON *config, *modules, *feedforward;
};

static bool is_down(const struct pp_tensor *w)
{
    return strstr(w->name, ".ffn_down.") != NULL;
}

static bool is_changed(const struct pp_random_adapter *spec, const struct pp_tensor *w)
{
    if (spec->kind == PP_RANDOM_IA3)
        return strstr(w->name, ".attn_k.") || strstr(w->name, ".attn_v.") || is_down(w);
    return spec->all ? strncmp(w->name, "blk.", 4) == 0 : strstr(w->name, ".attn_q.") || strstr(w->name, ".attn_v.");
}

/* Adds a tensor without data: noise that is generated when it is written. */
static bool name_tensor(struct made *m, const char *name, const char *ending, int n_dims, int64_t n, int64_t rows)
{
    const size_t size = strlen(name) + strlen(ending) + 1;
    char *whole = pp_malloc(size);
    if (whole)
        snprintf(whole, size, "%s%s", name, ending);
    m->tensors[m->n++] = (struct pp_tensor){.name = whole, .type = PP_TYPE_F32, .n_dims = n_dims,
                                            .ne = {n, rows, 1, 1}, .size = (size_t)(n * rows) * sizeof(float)};
    return whole != NULL;
}

/* Allocates a tensor [rows, n] of floats; NULL: out of memory. */
static float *add_tensor(struct made *m, const char *name, const char *ending, int n_dims, int64_t n, int64_t rows)
{
    float *data = name_tensor(m, name, ending, n_dims, n, rows) ? pp_malloc((size_t)(n * rows) * sizeof *data) : NULL;
    m->tensors[m->n - 1].data = data;
    return data;
}

/* Adds a matrix of noise. */
static bool add_matrix(struct made *m, const char *name, const char *ending, int64_t n, int64_t rows)
{
    float *data = add_tensor(m, name, ending, 2, n, rows);
    for (int64_t r = 0; data && r < rows; r++)
        pp_random_row(m->random, PP_TYPE_F32, n, data + r * n);
    return data != NULL;
}

/* Adds the norms of W's rows, in Hugging Face's order. */
static bool add_magnitudes(struct made *m, const char *name, const struct pp_tensor *w)
{
    const struct pp_hparams *hp = pp_source_hparams(m->model->source);
    const bool moved = !hp->rope_neox && pp_arch_rows(pp_arch_by_name(hp->arch), w->name) != PP_ROWS_SAME;
    float *data = add_tensor(m, name, ".lora_magnitude_vector", 1, w->ne[1], 1);
    float *row = pp_malloc((size_t)w->ne[0] * sizeof *row);
    for (int64_t r = 0; data && row && r < w->ne[1]; r++) {
        const int64_t own = moved ? pp_gguf_row(r, hp->head_dim) : r;
        double sum = 0;
        pp_dequantize_row(w->type, (const uint8_t *)w->data + (size_t)own * pp_type_row_bytes(w->type, w->ne[0]), row,
                          w->ne[0]);
        for (int64_t i = 0; i < w->ne[0]; i++)
            sum += (double)row[i] * (double)row[i];
        data[r] = (float)sqrt(sum);
    }
    const bool ok = data && row;
    pp_free(row);
    return ok;
}

/* Adds scales near 1: for each output, or for each input of the feed-forward part's last projection. */
static bool add_scales(struct made *m, const char *name, const struct pp_tensor *w)
{
    const bool input = is_down(w);
    const int64_t n = w->ne[input ? 0 : 1];
    float *data = add_tensor(m, name, ".ia3_l", 2, input ? n : 1, input ? 1 : n);
    if (data)
        pp_random_row(m->random, PP_TYPE_F32, n, data);
    for (int64_t i = 0; data && i < n; i++)
        data[i] += 1.0f;
    return data != NULL;
}

/* Adds the tensors for one projection. module: its Hugging Face name; NULL: the file is GGUF. */
static bool add_target(struct made *m, const struct pp_tensor *w, const char *module)
{
    const int rank = m->spec->rank;
    char name[256];
    if (!module)
        return name_tensor(m, w->name, ".lora_a", 2, w->ne[0], rank) &&
               name_tensor(m, w->name, ".lora_b", 2, rank, w->ne[1]);
    const char *dot = strrchr(module, '.'), *last = dot ? dot + 1 : module;
    snprintf(name, sizeof name, "base_model.model.%.200s", module);
    if (!pp_peft_add_once(m->modules, last) ||
        (m->feedforward && is_down(w) && !pp_peft_add_once(m->feedforward, last)))
        return false;
    if (m->spec->kind == PP_RANDOM_IA3)
        return add_scales(m, name, w);
    return add_matrix(m, name, ".lora_A.weight", w->ne[0], rank) &&
           add_matrix(m, name, ".lora_B.weight", rank, w->ne[1]) && add_magnitudes(m, name, w);
}

static enum pp_code add_targets(struct made *m, bool folder, struct pp_error *err)
{
    const struct pp_arch *arch = pp_arch_by_name(m->model->info.arch);
    enum pp_code code = PP_OK;
    for (int i = 0; i < m->model->plan.n_linears && !code; i++) {
        const struct pp_tensor *w = m->model->plan.linears[i].w;
        struct pp_buf module = {0};
        if (!is_changed(m->spec, w))
            continue;
        if (folder && !pp_arch_hf_module(arch, pp_source_hparams(m->model->source), w->name, &module) && !module.bad)
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "the family %s has no name for %s", m->model->info.arch, w->name);
        else if (module.bad || !add_target(m, w, folder ? pp_buf_cstr(&module) : NULL))
            code = pp_fail_nomem(err, "an adapter");
        pp_buf_free(&module);
    }
    return code;
}

/* Adds the norms of kv_b's rows, from the matrices of latent attention's heads, of which the keys' are transposed. */
static bool add_head_magnitudes(struct made *m, const char *name, const struct pp_heads *keys,
                                const struct pp_heads *values)
{
    const int64_t n_key = keys->w[0]->ne[0], n_latent = keys->w[0]->ne[1], n_value = values->w[0]->ne[1];
    const int64_t of_head = n_key + n_value, widest = n_key > n_latent ? n_key : n_latent;
    float *data = add_tensor(m, name, ".lora_magnitude_vector", 1, keys->n * of_head, 1);
    float *row = pp_malloc((size_t)widest * sizeof *row);
    for (int64_t i = 0; data && row && i < keys->n * of_head; i++)
        data[i] = 0;
    for (int h = 0; data && row && h < keys->n; h++) {
        float *to = data + h * of_head;
        for (int64_t r = 0; r < n_latent + n_value; r++) {
            const struct pp_tensor *w = r < n_latent ? keys->w[h] : values->w[h];
            const int64_t n = w->ne[0], at = r < n_latent ? r : r - n_latent;
            pp_dequantize_row(w->type, (const uint8_t *)w->data + (size_t)at * pp_type_row_bytes(w->type, n), row, n);
            for (int64_t k = 0; k < n; k++)
                to[r < n_latent ? k : n_key + at] += row[k] * row[k];
        }
        for (int64_t r = 0; r < of_head; r++)
            to[r] = sqrtf(to[r]);
    }
    const bool ok = data && row;
    pp_free(row);
    return ok;
}

/* Adds a LoRA or a DoRA of kv_b. module: as in add_target. */
static bool add_head_target(struct made *m, const char *name, const char *module, const struct pp_heads *keys,
                            const struct pp_heads *values)
{
    const int64_t n_in = keys->w[0]->ne[1], n_out = keys->n * (keys->w[0]->ne[0] + values->w[0]->ne[1]);
    const int rank = m->spec->rank;
    char whole[256];
    if (!module)
        return name_tensor(m, name, ".lora_a", 2, n_in, rank) && name_tensor(m, name, ".lora_b", 2, rank, n_out);
    const char *dot = strrchr(module, '.');
    snprintf(whole, sizeof whole, "base_model.model.%.200s", module);
    return pp_peft_add_once(m->modules, dot ? dot + 1 : module) &&
           add_matrix(m, whole, ".lora_A.weight", n_in, rank) && add_matrix(m, whole, ".lora_B.weight", rank, n_out) &&
           add_head_magnitudes(m, whole, keys, values);
}

static enum pp_code add_heads(struct made *m, bool folder, struct pp_error *err)
{
    static const char end[] = ".attn_k_b.weight[0]";
    const struct pp_plan *plan = &m->model->plan;
    const struct pp_arch *arch = pp_arch_by_name(m->model->info.arch);
    enum pp_code code = PP_OK;
    for (int i = 0; i < plan->n_heads && !code; i++) {
        const char *first = plan->heads[i].w[0]->name;
        struct pp_lora_heads_at at;
        struct pp_buf module = {0};
        char name[PP_HF_NAME];
        if (!pp_ends_with(first, end) || pp_lora_first_heads(plan, &plan->heads[i]) != i)
            continue;
        snprintf(name, sizeof name, "%.*s.attn_kv_b.weight", (int)(strlen(first) - strlen(end)), first);
        if (!pp_lora_find_heads(plan, name, &at) ||
            (folder && !pp_arch_hf_module(arch, pp_source_hparams(m->model->source), name, &module) && !module.bad))
            continue;
        if (module.bad || !add_head_target(m, name, folder ? pp_buf_cstr(&module) : NULL, &plan->heads[at.keys],
                                           &plan->heads[at.values]))
            code = pp_fail_nomem(err, "an adapter");
        pp_buf_free(&module);
    }
    return code;
}

/* Adds LoRAs for one kind of a mixture's matrices: stacks [n, rank, n_in] and [n, n_out, rank]. first: the first
 * expert's matrix, "blk.3.ffn_up_exps.weight[0]" or, if it is a tensor of its own, "blk.3.ffn_up.0.weight". */
static bool add_stack(struct made *m, const struct pp_tensor *first, int n)
{
    const char *alone = strstr(first->name, ".0.weight"), *end = alone ? alone : strstr(first->name, "[0]");
    char name[128];
    if (!end) /* a family with other names */
        return true;
    snprintf(name, sizeof name, "%.*s%s", (int)(end - first->name), first->name, alone ? "_exps.weight" : "");
    for (int b = 0; b < 2; b++) {
        const int64_t rank = m->spec->rank;
        if (!name_tensor(m, name, b ? ".lora_b" : ".lora_a", 3, b ? rank : first->ne[0], b ? first->ne[1] : rank))
            return false;
        m->tensors[m->n - 1].ne[2] = n;
        m->tensors[m->n - 1].size *= (size_t)n;
    }
    return true;
}

/* Adds those of all mixtures, unless they take too many bytes. */
static bool add_stacks(struct made *m)
{
    const size_t before = m->n;
    uint64_t bytes = 0;
    for (int i = 0; i < m->model->plan.n_experts; i++) {
        const struct pp_experts *x = &m->model->plan.experts[i];
        const struct pp_tensor *const *const kinds[] = {x->gate, x->up, x->down};
        for (int k = 0; k < PP_EXPERT_KINDS; k++)
            if (kinds[k] && !add_stack(m, kinds[k][0], pp_experts_matrices(x)))
                return false;
    }
    for (size_t i = before; i < m->n; i++)
        bytes += m->tensors[i].size;
    while (bytes > m->spec->expert_bytes && m->n > before)
        pp_free((void *)(uintptr_t)m->tensors[--m->n].name);
    return true;
}

static enum pp_code write_noise(struct pp_random *random, const struct pp_tensor *t, struct pp_gguf_writer *w,
                                struct pp_error *err)
{
    const size_t bytes = (size_t)t->ne[0] * sizeof(float);
    float *row = pp_malloc(bytes);
    enum pp_code code = row ? PP_OK : pp_fail_nomem(err, "an adapter");
    for (size_t done = 0; done < t->size && !code; done += bytes) {
        pp_random_row(random, PP_TYPE_F32, t->ne[0], row);
        code = pp_gguf_write(w, row, bytes, err);
    }
    pp_free(row);
    return code;
}

static enum pp_code write_gguf(const struct made *m, const char *path, struct pp_error *err)
{
    struct pp_gguf_writer *w;
    enum pp_code code = pp_gguf_writer_new(path, &w, err);
    if (code)
        return code;
    pp_gguf_add_text(w, "general.architecture", m->model->info.arch);
    pp_gguf_add_text(w, "general.type", "adapter");
    pp_gguf_add_text(w, "general.name", "random adapter");
    pp_gguf_add_text(w, "adapter.type", "lora");
    pp_gguf_add_f32(w, "adapter.lora.alpha", (float)m->spec->rank / 8); /* so that the change is small */
    for (size_t i = 0; i < m->n; i++)
        pp_gguf_add_tensor(w, m->tensors[i].name, PP_TYPE_F32, m->tensors[i].n_dims, m->tensors[i].ne);
    code = pp_gguf_writer_begin(w, err);
    for (size_t i = 0; i < m->n && !code; i++)
        code = write_noise(m->random, &m->tensors[i], w, err);
    if (!code)
        code = pp_gguf_writer_finish(w, err);
    pp_gguf_writer_free(w);
    return code;
}

enum pp_code pp_random_adapter_write(const struct pp_model *m, const struct pp_random_adapter *spec, const char *path,
                                     struct pp_error *err)
{
    const bool folder = spec->kind != PP_RANDOM_LORA, ia3 = spec->kind == PP_RANDOM_IA3;
    const struct pp_peft_lora lora = {.rank = spec->rank, .alpha = (float)spec->rank / 8, .dora = true};
    struct made made = {.model = m, .spec = spec};
    if (!ia3 && (spec->rank < 1 || spec->rank > MOST_RANK))
        return pp_fail(err, PP_ERR_USAGE, "the rank of an adapter must be from 1 to %d", MOST_RANK);
    made.random = pp_random_new(spec->seed);
    made.tensors = pp_calloc(PARTS * (size_t)m->plan.n_linears + STACKS * (size_t)m->plan.n_experts +
                                 PARTS * (size_t)m->plan.n_heads, sizeof *made.tensors);
    if (folder)
        made.config = ia3 ? pp_peft_ia3_config(&made.modules, &made.feedforward)
                          : pp_peft_lora_config(&lora, &made.modules);
    enum pp_code code = made.random && made.tensors && (made.config || !folder) ? PP_OK
                                                                                : pp_fail_nomem(err, "an adapter");
    if (!code)
        code = add_targets(&made, folder, err);
    if (!code && !ia3 && spec->all)
        code = add_heads(&made, folder, err);
    if (!code && !folder && spec->all && !add_stacks(&made))
        code = pp_fail_nomem(err, "an adapter");
    if (!code)
        code = folder ? pp_peft_write(path, made.config, made.tensors, made.n, err) : write_gguf(&made, path, err);
    for (size_t i = 0; made.tensors && i < made.n; i++) {
        pp_free((void *)(uintptr_t)made.tensors[i].name);
        pp_free((void *)(uintptr_t)made.tensors[i].data);
    }
    pp_free(made.tensors);
    pp_free(made.random);
    cJSON_Delete(made.config);
    return code;
}
