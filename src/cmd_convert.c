/* cmd_convert.c - pippin convert and quantize: convert files and folders of models. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/adapter_file.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/convert.h"
#include "engine/gguf.h"
#include "src/cmd_common.h"
#include "src/commands.h"

static void show_progress(void *user, const char *tensor, size_t done, size_t total)
{
    (void)tensor;
    pp_cli_bar_show(user, "writing", done, total);
}

/* Resolves the source: a path, or a model's name. The target must not be the source, which is still read while the
 * target is written. */
static enum pp_code find_source(const struct pp_options *o, const struct pp_paths *p, char *src, size_t cap,
                                struct pp_error *err)
{
    enum pp_code code = pp_resolve_model(p, o->args[0], src, cap, err);
    if (!code)
        code = pp_cli_apart(o->args[1], src, err);
    return code ? code : pp_cli_apart(o->args[1], o->imatrix.file, err);
}

static enum pp_code known_type(const char *type, struct pp_error *err)
{
    struct pp_buf names = {0};
    const char *name;
    if (pp_quantize_name(type))
        return PP_OK;
    for (size_t i = 0; (name = pp_quantize_type(i)); i++)
        pp_buf_fmt(&names, i ? ", %s" : "%s", name);
    pp_fail(err, PP_ERR_USAGE, "unknown type %s; choose from %s", type, pp_buf_cstr(&names));
    pp_buf_free(&names);
    return PP_ERR_USAGE;
}

/* `end` is what path led to beforehand; a link such as /dev/stdout no longer leads to the file that replaced it. */
static enum pp_code report_size(const char *path, const char *end, struct pp_error *err)
{
    struct stat st;
    char weights[1200] = "";
    if (stat(end, &st) == 0 && S_ISDIR(st.st_mode))
        snprintf(weights, sizeof weights, "%s/model.safetensors", end);
    if (weights[0] && stat(weights, &st) != 0)
        snprintf(weights, sizeof weights, "%s/adapter_model.safetensors", end);
    if (stat(weights[0] ? weights : end, &st) != 0)
        return pp_fail(err, PP_ERR_IO, "%s was written but has disappeared", path);
    pp_cli_say("wrote %s, %.1f MB", path, (double)st.st_size / 1e6);
    return PP_OK;
}

/* Whether a model is converted to a folder. */
static bool to_folder(const struct pp_options *o, bool from_file, const char *dst)
{
    return o->convert_to ? strcmp(o->convert_to, "gguf") != 0 : from_file && !pp_case_ends_with(dst, ".gguf");
}

/* Whether an existing file may be replaced: a model can be made again from its source. An importance matrix cannot,
 * as it may have taken hours. */
static bool is_weights(const char *path)
{
    return pp_gguf_is(path) && !pp_cli_is_imatrix(path);
}

/* Chooses the conversion by --to, or else by the names: an adapter in GGUF becomes a folder, any other adapter GGUF. */
static enum pp_code convert_file(const struct pp_options *o, const char *src, const char *dst,
                                 struct pp_convert_options *opt, struct pp_error *err)
{
    struct stat st;
    bool adapter;
    const enum pp_code looked = pp_adapter_recognise(src, &adapter, err);
    const bool file = stat(src, &st) == 0 && !S_ISDIR(st.st_mode);
    const bool mlx = o->convert_to && strcmp(o->convert_to, "mlx") == 0;
    if (o->convert_bits && !mlx)
        return pp_fail(err, PP_ERR_USAGE, "--bits is for MLX folders; add --to mlx");
    if (opt->base && looked)
        return looked; /* it may be an adapter whose file is damaged */
    if (opt->base && !adapter)
        return pp_fail(err, PP_ERR_USAGE, "--base is for adapters, and %s is not an adapter; leave --base out", src);
    if (adapter && o->convert_to && strcmp(o->convert_to, file ? "hf" : "gguf") != 0)
        return pp_fail(err, PP_ERR_USAGE, "%s is an adapter%s, which becomes %s; leave --to %s out", src,
                       file ? " in GGUF" : "'s folder", file ? "a folder as PEFT writes it" : "a GGUF file",
                       o->convert_to);
    if (adapter)
        return (file ? pp_convert_to_peft : pp_convert_to_gguf)(src, dst, opt, err);
    if (!to_folder(o, file, dst))
        return pp_convert_to_gguf(src, dst, opt, err);
    opt->bits = !mlx || o->convert_bits == 16 ? 0 : o->convert_bits ? o->convert_bits : 4;
    return pp_convert_to_folder(src, dst, opt, err);
}

