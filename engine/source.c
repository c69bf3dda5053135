#include "engine/source.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/file_type.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/source_int.h"
#include "engine/source_parts.h"
#include "engine/tensor_forms.h"
#include "engine/xielu.h"

/* Shortens a list of names for a message: "... and 12 others". */
static void shorten(struct pp_buf *names)
{
    enum { ROOM = 240 };
    size_t end = ROOM, n_others = 0;
    if (names->bad || names->len <= ROOM)
        return;
    while (end > 0 && names->data[end] != ',')
        end--;
    for (size_t i = end; i < names->len; i++)
        n_others += names->data[i] == ',';
    names->len = end;
    pp_buf_fmt(names, " and %zu others", n_others);
}

enum pp_code pp_source_fail_family(const char *path, const char *family, struct pp_error *err)
{
    const char *missing = pp_arch_missing(family);
    struct pp_buf known = {0};
    if (!*family)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s does not name the model family (general.architecture; in "
                                                "config.json: architectures or model_type)", path);
    if (missing)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is of the family \"%s\", which pippin does not support: it would "
                                                "need %s", path, family, missing);
    pp_arch_list(&known);
    shorten(&known);
    enum pp_code code =
        pp_fail(err, PP_ERR_UNSUPPORTED, "%s is of the family \"%s\", which pippin does not know; known families: %s",
                path,
                family, pp_buf_cstr(&known));
    pp_buf_free(&known);
    return code;
}

/* --- a list of tensors --------------------------------------------------------------------------------- */

enum pp_code pp_source_add(struct pp_source *s, const struct pp_tensor *t, const char *name, bool made,
                               struct pp_error *err)
{
    return pp_tensor_list_add(&s->list, t, name, made, err);
}

enum pp_code pp_source_index(struct pp_source *s, struct pp_error *err)
{
    if (!pp_name_index_init(&s->names, s->list.n))
        return pp_fail_nomem(err, "the list of tensors");
    for (size_t i = 0; i < s->list.n; i++)
        if (!pp_name_index_add(&s->names, s->list.t[i].name, strlen(s->list.t[i].name)))
            return pp_fail(err, PP_ERR_FORMAT, "%s has tensor %s twice", s->path, s->list.t[i].name);
    return PP_OK;
}

/* --- GGUF ---------------------------------------------------------------------------------------------- */

static enum pp_code take_gguf_template(struct pp_source *s, const char *key, char **to, struct pp_error *err)
{
    struct pp_str text;
    if (!pp_gguf_string(s->gguf, key, &text))
        return PP_OK;
    if (!text.len || !memchr(text.data, '{', text.len))
        return PP_OK; /* a template's name, as in RWKV's first files, which would have no place for messages */
    *to = pp_strndup(text.data, text.len);
    return *to ? PP_OK : pp_fail_nomem(err, "the chat template");
}

static enum pp_code take_gguf_templates(struct pp_source *s, struct pp_error *err)
{
    enum pp_code code = take_gguf_template(s, "tokenizer.chat_template", &s->chat_template, err);
    return code ? code : take_gguf_template(s, "tokenizer.chat_template.tool_use", &s->tool_template, err);
}

/* Opens the first part, which has the metadata, whichever part was named. */
static enum pp_code go_to_first(struct pp_source *s, int n, struct pp_error *err)
{
    char *first = pp_part_path(s->path, 0, n, err);
    if (!first)
        return err ? err->code : PP_ERR_NOT_FOUND;
    pp_gguf_close(s->gguf);
    s->gguf = NULL;
    pp_free(s->path);
    s->path = first;
    return pp_gguf_open(s->path, &s->gguf, err);
}

/* Lists the tensors of all files in the forms that we compute with, unless those of a single file all have these forms
 * already. */
