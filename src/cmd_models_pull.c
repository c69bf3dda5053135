/* cmd_models_pull.c - pippin models pull: downloads a model from a URL, from the Hugging Face hub
 * (hf:owner/name[:file]) or from the Ollama registry (ollama:name[:tag]) into the models folder.
 *
 * Hub: GET BASE/api/models/OWNER/NAME/tree/main lists files with their sizes and, for large ones, SHA-256, at most a
 * thousand per page (a Link header has the next page); a file is at BASE/OWNER/NAME/resolve/main/FILE. Registry: GET
 * BASE/v2/OWNER/NAME/manifests/TAG lists layers with their SHA-256; the model is the layer of type
 * application/vnd.ollama.image.model, at BASE/v2/OWNER/NAME/blobs/DIGEST. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/part_name.h"
#include "engine/base/utf8.h"
#include "engine/base/word.h"
#include "src/cmd_common.h"
#include "src/commands.h"
#include "src/fetch.h"
#include "src/figures.h"
#include "src/registry.h"

enum { MAX_LIST = 16 << 20, MAX_PAGES = 64, MAX_FILES = 512, MAX_TOKENS = 1 << 16 };

static const char hub_base[] = "https://huggingface.co", registry_base[] = "https://registry.ollama.ai";

struct remote {
    char *url, *name;         /* name: of the local file */
    uint64_t size;            /* 0: unknown */
    char sha256[65];          /* "" if unknown */
};

struct pull {
    const struct pp_options *o;
    const struct pp_paths *p;
    struct pp_store *st;      /* or NULL */
    const struct pp_cancel *cancel;
    struct remote files[MAX_FILES];
    size_t n_files;
    char *folder;             /* below the models folder, for a model of several files; or NULL */
    char *token;
    struct pp_cli_bar bar;
    uint64_t heard, heard_ns; /* bytes of the current file, and when they last increased; 0: it has just begun */
    int report_at_s;          /* seconds of silence after which that is reported next */
};

/* --- finding out what to download --------------------------------------------------------------------------------- */

/* Shortens a name that is too long for a file (.part.from is appended to it): a checksum replaces the middle. The
 * checksum excludes the end, which has the number of the part, so that all parts of a model are shortened alike. */
static void shorten(char *name)
{
    enum { BEGIN = 199, END = 32, CHECK = 8, LIMIT = BEGIN + 1 + CHECK + END };
    char hex[65];
    const size_t n = strlen(name);
    if (n <= LIMIT)
        return;
    const struct pp_sha256 check = pp_sha256(name, n - END);
    pp_sha256_hex(&check, hex);
    snprintf(name + BEGIN, 1 + CHECK + 1, "_%.*s", CHECK, hex);
    memmove(name + BEGIN + 1 + CHECK, name + n - END, END + 1);
}

/* A file name that is safe here: other characters than these, and a leading dot or dash, become underscores. */
static char *safe_name(const char *name)
{
    char *copy = pp_strdup(name);
    for (char *c = copy; c && *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || strchr("-_.+", *c)))
            *c = '_';
    if (copy && (copy[0] == '.' || copy[0] == '-'))
        copy[0] = '_';
    if (copy)
        shorten(copy);
    return copy;
}

/* The same for a path of at most one folder and a name. */
static char *safe_path(const char *path)
{
    const char *slash = strchr(path, '/');
    char *folder = slash ? pp_strndup(path, (size_t)(slash - path)) : NULL;
    char *safe = folder ? safe_name(folder) : NULL, *file = safe_name(slash ? slash + 1 : path);
    struct pp_buf both = {0};
    pp_free(folder);
    if (!slash || !safe || !file) {
        pp_free(safe);
        return slash ? (pp_free(file), NULL) : file;
    }
    pp_buf_fmt(&both, "%s/%s", safe, file);
    pp_free(safe);
    pp_free(file);
    return pp_buf_take(&both);
}

/* Whether it is a checksum, which may become part of a URL. */
static bool is_sha256(const char *s)
{
    return s && strlen(s) == 64 && strspn(s, "0123456789abcdefABCDEF") == 64;
}