/* Reads --imatrix into opt. *m is the caller's. */
static enum pp_code read_imatrix(const struct pp_options *o, struct pp_convert_options *opt, struct pp_imatrix **m,
                                 struct pp_error *err)
{
    if (!o->imatrix.file)
        return PP_OK;
    enum pp_code code = pp_imatrix_read(o->imatrix.file, m, err);
    opt->imatrix = *m;
    opt->imatrix_name = pp_base_name(o->imatrix.file); /* the folder would be stored in the file, and is private */
    return code;
}

static void report_imatrix(const struct pp_options *o, const struct pp_imatrix_use *use)
{
    const size_t all = use->n_weighed + use->n_unweighed;
    if (use->n_unweighed)
        pp_cli_say("%zu of %zu matrices were quantised with %s, which has no data for %s%s", use->n_weighed, all,
                   o->imatrix.file, use->first, use->n_unweighed > 1 ? " and others" : "");
    else
        pp_cli_say("all %zu matrices were quantised with %s", all, o->imatrix.file);
}

/* type: NULL for convert. Opens the model of --base for an adapter. */
static enum pp_code convert(const struct pp_options *o, const struct pp_paths *p, const char *type,
                            const struct pp_cancel *cancel, struct pp_error *err)
{
    char src[1024], base[1024], *end = NULL;
    struct pp_cli_bar bar = {0};
    struct pp_imatrix *imatrix = NULL;
    struct pp_imatrix_use use = {0};
    struct pp_convert_options opt = {
        .imatrix_use = &use,
        .out_type = o->out_type,
        .progress = show_progress,
        .user = &bar,
        .cancel = cancel,
    };
    enum pp_code code = find_source(o, p, src, sizeof src, err);
    if (!code && o->model[0]) {
        code = pp_resolve_model(p, o->model, base, sizeof base, err);
        opt.base = base;
    }
    if (!code)
        code = pp_cli_apart(o->args[1], opt.base, err);
    if (!code)
        code = pp_cli_may_replace(o->args[1], is_weights, "a GGUF file of weights", err);
    if (!code)
        code = pp_follow_links(o->args[1], &end, err);
    if (!code)
        code = read_imatrix(o, &opt, &imatrix, err);
    if (!code)
        code = type ? pp_quantize_file(src, o->args[1], type, &opt, err)
                    : convert_file(o, src, o->args[1], &opt, err);
    pp_cli_bar_clear(&bar);
    pp_imatrix_free(imatrix);
    if (!code && o->imatrix.file)
        report_imatrix(o, &use);
    if (!code)
        code = report_size(o->args[1], end, err);
    pp_free(end);
    return code;
}

int pp_cmd_convert(const struct pp_options *o, const struct pp_paths *p)
{
    struct pp_error err = {0};
    const struct pp_cancel *cancel = pp_cli_begin();
    enum pp_code code = pp_cli_args(o, 2, 2, "SRC DST", &err);
    return pp_cli_end(code ? code : convert(o, p, NULL, cancel, &err), &err);
}

int pp_cmd_quantize(const struct pp_options *o, const struct pp_paths *p)
{
    struct pp_error err = {0};
    const struct pp_cancel *cancel = pp_cli_begin();
    enum pp_code code = pp_cli_args(o, 3, 3, "SRC DST TYPE", &err);
    if (!code)
        code = known_type(o->args[2], &err);
    return pp_cli_end(code ? code : convert(o, p, o->args[2], cancel, &err), &err);
}