static enum pp_code list_tensors(struct pp_source *s, const char *family, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    const bool xielu = pp_xielu_in(s->gguf);
    const bool lacks_ones = pp_gguf_lacks_ones(s->gguf, family);
    bool other = s->n_parts > 0 || xielu || lacks_ones;
    for (size_t t = 0; t < pp_gguf_n_tensors(s->gguf) && !other; t++)
        other = pp_gguf_form(family, pp_gguf_tensor_at(s->gguf, t)) != PP_GGUF_USUAL;
    for (int i = 0; i < pp_source_n_files(s) && other && !code; i++) {
        const struct pp_gguf *g = pp_source_file(s, i);
        for (size_t t = 0; t < pp_gguf_n_tensors(g) && !code; t++)
            code = pp_gguf_form_add(&s->list, family, pp_gguf_tensor_at(g, t), lacks_ones, err);
    }
    if (!code && other)
        code = pp_gguf_take_scales(&s->list, err);
    if (!code && xielu)
        code = pp_xielu_add(&s->list, s->gguf, family, err);
    return code || !other ? code : pp_source_index(s, err);
}

/* Splits tensors of heads into the ones that we compute with, once the number of heads is known. */
static enum pp_code split_heads(struct pp_source *s, struct pp_error *err)
{
    const size_t n = s->list.n;
    enum pp_code code = pp_split_heads(&s->list, &s->hp, err);
    if (code || n == 0)
        return code;
    pp_name_index_free(&s->names);
    return pp_source_index(s, err);
}

static enum pp_code open_files(struct pp_source *s, struct pp_error *err)
{
    int64_t n = 1, number = 0;
    enum pp_code code = pp_gguf_open(s->path, &s->gguf, err);
    if (code || !pp_gguf_int(s->gguf, "split.count", &n) || n == 1)
        return code;
    if (n < 1 || n > PP_MAX_PARTS)
        return pp_fail(err, PP_ERR_FORMAT, "%s claims to be one of %lld parts, which cannot be right", s->path,
                       (long long)n);
    if (pp_gguf_int(s->gguf, "split.no", &number) && number != 0)
        code = go_to_first(s, (int)n, err);
    s->parts = pp_calloc((size_t)n, sizeof *s->parts);
    if (!code && !s->parts)
        code = pp_fail_nomem(err, "the parts of the model");
    s->n_parts = code ? 0 : (int)n - 1;
    if (!code)
        code = pp_parts_open(s->gguf, (int)n, s->parts, err);
    return code;
}

static enum pp_code open_gguf(struct pp_source *s, struct pp_error *err)
{
    struct pp_str name;
    char family[64];
    enum pp_code code = open_files(s, err);
    if (code)
        return code;
    if (pp_gguf_string_is(s->gguf, "general.type", "adapter"))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is a LoRA adapter, not a model; give it with --lora", s->path);
    if (!pp_gguf_string(s->gguf, "general.architecture", &name))
        return pp_fail(err, PP_ERR_FORMAT, "%s does not name the model family (general.architecture)",
                       s->path);
    pp_clean_name(name.data, name.len, family, sizeof family);
    const struct pp_arch *arch = pp_arch_of_file(s->gguf, family);
    if (!arch)
        return pp_source_fail_family(s->path, family, err);
    s->hp.rope_neox = arch->gguf_neox;
    s->hp.norm_eps = arch->gguf_eps;
    s->hp.expert_no_renorm = arch->gguf_default_no_renorm;
    s->hp.expert_sigmoids = arch->gguf_default_sigmoids;
    code = list_tensors(s, family, err);
    if (!code)
        code = pp_hparams_from_gguf(s, family, &s->hp, err);
    strcpy(s->hp.arch, arch->name); /* of an architecture's two names, the one by which everything else finds it */
    if (!code && arch->from_gguf)
        code = arch->from_gguf(s->gguf, &s->hp, err);
    if (!code && !pp_arch_encodes(arch))
        code = pp_hparams_refuse(s->gguf, family, &s->hp, err);
    if (!code)
        code = pp_hparams_check(&s->hp, err);
    if (!code && s->hp.kv_lora_rank)
        code = split_heads(s, err);
    if (code) {
        pp_fail_prefix(err, "%s", s->path);
        return code;
    }
    return take_gguf_templates(s, err);
}

