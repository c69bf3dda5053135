#include "src/json_numbers.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The next number of a JSON text that is known to be valid, and its length; NULL: there is none. *at moves past it. */
static const char *next_number(const char **at, const char *end, size_t *len)
{
    const char *s = *at;
    bool in_string = false;
    while (s < end && (in_string || !(*s == '-' || (*s >= '0' && *s <= '9')))) {
        if (*s == '"')
            in_string = !in_string;
        else if (in_string && *s == '\\')
            s++;
        s++;
    }
    if (s >= end)
        return NULL;
    *len = 1;
    while (s + *len < end && s[*len] && strchr("0123456789+-.eE", s[*len]))
        ++*len;
    *at = s + *len;
    return s;
}

/* Whether it is an integer with more digits than a double is guaranteed to hold. */
static bool is_long_whole(const char *s, size_t n)
{
    size_t at = *s == '-';
    if (n - at <= 15 || s[at] == '0')
        return false;
    while (at < n && s[at] >= '0' && s[at] <= '9')
        at++;
    return at == n;
}

/* Visits the numbers of a value in the order of its text. */
static bool keep_digits(cJSON *v, const char **at, const char *end)
{
    size_t len = 0;
    for (cJSON *child = v->child; child; child = child->next)
        if (!keep_digits(child, at, end))
            return false;
    const char *s = cJSON_IsNumber(v) ? next_number(at, end, &len) : NULL;
    if (!s || !is_long_whole(s, len))
        return true;
    v->valuestring = cJSON_malloc(len + 1); /* freed by cJSON_Delete */
    if (!v->valuestring)
        return false;
    memcpy(v->valuestring, s, len);
    v->valuestring[len] = 0;
    return true;
}

bool pp_json_keep_digits(cJSON *v, const char *text, size_t n)
{
    return keep_digits(v, &text, text + n);
}

bool pp_json_whole(const cJSON *v, uint64_t *out)
{
    const bool has_digits = cJSON_IsNumber(v) && v->valuestring;
    char *end;
    errno = 0;
    *out = has_digits ? strtoull(v->valuestring, &end, 10) : 0;
    if (has_digits)
        return errno == 0 && *end == 0 && *v->valuestring != '-';
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble < 0x1p64) ||
        v->valuedouble != floor(v->valuedouble))
        return false;
    *out = (uint64_t)v->valuedouble;
    return true;
}

bool pp_json_exact(cJSON *v)
{
    char digits[40];
    for (cJSON *child = v->child; child; child = child->next)
        if (!pp_json_exact(child))
            return false;
    if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble))
        return true;
    if (v->valuestring) { /* digits kept by keep_digits */
        v->type = (v->type & ~0xFF) | cJSON_Raw;
        return true;
    }
    snprintf(digits, sizeof digits, "%.15g", v->valuedouble);
    if (fabs(v->valuedouble) < 1e18 && v->valuedouble == floor(v->valuedouble))
        snprintf(digits, sizeof digits, "%.0f", v->valuedouble);
    else if (memcmp(&(double){strtod(digits, NULL)}, &v->valuedouble, sizeof(double)) != 0)
        snprintf(digits, sizeof digits, "%.17g", v->valuedouble);
    char *text = cJSON_malloc(strlen(digits) + 1);
    if (!text)
        return false;
    strcpy(text, digits);
    v->type = (v->type & ~0xFF) | cJSON_Raw;
    v->valuestring = text; /* freed by cJSON_Delete */
    return true;
}

double pp_json_short(float v)
{
    enum { ENOUGH = 9 }; /* digits that tell all floats apart */
    char digits[32];
    double d = (double)v;
    for (int n = 1; isfinite(v) && n <= ENOUGH; n++) {
        snprintf(digits, sizeof digits, "%.*g", n, (double)v);
        d = strtod(digits, NULL);
        if (!((float)d < v || (float)d > v))
            break;
    }
    return d;
}