static enum pp_code add_file(struct pull *l, const char *url, const char *name, uint64_t size, const char *sha256,
                             struct pp_error *err)
{
    struct remote *r = &l->files[l->n_files];
    if (l->n_files == MAX_FILES)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model has more than %d files, which pippin does not download",
                       MAX_FILES);
    *r = (struct remote){.url = pp_strdup(url), .name = safe_path(name), .size = size};
    snprintf(r->sha256, sizeof r->sha256, "%s", is_sha256(sha256) ? sha256 : "");
    l->n_files++;
    return r->url && r->name && *r->name ? PP_OK : pp_fail_nomem(err, "the list of files");
}

/* Adds the file of a URL, named by the last component of its path. */
static enum pp_code from_url(struct pull *l, const char *url, struct pp_error *err)
{
    const char *path = strstr(url, "://") + 3, *end = path + strcspn(path, "?#"), *slash = end;
    while (slash > path && slash[-1] != '/')
        slash--;
    if (slash == path || slash == end)
        return pp_fail(err, PP_ERR_USAGE, "%.*s does not name a file; give the URL of a file", PP_SHOWN_URL(url));
    char *name = pp_strndup(slash, (size_t)(end - slash));
    const enum pp_code code = name ? add_file(l, url, name, 0, NULL, err) : pp_fail_nomem(err, "a file name");
    pp_free(name);
    return code;
}

static const char *path_of(const cJSON *file)
{
    const char *path = cJSON_GetStringValue(pp_json_member(file, "path"));
    return path ? path : "";
}

static uint64_t size_of(const cJSON *file)
{
    const cJSON *size = pp_json_member(file, "size");
    return cJSON_IsNumber(size) && size->valuedouble > 0 && size->valuedouble < 1e15 ? (uint64_t)size->valuedouble : 0;
}

