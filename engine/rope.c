#include "engine/rope.h"

#include <math.h>

#include "engine/base/mem.h"
#include "engine/quant.h"

static const double TWO_PI = 6.283185307179586;

/* Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended; Llama 4 has none
 * between. */
static double llama3(const struct pp_hparams *hp, double f)
{
    double wavelength = TWO_PI / f, context = (double)hp->rope_orig_ctx;
    double low = (double)hp->rope_low_freq, high = (double)hp->rope_high_freq;
    if (wavelength < context / high || (wavelength == context / high && low == high))
        return f;
    if (wavelength > context / low)
        return f / (double)hp->rope_factor;
    double smooth = (context / wavelength - low) / (high - low);
    return (1 - smooth) * f / (double)hp->rope_factor + smooth * f;
}

/* The dimension that makes `turns` rotations within the original context. */
static double yarn_dimension(const struct pp_hparams *hp, double turns)
{
    return (double)hp->rope_dim * log((double)hp->rope_orig_ctx / (turns * TWO_PI)) / (2 * log((double)hp->rope_base));
}

/* YaRN (arXiv 2309.00071): interpolation by `factor` fades in from the dimension of beta_fast to that of beta_slow. */
static double yarn(const struct pp_hparams *hp, double f, int64_t i)
{
    double low = yarn_dimension(hp, (double)hp->rope_beta_fast), high = yarn_dimension(hp, (double)hp->rope_beta_slow);
    low = fmax(hp->rope_no_truncate ? low : floor(low), 0);
    high = fmin(hp->rope_no_truncate ? high : ceil(high), (double)(hp->rope_dim - 1));
    double width = high - low > 0.001 ? high - low : 0.001;
    double ramp = fmin(fmax(((double)i - low) / width, 0), 1);
    return f / (double)hp->rope_factor * ramp + f * (1 - ramp);
}

/* NTK-aware scaling by the context's length: the base that makes the longest wave as long as interpolation would. */
static double dynamic_base(const struct pp_hparams *hp, int64_t n_ctx)
{
    const double longer = (double)n_ctx / (double)hp->rope_orig_ctx, factor = (double)hp->rope_factor;
    const double dim = (double)hp->rope_dim;
    if (longer <= 1 || hp->rope_dim <= 2)
        return (double)hp->rope_base;
    return (double)hp->rope_base * pow(factor * longer - (factor - 1), dim / (dim - 2));
}

/* LongRoPE (arXiv 2402.13753): the factor that compensates for smaller scores in a longer context. */
float pp_rope_long_magnitude(const struct pp_hparams *hp)
{
    const double longer = (double)hp->n_ctx_train / (double)hp->rope_orig_ctx;
    if (hp->rope_attn_factor > 0)
        return hp->rope_attn_factor;
    return longer > 1 && hp->rope_orig_ctx > 1 ? (float)sqrt(1 + log(longer) / log((double)hp->rope_orig_ctx)) : 1.0f;
}

void pp_rope_frequencies(const struct pp_hparams *hp, int64_t n_ctx, const float *factors, float *inv_freq,
                         float *magnitude)
{
    const bool dynamic = hp->rope_scaling == PP_ROPE_DYNAMIC;
    const double base = dynamic ? dynamic_base(hp, n_ctx) : (double)hp->rope_base;
    *magnitude = hp->rope_scaling == PP_ROPE_LONG ? pp_rope_long_magnitude(hp) : 1;
    if (hp->rope_scaling == PP_ROPE_YARN)
        *magnitude = hp->rope_attn_factor > 0 ? hp->rope_attn_factor : 0.1f * logf(hp->rope_factor) + 1.0f;
    for (int64_t i = 0; i < hp->rope_dim / 2; i++) {
        double f = pow(base, -2.0 * (double)i / (double)hp->rope_dim);
        switch (hp->rope_scaling) {
        case PP_ROPE_NONE:
        case PP_ROPE_DYNAMIC:
        case PP_ROPE_LONG: break;
        case PP_ROPE_LINEAR: f /= (double)hp->rope_factor; break;
        case PP_ROPE_LLAMA3: f = factors ? f : llama3(hp, f); break;
        case PP_ROPE_YARN: f = yarn(hp, f, i); break;
        }
        inv_freq[i] = (float)(factors ? f / (double)factors[i] : f);
        if (hp->rope_n_pairs && i >= hp->rope_n_pairs)
            inv_freq[i] = 0;
        if (hp->rope_reversed)
            inv_freq[i] = -inv_freq[i];
    }
}

/* The tensor of this name as divisors of frequencies: float [rope_dim / 2], pp_free; NULL if there is none. */
static enum pp_code read_factors(const struct pp_source *s, const char *name, float **factors, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
    const struct pp_tensor *t = pp_source_tensor(s, name);
    *factors = NULL;
    if (!t)
        return PP_OK;
    const int64_t n = hp->rope_dim / 2, local = hp->rope_dim_local / 2; /* rope_freqs may belong to either width */
    if ((t->ne[0] != n && t->ne[0] != local) || t->ne[0] < n || t->n_dims != 1 || !pp_type_info(t->type)->runnable)
        return pp_fail(err, PP_ERR_FORMAT, "tensor %s has %lld values, but %lld are needed", name,
                       (long long)t->ne[0], (long long)hp->rope_dim / 2);
    float *f = pp_malloc((size_t)t->ne[0] * sizeof *f);
    if (!f)
        return pp_fail_nomem(err, "the rotary frequencies");
    pp_dequantize_row(t->type, t->data, f, t->ne[0]);
    for (int64_t i = 0; i < t->ne[0]; i++)
        if (!(f[i] > 0) || !isfinite(f[i])) { /* frequencies are divided by them */
            pp_free(f);
            return pp_fail(err, PP_ERR_FORMAT,
                           "tensor %s contains values that are not positive; the model file is damaged: download it "
                           "again", name);
        }
    *factors = f;
    return PP_OK;
}

enum pp_code pp_rope_factors(const struct pp_source *s, int64_t n_ctx, float **factors, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
    const char *name = hp->rope_scaling != PP_ROPE_LONG ? "rope_freqs.weight"
                       : n_ctx > hp->rope_orig_ctx      ? "rope_factors_long.weight"
                                                        : "rope_factors_short.weight";
    enum pp_code code = read_factors(s, name, factors, err);
    if (!code && !*factors && hp->rope_scaling == PP_ROPE_LONG)
        code = pp_fail(err, PP_ERR_FORMAT, "tensor %s is missing; the file is incomplete: download it again", name);
    return code;
}
