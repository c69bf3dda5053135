#include "ui/format.h"

#include <stdio.h>
#include <time.h>

void pp_format_age(char *out, size_t cap, int64_t when, int64_t now)
{
    int64_t minutes = (now - when) / 60, hours = minutes / 60, days = hours / 24;
    time_t t = (time_t)when;
    struct tm local;
    if (days < 0 || days >= 14) { /* negative: in the future, as the clock was set back */
        if (!localtime_r(&t, &local) || strftime(out, cap, "%Y-%m-%d", &local) == 0)
            snprintf(out, cap, "long ago");
    } else if (minutes < 1) {
        snprintf(out, cap, "now");
    } else if (hours < 1) {
        snprintf(out, cap, "%d min ago", (int)minutes);
    } else if (days < 1) {
        snprintf(out, cap, "%d h ago", (int)hours);
    } else {
        snprintf(out, cap, days == 1 ? "yesterday" : "%d days ago", (int)days);
    }
}