/* Appends a path, escaped for a URL (RFC 3986). */
static void add_escaped(struct pp_buf *url, const char *path)
{
    for (const char *c = path; *c; c++)
        if ((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || strchr("-._~/", *c))
            pp_buf_char(url, *c);
        else
            pp_buf_fmt(url, "%%%02X", (unsigned)(unsigned char)*c);
}

/* Files of sentence-transformers' modules, such as "1_Pooling/config.json" or "2_Dense/model.safetensors":
 * modules.json numbers their folders. */
static bool is_of_module(const char *path)
{
    const size_t digits = strspn(path, "0123456789");
    const char *slash = strchr(path, '/');
    return digits && path[digits] == '_' && slash &&
           (strcmp(slash, "/config.json") == 0 || strcmp(slash, "/model.safetensors") == 0);
}

/* Such as "additional_chat_templates/tool_use.jinja". */
static bool is_further_template(const char *path)
{
    static const char folder[] = "additional_chat_templates/";
    const size_t n = strlen(folder);
    return strncmp(path, folder, n) == 0 && !strchr(path + n, '/') && pp_case_ends_with(path, ".jinja");
}

static enum pp_code add_hub_file(struct pull *l, const char *base, const char *repository, const cJSON *file,
                                 struct pp_error *err)
{
    struct pp_buf url = {0};
    const char *path = path_of(file);
    const char *slash = is_of_module(path) || is_further_template(path) ? NULL : strrchr(path, '/');
    const cJSON *lfs = pp_json_member(file, "lfs");
    pp_buf_fmt(&url, "%s/%s/resolve/main/", base, repository);
    add_escaped(&url, path);
    enum pp_code code = url.bad ? pp_fail_nomem(err, "an address")
                                : add_file(l, url.data, slash ? slash + 1 : path, size_of(file),
                                           cJSON_GetStringValue(pp_json_member(lfs, "oid")), err);
    pp_buf_free(&url);
    return code;
}

/* Whether two GGUF files are parts of the same model: equal except for the number of the part. */
static bool same_split(const char *a, const char *b)
{
    const size_t n = strlen(a), base = pp_case_ends_with(a, ".gguf") ? n - strlen(".gguf") : 0;
    const size_t ending = pp_part_ending(a, base);
    return n == strlen(b) && ending && pp_part_ending(b, base) && memcmp(a, b, base - ending) == 0 &&
           strcmp(a + base - ending + PP_PART_NUMBER, b + base - ending + PP_PART_NUMBER) == 0;
}

/* A GGUF file that is a model: not an image projector or an importance matrix, which are often in the same folder. */
static bool is_model_file(const char *path)
{
    return pp_case_ends_with(path, ".gguf") && !pp_casestr(pp_base_name(path), "mmproj") &&
           pp_ncasecmp(pp_base_name(path), "imatrix", strlen("imatrix")) != 0;
}

/* Whether a file's name, without .gguf and the number of a part, equals the word (all) or ends with it. */
static bool is_called(const char *path, const char *word, bool all)
{
    const char *base = pp_base_name(path);
    size_t n = strlen(base) - (pp_case_ends_with(base, ".gguf") ? strlen(".gguf") : 0), k = strlen(word);
    n -= pp_part_ending(base, n);
    return (all ? n == k : n > k && strchr("-._", base[n - k - 1])) && pp_ncasecmp(base + n - k, word, k) == 0;
}

/* How well a file matches what was requested: 0 not at all, higher is better. Files that are not models match only
 * by their whole name. */
static int fits(const char *path, const char *wanted)
{
    if (strcmp(path, wanted) == 0)
        return 5;
    if (strcmp(pp_base_name(path), wanted) == 0)
        return 4;
    if (!is_model_file(path))
        return 0;
    return is_called(path, wanted, true) ? 3 : is_called(path, wanted, false) ? 2 : pp_casestr(path, wanted) ? 1 : 0;
}

/* Chooses a GGUF file: the one whose name was requested, or ends with that word, or contains it. Without a request,
 * the first of the usual types, or the first model. */
static const cJSON *choose_gguf(const cJSON *list, const char *wanted)
{
    static const char *const usual[] = {"q4_k_m", "q4_k_s", "q4_0", "q5_k_m", "q8_0"};
    const cJSON *f, *best = NULL;
    int best_fit = 0;
    cJSON_ArrayForEach(f, list)
    {
        const char *path = path_of(f);
        const int fit = wanted ? fits(path, wanted) : is_model_file(path);
        if (fit > best_fit) {
            best = f;
            best_fit = fit;
        }
    }
    for (size_t i = 0; !wanted && i < sizeof usual / sizeof *usual; i++)
        cJSON_ArrayForEach(f, list)
            if (is_model_file(path_of(f)) && (is_called(path_of(f), usual[i], true) ||
                                              is_called(path_of(f), usual[i], false)))
                return f;
    return best;
}

/* Whether a folder in Hugging Face format needs this file. */
static bool belongs_to_folder(const char *path)
{
    static const char *const names[] = {
        "model.safetensors.index.json", "config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
        "generation_config.json", "chat_template.jinja", "chat_template.json", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "tiktoken.model", "modules.json",
        "rwkv_vocab_v20230424.txt", "tekken.json", "config_sentence_transformers.json", "sentence_bert_config.json",
        "tokenizer.jsonl", "spiece.model", "sentencepiece.bpe.model", "hf_quant_config.json",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(path, names[i]) == 0)
            return true;
    if (is_of_module(path) || is_further_template(path) || (!strchr(path, '/') && pp_case_ends_with(path, ".tiktoken")))
        return true;
    /* some repositories also have the weights in a single file of another name, or an adapter */
    return !strchr(path, '/') && strncmp(path, "model", 5) == 0 && pp_case_ends_with(path, ".safetensors");
}

static enum pp_code choose_files(struct pull *l, const char *base, const char *repository, const char *wanted,
                                 const cJSON *list, struct pp_error *err)
{
    const cJSON *chosen = choose_gguf(list, wanted), *f;
    enum pp_code code = PP_OK;
    bool weights = false;
    if (wanted && !chosen)
        return pp_fail(err, PP_ERR_NOT_FOUND, "%s has no file \"%s\"", repository, wanted);
    cJSON_ArrayForEach(f, list)
    {
        const char *path = path_of(f);
        bool take = chosen ? f == chosen || same_split(path_of(chosen), path) : belongs_to_folder(path);
        weights = weights || (take && pp_case_ends_with(path, ".safetensors") && !is_of_module(path));
        if (take && !code)
            code = add_hub_file(l, base, repository, f, err);
    }
    if (!code && !chosen && !weights)
        return pp_fail(err, PP_ERR_NOT_FOUND, "%s has neither GGUF files nor safetensors", repository);
    if (!code && !chosen && !(l->folder = safe_name(repository)))
        return pp_fail_nomem(err, "a path");
    return code;
}

/* Requests JSON from a server; cJSON_Delete. *size: the total size of lists so far, to which this one is added; the
 * limit is MAX_LIST. next: see pp_fetch_text. */
static enum pp_code ask(struct pull *l, const char *url, size_t *size, cJSON **json, struct pp_buf *next,
                        struct pp_error *err)
{
    struct pp_buf text = {0};
    enum pp_code code = pp_fetch_text(url, l->token, MAX_LIST, l->cancel, &text, next, err);
    *json = NULL;
    *size += text.len;
    if (!code && *size > MAX_LIST)
        code = pp_fail(err, PP_ERR_FORMAT, "%.*s: the list of files is longer than %d MB, which cannot be right",
                       PP_SHOWN_URL(url), MAX_LIST >> 20);
    if (!code)
        code = pp_json_parse(text.data ? text.data : "", text.len, "the server's answer", NULL, json, err);
    if (!code && !*json)
        code = pp_fail(err, PP_ERR_FORMAT, "%.*s: the server's answer is not JSON", PP_SHOWN_URL(url));
    pp_buf_free(&text);
    return code;
}

/* Requests all pages of a list; cJSON_Delete. *url: the first page; overwritten by the following ones. */
static enum pp_code ask_for_all(struct pull *l, struct pp_buf *url, cJSON **list, struct pp_error *err)
{
    struct pp_buf next = {0};
    size_t size = 0;
    enum pp_code code = PP_OK;
    *list = NULL;
    for (int pages = 0; !code && url->len; pages++) {
        cJSON *page = NULL, *file;
        pp_buf_clear(&next);
        code = pages < MAX_PAGES ? ask(l, url->data, &size, &page, &next, err)
                                 : pp_fail(err, PP_ERR_UNSUPPORTED, "%.*s lists more files than %d pages have",
                                           PP_SHOWN_URL(url->data), MAX_PAGES);
        if (!code && *list && !(cJSON_IsArray(*list) && cJSON_IsArray(page)))
            code = pp_fail(err, PP_ERR_FORMAT, "%.*s: a later page of the list is not a list", PP_SHOWN_URL(url->data));
        while (!code && *list && (file = cJSON_DetachItemFromArray(page, 0)))
            cJSON_AddItemToArray(*list, file);
        if (!code && !*list) {
            *list = page;
            page = NULL;
        }
        cJSON_Delete(page);
        pp_buf_clear(url);
        pp_buf_str(url, pp_buf_cstr(&next));
        if (!code && (url->bad || next.bad))
            code = pp_fail_nomem(err, "an address");
    }
    pp_buf_free(&next);
    return code;
}

/* what: owner/name[:file]. */
static enum pp_code from_hub(struct pull *l, const char *what, struct pp_error *err)
{
    const char *base = l->o->hf_base ? l->o->hf_base : hub_base, *colon = strchr(what, ':');
    char *repository = pp_strndup(what, colon ? (size_t)(colon - what) : strlen(what));
    struct pp_buf url = {0};
    cJSON *list = NULL;
    if (!repository)
        return pp_fail_nomem(err, "a name");
    enum pp_code code = PP_OK;
    const char *slash = strchr(repository, '/');
    if (!slash || slash == repository || !slash[1] || strchr(slash + 1, '/') || strpbrk(repository, "?#%\\ "))
        code = pp_fail(err, PP_ERR_USAGE, "write hf:OWNER/NAME or hf:OWNER/NAME:FILE");
    pp_buf_fmt(&url, "%s/api/models/%s/tree/main?recursive=true", base, repository);
    if (!code && url.bad)
        code = pp_fail_nomem(err, "an address");
    if (!code)
        code = ask_for_all(l, &url, &list, err);
    if (!code)
        code = choose_files(l, base, repository, colon && colon[1] ? colon + 1 : NULL, list, err);
    cJSON_Delete(list);
    pp_buf_free(&url);
    pp_free(repository);
    return code;
}

/* what: [owner/]name[:tag]. */
static enum pp_code from_registry(struct pull *l, const char *what, struct pp_error *err)
{
    static const char kind[] = "application/vnd.ollama.image.model";
    const char *base = l->o->ollama_base ? l->o->ollama_base : registry_base, *colon = strchr(what, ':');
    const char *tag = colon && colon[1] ? colon + 1 : "latest";
    char *name = pp_strndup(what, colon ? (size_t)(colon - what) : strlen(what));
    const char *owner = name && strchr(name, '/') ? "" : "library/";
    struct pp_buf url = {0}, file = {0};
    cJSON *manifest = NULL, *layer;
    size_t size = 0;
    enum pp_code code = name ? PP_OK : pp_fail_nomem(err, "a name");
    if (!code && (!*name || strpbrk(what, "?#%\\ ")))
        code = pp_fail(err, PP_ERR_USAGE, "write ollama:NAME or ollama:NAME:TAG");
    if (!code) {
        pp_buf_fmt(&url, "%s/v2/%s%s/manifests/%s", base, owner, name, tag);
        code = url.bad ? pp_fail_nomem(err, "an address") : ask(l, url.data, &size, &manifest, NULL, err);
    }
    cJSON_ArrayForEach(layer, pp_json_member(manifest, "layers"))
    {
        const char *type = cJSON_GetStringValue(pp_json_member(layer, "mediaType"));
        const char *digest = cJSON_GetStringValue(pp_json_member(layer, "digest"));
        if (code || l->n_files || !type || !digest || strcmp(type, kind) != 0 || strncmp(digest, "sha256:", 7) != 0)
            continue;
        if (!is_sha256(digest + 7)) {
            code = pp_fail(err, PP_ERR_FORMAT, "%s:%s has no checksum for its model", name, tag);
            continue;
        }
        pp_buf_clear(&url);
        pp_buf_fmt(&url, "%s/v2/%s%s/blobs/%s", base, owner, name, digest);
        pp_buf_fmt(&file, "%s-%s.gguf", name, tag);
        code = url.bad || file.bad ? pp_fail_nomem(err, "an address")
                                   : add_file(l, url.data, file.data, size_of(layer), digest + 7, err);
    }
    if (!code && !l->n_files)
        code = pp_fail(err, PP_ERR_NOT_FOUND, "%s:%s contains no model", name, tag);
    cJSON_Delete(manifest);
    pp_buf_free(&url);
    pp_buf_free(&file);
    pp_free(name);
    return code;
}

/* --- access tokens ------------------------------------------------------------------------------------------------ */

/* The host of a URL, including its port. */
static char *host_of(const char *url)
{
    const char *host = strstr(url, "://") + 3;
    return pp_strndup(host, strcspn(host, "/?#"));
}

/* Whether a URL contains credentials, as in "https://name:password@host/". */
static bool names_user(const char *url)
{
    const char *host = strstr(url, "://") + 3;
    return memchr(host, '@', strcspn(host, "/?#")) != NULL;
}

/* white space around a token in a file or in a program's output */
static const char blanks[] = " \t\r\n\v\f";

/* Stores a token, which comes from `where`, as l->token. A line feed in it is refused, as it would end the HTTP
 * header. */
static enum pp_code keep_token(struct pull *l, const char *text, const char *where, struct pp_error *err)
{
    size_t n = strlen(text);
    while (n && strchr(blanks, text[n - 1]))
        n--;
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return pp_fail(err, PP_ERR_USAGE, "the token in %s contains a space, a line end or another invalid "
                                              "character; copy it again, the token alone", where);
    return (l->token = pp_strndup(text, n)) ? PP_OK : pp_fail_nomem(err, "a token");
}

/* Finds an access token: HF_TOKEN for the hub, or the line of the host in the file `tokens`, which must not be
 * readable by others. */
static enum pp_code find_token(struct pull *l, const char *url, bool hub, struct pp_error *err)
{
    char path[600], *text = NULL, *line, *rest;
    const char *variable = hub ? getenv("HF_TOKEN") : NULL;
    struct stat st;
    size_t n;
    if (variable && variable[strspn(variable, blanks)])
        return keep_token(l, variable + strspn(variable, blanks), "the variable HF_TOKEN", err);
    snprintf(path, sizeof path, "%s/tokens", l->p->config);
    if (stat(path, &st) != 0)
        return PP_OK;
    if (st.st_mode & 077)
        return pp_fail(err, PP_ERR_USAGE, "%s is readable by other users; run `chmod 600 %s` first", path, path);
    enum pp_code code = pp_read_file(path, MAX_TOKENS, &text, &n, err);
    char *host = code ? NULL : host_of(url);
    if (!code && !host)
        code = pp_fail_nomem(err, "a token");
    for (rest = text; !code && !l->token && (line = strsep(&rest, "\n"));) {
        const size_t k = strlen(host);
        line += pp_utf8_mark(line, strlen(line));
        line += strspn(line, blanks);
        const size_t gap = strncmp(line, host, k) == 0 ? strspn(line + k, blanks) : 0;
        if (!gap)
            continue;
        line[k + gap + strcspn(line + k + gap, blanks)] = 0; /* the rest of the line is a comment */
        if (line[k + gap])
            code = keep_token(l, line + k + gap, path, err);
    }
    pp_free(host);
    pp_free(text);
    return code;
}

/* --- downloading -------------------------------------------------------------------------------------------------- */

/* Reports when no data arrives, which a bar that stands still does not explain. */
static void report_silence(struct pull *l, uint64_t done)
{
    enum { QUIET_S = 10, EVERY_S = 60 };
    const uint64_t now = pp_now_ns();
    if (!l->heard_ns || done != l->heard) {
        l->heard = done;
        l->heard_ns = now;
        l->report_at_s = QUIET_S;
    }
    const int silent = (int)((now - l->heard_ns) / 1000000000);
    if (silent < l->report_at_s)
        return;
    pp_cli_bar_clear(&l->bar);
    pp_cli_say("no data for %d s; waiting for the server, %d minutes at most", silent,
               PP_FETCH_PATIENCE_S / 60);
    l->report_at_s += l->report_at_s < EVERY_S ? EVERY_S - l->report_at_s : EVERY_S;
}

static void progress(void *pull, uint64_t done, uint64_t total, double rate)
{
    struct pull *l = pull;
    report_silence(l, done);
    char what[120];
    int n = total ? snprintf(what, sizeof what, "%s of %s", pp_size(done).text, pp_size(total).text)
                  : snprintf(what, sizeof what, "%s of an unknown total", pp_size(done).text);
    if (!total && rate > 0)
        snprintf(what + n, sizeof what - (size_t)n, ", %.1f MB/s", rate / 1e6);
    else if (rate > 0 && n > 0 && (size_t)n < sizeof what) {
        char left[PP_CLI_DURATION];
        pp_cli_duration((double)(total > done ? total - done : 0) / rate, left);
        snprintf(what + n, sizeof what - (size_t)n, ", %.1f MB/s, %s left,", rate / 1e6, left);
    }
    pp_cli_bar_show(&l->bar, what, done, total);
}

/* Checks that a file begins as its format requires: servers may respond with an HTML page instead of an error. */
static enum pp_code check_beginning(const struct pp_fetch *f, int fd, struct pp_error *err)
{
    const struct pull *l = f->user;
    char begin[65] = "";
    const ssize_t n = pread(fd, begin, sizeof begin - 1, 0);
    const char *text = begin + strspn(begin, " \t\r\n"), *kind = NULL;
    if (n < 0)
        return pp_fail(err, PP_ERR_IO, "cannot read the file again: %s", strerror(errno));
    if (!l->folder)
        kind = memcmp(begin, "GGUF", 4) == 0 ? NULL : "GGUF";
    else if (pp_case_ends_with(f->path, ".safetensors"))
        /* the first 8 bytes are the length of the JSON header */
        kind = begin[8] == '{' && !begin[7] ? NULL : "safetensors";
    else if (pp_case_ends_with(f->path, ".json"))
        kind = *text == '{' || *text == '[' ? NULL : "JSON";
    if (!kind)
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT, "it is not a %s file%s", kind,
                   *text == '<' ? " but a web page; give the URL of the file itself" : "");
}

