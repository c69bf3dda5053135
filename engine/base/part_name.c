#include "engine/base/part_name.h"

#include <stdbool.h>
#include <string.h>

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

/* Where the last part of the first n bytes begins; n: where it ends. */
static size_t last_part(const char *path, size_t *n)
{
    while (*n > 1 && path[*n - 1] == '/')
        --*n;
    size_t begin = *n;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    return begin;
}

const char *pp_path_name(const char *path, size_t *n)
{
    static const char snapshots[] = "snapshots", models[] = "models--";
    *n = strlen(path);
    const size_t begin = last_part(path, n);
    size_t end = begin, above = last_part(path, &end);
    const bool snapshot = end - above == sizeof snapshots - 1 && memcmp(path + above, snapshots, end - above) == 0;
    end = above;
    above = last_part(path, &end);
    if (!snapshot || end - above < sizeof models || memcmp(path + above, models, sizeof models - 1) != 0) {
        *n -= begin;
        return path + begin;
    }
    size_t name = end - 1;
    while (memcmp(path + name - 2, "--", 2) != 0)
        name--;
    *n = end - name;
    return path + name;
}
