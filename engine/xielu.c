#include "engine/xielu.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/gguf.h"
#include "engine/plan.h"
#include "engine/quant.h"
#include "engine/source.h"

const char *const pp_xielu_names[PP_XIELU_NUMBERS] = {"alpha_p", "alpha_n", "beta", "eps"};

static void key_of(int i, char out[32])
{
    snprintf(out, 32, "xielu.%s", pp_xielu_names[i]);
}

bool pp_is_xielu(const char *name)
{
    return strstr(name, ".xielu.") != NULL;
}

bool pp_xielu_in(const struct pp_gguf *g)
{
    return pp_gguf_has(g, "xielu.alpha_p");
}

/* A number of a layer; a file may have one for all. */
static enum pp_code number_of(const struct pp_gguf *g, const char *key, int64_t layer, double *v, struct pp_error *err)
{
    if (pp_gguf_array_float(g, key, (size_t)layer, v) || pp_gguf_float(g, key, v))
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT, "metadata %s has no number for layer %lld", key, (long long)layer);
}

static enum pp_code add_number(struct pp_tensor_list *l, int64_t layer, int i, float v, struct pp_error *err)
{
    struct pp_tensor t = {.type = PP_TYPE_F32, .n_dims = 1, .ne = {1, 1, 1, 1}, .size = sizeof v};
    char name[64];
    float *data = pp_malloc(sizeof v);
    snprintf(name, sizeof name, "blk.%lld.xielu.%s", (long long)layer, pp_xielu_names[i]);
    if (!data)
        return pp_fail_nomem(err, name);
    *data = v;
    t.data = data;
    return pp_tensor_list_add(l, &t, name, true, err);
}

enum pp_code pp_xielu_add(struct pp_tensor_list *l, const struct pp_gguf *g, const char *family, struct pp_error *err)
{
    char key[96];
    int64_t n = 0;
    enum pp_code code = PP_OK;
    snprintf(key, sizeof key, "%.64s.block_count", family);
    pp_gguf_int(g, key, &n);
    for (int64_t layer = 0; layer < n && layer < PP_MAX_LAYERS && !code; layer++)
        for (int i = 0; i < PP_XIELU_NUMBERS && !code; i++) {
            double v = 0;
            key_of(i, key);
            code = number_of(g, key, layer, &v, err);
            if (!code)
                code = add_number(l, layer, i, (float)v, err);
        }
    return code;
}

enum pp_code pp_xielu_write(const struct pp_source *s, struct pp_gguf_writer *w, struct pp_error *err)
{
    const int64_t n = pp_source_hparams(s)->n_layer;
    char name[64];
    if (!pp_source_tensor(s, "blk.0.xielu.alpha_p"))
        return PP_OK;
    float *values = pp_calloc((size_t)n, sizeof *values);
    if (!values)
        return pp_fail_nomem(err, "the numbers of activations");
    for (int i = 0; i < PP_XIELU_NUMBERS; i++) {
        for (int64_t l = 0; l < n; l++) {
            snprintf(name, sizeof name, "blk.%lld.xielu.%s", (long long)l, pp_xielu_names[i]);
            const struct pp_tensor *t = pp_source_tensor(s, name);
            if (t)
                pp_dequantize_row(t->type, t->data, &values[l], 1);
        }
        key_of(i, name);
        pp_gguf_add_f32_array(w, name, values, (size_t)n);
    }
    pp_free(values);
    return PP_OK;
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

struct pp_xielu pp_xielu_of(const struct pp_tensor *const *numbers)
{
    float v[PP_XIELU_NUMBERS];
    for (int i = 0; i < PP_XIELU_NUMBERS; i++)
        pp_dequantize_row(numbers[i]->type, numbers[i]->data, &v[i], 1);
    return (struct pp_xielu){.positive = softplus(v[0]), .negative = v[2] + softplus(v[1]), .linear = v[2],
                             .most = v[3]};
}