/* The same for an existing file: *right. */
static enum pp_code look_into(const struct pp_fetch *f, bool *right, struct pp_error *err)
{
    const int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return pp_fail(err, PP_ERR_IO, "cannot open %s: %s", f->path, strerror(errno));
    const enum pp_code code = check_beginning(f, fd, err);
    *right = code == PP_OK;
    close(fd);
    return code == PP_ERR_FORMAT ? PP_OK : code;
}

/* If neither size nor checksum is known, refuses an existing file that is registered with another source. */
static enum pp_code check_source(const struct pull *l, const struct pp_fetch *f, struct pp_error *err)
{
    char *source = pp_registry_source(l->p, f->path);
    const size_t n = strcspn(f->url, "?#");
    const bool other = source && *source && (strncmp(source, f->url, n) != 0 || source[n]);
    if (other)
        pp_fail(err, PP_ERR_USAGE, "%s exists and was downloaded from %s; move it away, then run this again", f->path,
                source);
    pp_free(source);
    return other ? PP_ERR_USAGE : PP_OK;
}

/* Whether the existing file is the requested one, as far as is known: *right. In a repository's own folder, a
 * different file is an older version, and is replaced; elsewhere it is an error, as it may be anything. */
static enum pp_code check_existing(const struct pull *l, const struct pp_fetch *f, const struct stat *st,
                                   char sha256[65], bool *right, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    sha256[0] = 0;
    *right = !f->size || (uint64_t)st->st_size == f->size;
    if (*right && f->sha256) {
        code = pp_file_sha256(f->path, f->cancel, sha256, err);
        *right = !code && pp_casecmp(sha256, f->sha256) == 0;
    }
    if (*right && !code)
        code = look_into(f, right, err);
    if (*right && !code && !f->size && !f->sha256)
        code = check_source(l, f, err);
    if (!code && !*right && !l->folder)
        code = pp_fail(err, PP_ERR_USAGE, "%s exists and is a different file; move it away, then run this again",
                       f->path);
    return code;
}

