#include "src/figures.h"

#include <stdbool.h>
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

struct pp_figure pp_size(uint64_t bytes)
{
    struct pp_figure f;
    const bool small = bytes < 999950000;
    snprintf(f.text, sizeof f.text, "%.*f %s", small ? 1 : 2, (double)bytes / (small ? 1e6 : 1e9), small ? "MB" : "GB");
    return f;
}

struct pp_figure pp_parameters(int64_t n)
{
    struct pp_figure f;
    const bool few = n < 999500000;
    snprintf(f.text, sizeof f.text, "%.3g %s", (double)n / (few ? 1e6 : 1e9), few ? "million" : "billion");
    return f;
}
