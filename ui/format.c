#include "ui/format.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

void pp_format_count(char *out, size_t cap, int64_t n)
{
    char digits[32];
    int len = snprintf(digits, sizeof digits, "%lld", (long long)n);
    size_t to = 0;
    for (int i = 0; i < len && to + 1 < cap; i++) {
        int left = len - i;
        if (i > 0 && left % 3 == 0 && digits[i - 1] != '-' && to + 2 < cap)
            out[to++] = ',';
        out[to++] = digits[i];
    }
    out[to] = '\0';
}

void pp_format_rate(char *out, size_t cap, float per_second)
{
    if (per_second >= 10)
        pp_format_count(out, cap, (int64_t)(per_second + 0.5f));
    else
        snprintf(out, cap, "%.1f", (double)per_second);
}

void pp_format_age(char *out, size_t cap, int64_t when, int64_t now)
{
    int64_t minutes = (now - when) / 60, hours = minutes / 60, days = hours / 24;
    time_t t = (time_t)when;
    struct tm local;
    if (minutes < 1)
        snprintf(out, cap, "now");
    else if (hours < 1)
        snprintf(out, cap, "%d min ago", (int)minutes);
    else if (days < 1)
        snprintf(out, cap, "%d h ago", (int)hours);
    else if (days < 14)
        snprintf(out, cap, days == 1 ? "yesterday" : "%d days ago", (int)days);
    else if (!localtime_r(&t, &local) || strftime(out, cap, "%Y-%m-%d", &local) == 0)
        snprintf(out, cap, "long ago");
}
