#include "engine/rope.h"

#include <math.h>

static const double TWO_PI = 6.283185307179586;

/* Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended. */
static double llama3(const struct pp_hparams *hp, double f)
{
    double wavelength = TWO_PI / f, context = (double)hp->rope_orig_ctx;
    double low = (double)hp->rope_low_freq, high = (double)hp->rope_high_freq;
    if (wavelength < context / high)
        return f;
    if (wavelength > context / low)
        return f / (double)hp->rope_factor;
    double smooth = (context / wavelength - low) / (high - low);
    return (1 - smooth) * f / (double)hp->rope_factor + smooth * f;
}

/* The dimension whose wave turns `turns` times within the original context. */
static double yarn_dimension(const struct pp_hparams *hp, double turns)
{
    return (double)hp->rope_dim * log((double)hp->rope_orig_ctx / (turns * TWO_PI)) / (2 * log((double)hp->rope_base));
}

/* YaRN (arXiv 2309.00071): interpolation by `factor` fades in from the dimension of beta_fast to that of beta_slow. */
static double yarn(const struct pp_hparams *hp, double f, int64_t i)
{
    double low = fmax(floor(yarn_dimension(hp, (double)hp->rope_beta_fast)), 0);
    double high = fmin(ceil(yarn_dimension(hp, (double)hp->rope_beta_slow)), (double)(hp->rope_dim - 1));
    double width = high - low > 0.001 ? high - low : 0.001;
    double ramp = fmin(fmax(((double)i - low) / width, 0), 1);
    return f / (double)hp->rope_factor * ramp + f * (1 - ramp);
}

void pp_rope_frequencies(const struct pp_hparams *hp, const float *factors, float *inv_freq, float *magnitude)
{
    *magnitude = 1;
    if (hp->rope_scaling == PP_ROPE_YARN)
        *magnitude = hp->rope_attn_factor > 0 ? hp->rope_attn_factor : 0.1f * logf(hp->rope_factor) + 1.0f;
    for (int64_t i = 0; i < hp->rope_dim / 2; i++) {
        double f = pow((double)hp->rope_base, -2.0 * (double)i / (double)hp->rope_dim);
        switch (hp->rope_scaling) {
        case PP_ROPE_NONE: break;
        case PP_ROPE_LINEAR: f /= (double)hp->rope_factor; break;
        case PP_ROPE_LLAMA3: f = factors ? f : llama3(hp, f); break;
        case PP_ROPE_YARN: f = yarn(hp, f, i); break;
        }
        inv_freq[i] = (float)(factors ? f / (double)factors[i] : f);
    }
}