static enum pp_code fetch_one(struct pull *l, const struct remote *r, const char *folder, char sha256[65],
                              struct pp_error *err)
{
    struct pp_buf path = {0};
    struct stat st;
    pp_buf_fmt(&path, "%s/%s", folder, r->name);
    enum pp_code code = path.bad ? pp_fail_nomem(err, "a path") : pp_make_dirs_of(path.data, err);
    if (code) {
        pp_buf_free(&path);
        return code;
    }
    const struct pp_fetch f = {
        .url = r->url,
        .path = path.data,
        .size = r->size,
        .sha256 = l->o->sha256 ? l->o->sha256 : r->sha256[0] ? r->sha256 : NULL,
        .token = l->token,
        .check = check_beginning,
        .progress = progress,
        .user = l,
        .cancel = l->cancel,
    };
    bool right = false;
    if (stat(path.data, &st) == 0)
        code = check_existing(l, &f, &st, sha256, &right, err);
    if (right) {
        pp_cli_say("%s is already there", path.data);
    } else if (!code) {
        pp_cli_say("downloading %.*s", PP_SHOWN_URL(r->url));
        l->heard_ns = 0;
        code = pp_fetch_file(&f, sha256, err);
    }
    pp_cli_bar_clear(&l->bar);
    if (code == PP_ERR_IO || code == PP_ERR_CANCELLED) {
        struct pp_buf part = {0};
        pp_buf_fmt(&part, "%s.part", path.data);
        if (!part.bad && stat(part.data, &st) == 0 && st.st_size > 0)
            pp_cli_say("%.1f MB were kept; run the same command again to continue", (double)st.st_size / 1e6);
        pp_buf_free(&part);
    }
    pp_buf_free(&path);
    return code;
}