/* --- the interface ------------------------------------------------------------------------------------- */

enum pp_code pp_source_open(const char *path, struct pp_source **out, struct pp_error *err)
{
    return pp_source_open_as(path, NULL, NULL, out, err);
}

enum pp_code pp_source_open_as(const char *path, const char *quant, const char *imatrix, struct pp_source **out,
                               struct pp_error *err)
{
    struct pp_error own; /* functions called here read the code from the error */
    struct stat st;
    err = err ? err : &own;
    *out = NULL;
    if (imatrix && !quant)
        return pp_fail(err, PP_ERR_USAGE, "an importance matrix is used when a folder is quantised while loading: add "
                                          "--quant TYPE, or leave %s out", imatrix);
    if (stat(path, &st) != 0)
        return pp_fail(err, errno == ENOENT || errno == ENOTDIR ? PP_ERR_NOT_FOUND : PP_ERR_IO, "cannot open %s: %s",
                       path, strerror(errno));
    struct pp_source *s = pp_calloc(1, sizeof *s);
    if (!s || !(s->path = pp_strdup(path))) {
        pp_free(s);
        return pp_fail_nomem(err, path);
    }
    pthread_mutex_init(&s->fill_lock, NULL);
    enum pp_code code = S_ISDIR(st.st_mode) ? pp_source_open_folder(s, err) : open_gguf(s, err);
    if (!code)
        code = pp_source_find_suppressed(s, err);
    if (!code && quant)
        code = pp_source_quantize(s, quant, err);
    if (!code && imatrix)
        code = pp_source_read_imatrix(s, imatrix, err);
    if (!code)
        code = pp_source_reserve(s, err);
    if (code) {
        pp_source_close(s);
        return code;
    }
    *out = s;
    return PP_OK;
}

void pp_source_close(struct pp_source *s)
{
    if (!s)
        return;
    pp_tensor_list_free(&s->list);
    if (s->room)
        munmap(s->room, s->room_size);
    pthread_mutex_destroy(&s->fill_lock);
    pp_name_index_free(&s->names);
    cJSON_Delete(s->text_config);
    for (int i = 0; i < s->n_parts; i++)
        pp_gguf_close(s->parts[i]);
    pp_free(s->parts);
    pp_gguf_close(s->gguf);
    pp_hf_close(s->hf);
    pp_imatrix_free(s->imatrix);
    pp_free(s->imatrix_path);
    pp_free(s->chat_template);
    pp_free(s->tool_template);
    pp_free(s->suppressed);
    pp_free(s->path);
    pp_free(s);
}

const char *pp_source_path(const struct pp_source *s)
{
    return s->path;
}

const struct pp_gguf *pp_source_gguf(const struct pp_source *s)
{
    return s->gguf;
}

int pp_source_n_files(const struct pp_source *s)
{
    return s->gguf ? 1 + s->n_parts : 0;
}

const struct pp_gguf *pp_source_file(const struct pp_source *s, int i)
{
    return i ? s->parts[i - 1] : s->gguf;
}

/* Whether all tensors are in one GGUF file, in the forms that we compute with; then its own index serves. */
static bool one_file(const struct pp_source *s)
{
    return s->gguf && !s->list.n;
}

const char *pp_source_folder(const struct pp_source *s)
{
    return s->hf ? s->path : NULL;
}

bool pp_source_drops_layers(const struct pp_source *s)
{
    return s->drops_layers;
}

enum pp_code pp_source_check_adapters(const struct pp_source *s, struct pp_error *err)
{
    if (!s->drops_layers)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "%s has vision layers, which pippin ignores; adapters of such models are "
                                            "not supported", s->path);
}

