#include "src/json_numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool pp_json_exact(cJSON *v)
{
    char digits[40];
    for (cJSON *child = v->child; child; child = child->next)
        if (!pp_json_exact(child))
            return false;
    if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble))
        return true;
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
    v->valuestring = text; /* cJSON_Delete frees it */
    return true;
}