static enum pp_code find_files(struct pull *l, const char *what, struct pp_error *err)
{
    const bool hub = strncmp(what, "hf:", 3) == 0, registry = strncmp(what, "ollama:", 7) == 0;
    const bool url = strncmp(what, "https://", 8) == 0 || strncmp(what, "http://", 7) == 0;
    const char *base = hub ? l->o->hf_base : registry ? l->o->ollama_base : what;
    if (!hub && !registry && !url)
        return pp_fail(err, PP_ERR_USAGE,
                       "pull needs a URL (https://...), hf:OWNER/NAME[:FILE] or ollama:NAME[:TAG]");
    if (base && !strstr(base, "://"))
        return pp_fail(err, PP_ERR_USAGE,
                       "\"%s\", the server for %s, is not a URL; start it with https:// (set by %s)", base,
                       hub ? "hf:" : "ollama:", hub ? "--hf-base, HF_ENDPOINT, or hf-base in pippin.conf"
                                                    : "--ollama-base, or ollama-base in pippin.conf");
    if (base && names_user(base))
        return pp_fail(err, PP_ERR_USAGE,
                       "a name or password in a URL is visible to other users; leave it out, and put a token into "
                       "%s/tokens, as a line HOST TOKEN", l->p->config);
    const char *usual = hub ? hub_base : registry_base;
    enum pp_code code = find_token(l, base ? base : usual, hub, err);
    if (code)
        return code;
    return hub ? from_hub(l, what + 3, err) : registry ? from_registry(l, what + 7, err) : from_url(l, what, err);
}

