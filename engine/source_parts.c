/* source_parts.c - see source_parts.h. */
#include "engine/source_parts.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/part_name.h"

char *pp_part_path(const char *path, int i, int n, struct pp_error *err)
{
    static const char suffix[] = ".gguf";
    const size_t len = strlen(path), base = len > strlen(suffix) ? len - strlen(suffix) : 0;
    const size_t ending = strcmp(path + base, suffix) == 0 ? pp_part_ending(path, base) : 0;
    struct pp_buf out = {0};
    if (!ending) {
        pp_fail(err, PP_ERR_NOT_FOUND,
                "%s is one of %d parts of a model but is not named like one; rename the parts to "
                "NAME-00001-of-%05d.gguf", path, n, n);
        return NULL;
    }
    pp_buf_fmt(&out, "%.*s-%05d-of-%05d%s", (int)(base - ending), path, i + 1, n, suffix);
    if (out.bad)
        pp_fail_nomem(err, "the parts of the model");
    return out.bad ? (pp_buf_free(&out), NULL) : pp_buf_take(&out);
}

static enum pp_code check_part(const struct pp_gguf *g, int i, int n, struct pp_error *err)
{
    int64_t number = -1, count = -1;
    if (!pp_gguf_int(g, "split.no", &number) || !pp_gguf_int(g, "split.count", &count) || number != i || count != n)
        return pp_fail(err, PP_ERR_FORMAT, "%s is not part %d of %d, as its name says; download the model again",
                       pp_gguf_path(g), i + 1, n);
    return PP_OK;
}

enum pp_code pp_parts_open(const struct pp_gguf *first, int n, struct pp_gguf **parts, struct pp_error *err)
{
    int64_t announced = -1;
    size_t n_tensors = pp_gguf_n_tensors(first);
    enum pp_code code = check_part(first, 0, n, err);
    for (int i = 1; i < n && !code; i++) {
        char *path = pp_part_path(pp_gguf_path(first), i, n, err);
        code = path ? pp_gguf_open(path, &parts[i - 1], err) : err ? err->code : PP_ERR_NOT_FOUND;
        pp_free(path);
        if (code == PP_ERR_NOT_FOUND)
            pp_fail_prefix(err, "part %d of %d of the model", i + 1, n);
        if (!code)
            code = check_part(parts[i - 1], i, n, err);
        if (!code)
            n_tensors += pp_gguf_n_tensors(parts[i - 1]);
    }
    if (!code && pp_gguf_int(first, "split.tensors.count", &announced) && announced != (int64_t)n_tensors)
        return pp_fail(err, PP_ERR_FORMAT, "the %d parts of %s have %zu tensors, not %" PRId64 "; download them again",
                       n,
                       pp_gguf_path(first), n_tensors, announced);
    return code;
}
