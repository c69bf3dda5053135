#include "engine/base/part_name.h"

size_t pp_part_ending(const char *name, size_t n)
{
    static const char pattern[PP_PART_ENDING + 1] = "-#####-of-#####";
    if (n <= PP_PART_ENDING)
        return 0;
    name += n - PP_PART_ENDING;
    for (size_t i = 0; i < PP_PART_ENDING; i++)
        if (pattern[i] == '#' ? name[i] < '0' || name[i] > '9' : name[i] != pattern[i])
            return 0;
    return PP_PART_ENDING;
}