bool pp_source_is_wrapped(const struct pp_source *s)
{
    return s->wrapper != NULL;
}

const cJSON *pp_source_config(const struct pp_source *s)
{
    return s->hf ? s->text_config : NULL;
}

const char *pp_source_quant(const struct pp_source *s)
{
    return s->quantized;
}

const char *pp_source_imatrix(const struct pp_source *s)
{
    return s->imatrix_path;
}

const struct pp_hparams *pp_source_hparams(const struct pp_source *s)
{
    return &s->hp;
}

const struct pp_tensor *pp_source_tensor(const struct pp_source *s, const char *gguf_name)
{
    if (one_file(s))
        return pp_gguf_tensor(s->gguf, gguf_name);
    size_t i = pp_name_index_find(&s->names, gguf_name, strlen(gguf_name));
    return i == SIZE_MAX ? NULL : &s->list.t[i];
}

size_t pp_source_n_tensors(const struct pp_source *s)
{
    return one_file(s) ? pp_gguf_n_tensors(s->gguf) : s->list.n;
}

const struct pp_tensor *pp_source_tensor_at(const struct pp_source *s, size_t i)
{
    return one_file(s) ? pp_gguf_tensor_at(s->gguf, i) : &s->list.t[i];
}

int64_t pp_source_n_params(const struct pp_source *s)
{
    int64_t total = 0;
    for (size_t i = 0; i < pp_source_n_tensors(s); i++) {
        const int64_t *ne = pp_source_tensor_at(s, i)->ne;
        total += ne[0] * ne[1] * ne[2] * ne[3]; /* no overflow: each fits in a file */
    }
    return total;
}

size_t pp_source_bytes(const struct pp_source *s)
{
    size_t total = 0;
    for (size_t i = 0; i < pp_source_n_tensors(s); i++)
        total += pp_source_tensor_at(s, i)->size;
    return total;
}

const char *pp_source_type_name(const struct pp_source *s)
{
    size_t bytes[PP_TYPE_LIMIT] = {0};
    int64_t id;
    uint32_t most = 0;
    if (s->quantized)
        return s->quantized;
    if (s->gguf && pp_gguf_int(s->gguf, "general.file_type", &id) && pp_file_type_name(id))
        return pp_file_type_name(id);
    for (size_t i = 0; i < pp_source_n_tensors(s); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(s, i);
        bytes[t->type] += t->size;
    }
    for (uint32_t t = 0; t < PP_TYPE_LIMIT; t++)
        if (bytes[t] > bytes[most])
            most = t;
    return pp_type_info(most)->name;
}

const char *pp_source_chat_template(const struct pp_source *s)
{
    return s->chat_template;
}

const char *pp_source_tool_template(const struct pp_source *s)
{
    return s->tool_template ? s->tool_template : s->chat_template;
}

enum pp_code pp_source_check(const struct pp_source *s, struct pp_error *err)
{
    bool lost = s->hf && pp_hf_lost(s->hf);
    for (int i = 0; i < pp_source_n_files(s); i++)
        lost = lost || pp_gguf_lost(pp_source_file(s, i));
    if (!lost)
        return PP_OK;
    return pp_fail(err, PP_ERR_IO, "%s was truncated by another program while in use; load the model again",
                   s->path);
}

enum pp_code pp_source_check_unchanged(const struct pp_source *s, struct pp_error *err)
{
    const enum pp_code code = pp_source_check(s, err);
    bool changed = s->hf && pp_hf_changed(s->hf);
    for (int i = 0; i < pp_source_n_files(s); i++)
        changed = changed || pp_gguf_changed(pp_source_file(s, i));
    if (code || !changed)
        return code;
    return pp_fail(err, PP_ERR_IO, "another program changed %s while it was being read; try again when that is done",
                   s->path);
}