static enum pp_code fetch_all(struct pull *l, char **path, char sha256[65], struct pp_error *err)
{
    struct pp_buf folder = {0}, whole = {0};
    if (l->o->sha256 && l->n_files != 1)
        return pp_fail(err, PP_ERR_USAGE, "--sha256 is for one file, but the model has %zu; leave --sha256 out",
                       l->n_files);
    pp_buf_fmt(&folder, l->folder ? "%s/models/%s" : "%s/models", l->p->data, l->folder);
    enum pp_code code = folder.bad ? pp_fail_nomem(err, "a path") : PP_OK;
    if (!code)
        pp_buf_fmt(&whole, l->folder ? "%s" : "%s/%s", folder.data, l->files[0].name);
    if (!code && whole.bad)
        code = pp_fail_nomem(err, "a path");
    if (!code && l->st) /* before the download, which may take hours */
        code = pp_registry_check_name(l->st, whole.data, l->o->name, err);
    for (size_t i = 0; i < l->n_files && !code; i++)
        code = fetch_one(l, &l->files[i], folder.data, sha256, err);
    if (l->n_files != 1)
        sha256[0] = 0;
    if (!code)
        *path = pp_buf_take(&whole);
    pp_buf_free(&folder);
    pp_buf_free(&whole);
    return code;
}

enum pp_code pp_cmd_models_pull(const struct pp_options *o, const struct pp_paths *p, struct pp_store *st,
                                const char *what, const struct pp_cancel *cancel, char **path,
                                char sha256[static 65], struct pp_error *err)
{
    *path = NULL;
    sha256[0] = 0;
    if (o->sha256 && !is_sha256(o->sha256))
        return pp_fail(err, PP_ERR_USAGE, "--sha256 needs the 64 hexadecimal digits of a checksum, not \"%s\"",
                       o->sha256);
    struct pull *l = pp_calloc(1, sizeof *l);
    if (!l)
        return pp_fail_nomem(err, "a download");
    l->o = o;
    l->p = p;
    l->st = st;
    l->cancel = cancel;
    enum pp_code code = find_files(l, what, err);
    if (!code)
        code = fetch_all(l, path, sha256, err);
    for (size_t i = 0; i < l->n_files; i++) {
        pp_free(l->files[i].url);
        pp_free(l->files[i].name);
    }
    pp_free(l->folder);
    pp_free(l->token);
    pp_free(l);
    return code;
}
