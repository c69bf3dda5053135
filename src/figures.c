#include "src/figures.h"

#include <stdio.h>

struct pp_figure pp_count(int64_t n)
{
    struct pp_figure f = {""};
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%lld", (long long)n);
    size_t to = 0;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0 && digits[i - 1] != '-')
            f.text[to++] = ',';
        f.text[to++] = digits[i];
    }
    return f;
}

struct pp_figure pp_rate(double per_second)
{
    struct pp_figure f;
    if (per_second >= 9.95 && per_second < 1e15)
        return pp_count((int64_t)(per_second + 0.5));
    snprintf(f.text, sizeof f.text, "%.1f", per_second);
    return f;
}
