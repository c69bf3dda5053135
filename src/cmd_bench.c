/* cmd_bench.c - pippin bench: chooses what to measure and on which model, and reports it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/topology.h"
#include "engine/base/utf8.h"
#include "src/adapter_names.h"
#include "src/cmd_bench.h"
#include "src/commands.h"

/* --- what to measure -------------------------------------------------------------------------------------------- */

static const struct {
    const char *word;
    unsigned what;
} words[] = {
    {"quick", BENCH_QUICK},
    {"depth", BENCH_DEPTH},
    {"rows", BENCH_ROWS},
    {"threads", BENCH_THREADS},
    {"kv", BENCH_KV},
    {"kernels", BENCH_KERNELS},
    {"memory", BENCH_MEMORY},
    {"micro", BENCH_MICRO},
    {"start", BENCH_START},
    {"tokenizer", BENCH_TOKENIZER},
    {"resume", BENCH_RESUME},
    {"several", BENCH_SEVERAL},
    {"lora", BENCH_LORA},
    {"draft", BENCH_DRAFT},
    {"trace", BENCH_TRACE},
    {"sessions", BENCH_SESSIONS},
    {"all", BENCH_PASSES | BENCH_MICRO | BENCH_START | BENCH_TOKENIZER | BENCH_RESUME | BENCH_SEVERAL | BENCH_LORA |
                BENCH_TRACE},
};

static enum pp_code unknown_word(const char *word, struct pp_error *err)
{
    enum { N = sizeof words / sizeof *words };
    struct pp_buf known = {0};
    for (size_t w = 0; w < N; w++)
        pp_buf_fmt(&known, "%s%s", w == 0 ? "" : w + 1 < N ? ", " : " and ", words[w].word);
    pp_fail(err, PP_ERR_USAGE, "pippin bench does not measure \"%s\"; it knows %s", word, pp_buf_cstr(&known));
    pp_buf_free(&known);
    return PP_ERR_USAGE;
}

static enum pp_code read_words(struct bench *b, struct pp_error *err)
{
    for (int i = 0; i < b->o->n_args; i++) {
        unsigned what = 0;
        for (size_t w = 0; w < sizeof words / sizeof *words; w++)
            if (strcmp(words[w].word, b->o->args[i]) == 0)
                what = words[w].what;
        if (!what)
            return unknown_word(b->o->args[i], err);
        b->what |= what;
    }
    if (!b->what) /* a list of depths or rows selects its measurement */
        b->what = (b->o->bench.depths ? BENCH_DEPTH : 0u) | (b->o->bench.rows ? BENCH_ROWS : 0u);
    if (!b->what)
        b->what = BENCH_QUICK;
    return PP_OK;
}

/* Parses a comma-separated list of integers without duplicates. */
static enum pp_code read_list(const char *text, const char *option, int64_t least, int64_t most,
                              int64_t out[BENCH_MAX_LIST], int64_t *n, struct pp_error *err)
{
    *n = 0;
    for (const char *at = text; *at || at == text;) {
        size_t len = strcspn(at, ",");
        char *end = NULL;
        long long v = *at >= '0' && *at <= '9' ? strtoll(at, &end, 10) : -1;
        if (end != at + len || v < least || v > most || strcmp(at + len, ",") == 0)
            return pp_fail(err, PP_ERR_USAGE, "%s expects whole numbers from %lld to %lld between commas, not \"%s\"",
                           option, (long long)least, (long long)most, text);
        bool twice = false;
        for (int64_t i = 0; i < *n; i++)
            twice = twice || out[i] == v;
        if (!twice && *n == BENCH_MAX_LIST)
            return pp_fail(err, PP_ERR_USAGE, "%s takes at most %d numbers", option, BENCH_MAX_LIST);
        if (!twice)
            out[(*n)++] = v;
        at += len + (at[len] == ',');
    }
    return PP_OK;
}

static enum pp_code read_kv_types(struct bench *b, struct pp_error *err)
{
    const char *list = b->o->bench.kv_types;
    b->kv_types[b->n_kv_types++] = b->o->kv_type;
    for (const char *at = list; at && *at;) {
        char word[16] = "";
        size_t len = strcspn(at, ",");
        memcpy(word, at, len < sizeof word ? len : 0);
        int type = pp_kv_type_by_name(word);
        if (type < 0)
            return pp_fail(err, PP_ERR_USAGE, "there is no KV type \"%s\"", word);
        bool twice = false;
        for (int64_t i = 0; i < b->n_kv_types; i++)
            twice = twice || b->kv_types[i] == type;
        if (!twice && b->n_kv_types < BENCH_MAX_LIST)
            b->kv_types[b->n_kv_types++] = type;
        at += len + (at[len] == ',');
    }
    static const char *const all[] = {"f32", "f16", "q8", "q8_0", "fp8", "q4_0"};
    for (size_t i = 0; i < sizeof all / sizeof *all && b->what & BENCH_KV && !list; i++)
        if (pp_kv_type_by_name(all[i]) != (int)b->kv_types[0])
            b->kv_types[b->n_kv_types++] = pp_kv_type_by_name(all[i]);
    return PP_OK;
}

/* The most threads that an engine has, whatever is asked for: as many as this process may use CPUs at once. */
static int64_t most_threads(void)
{
    struct pp_topology here;
    pp_topology_read(NULL, NULL, &here);
    return here.n_at_once;
}

/* 1, 2, 4, ... and the most there are. */
static void all_threads(struct bench *b)
{
    const int64_t most = most_threads();
    b->n_threads = 0;
    for (int64_t t = 1; t < most && b->n_threads < BENCH_MAX_LIST - 1; t *= 2)
        b->threads[b->n_threads++] = t;
    b->threads[b->n_threads++] = most;
}

/* Larger numbers than there are threads would all measure the same: they are measured once, by the real number. */
static void limit_threads(struct bench *b)
{
    const int64_t most = most_threads();
    int64_t n = 0;
    for (int64_t i = 0; i < b->n_threads; i++) {
        const int64_t t = b->threads[i] < most ? b->threads[i] : most;
        bool twice = false;
        for (int64_t k = 0; k < n; k++)
            twice = twice || b->threads[k] == t;
        if (t < b->threads[i])
            b->report.most_threads = (int)most;
        if (!twice)
            b->threads[n++] = t;
    }
    b->n_threads = n;
}

static enum pp_code read_lists(struct bench *b, struct pp_error *err)
{
    enum { MAX_DEPTH = 1 << 24, MAX_ROWS = 4096, MAX_THREADS = 512 };
    const struct pp_options *o = b->o;
    const char *depths = o->bench.depths ? o->bench.depths : b->what & BENCH_DEPTH ? "0,1024,4096" : NULL;
    const char *rows = o->bench.rows ? o->bench.rows : b->what & BENCH_ROWS ? "1,2,4,8,16" : NULL;
    enum pp_code code = PP_OK;
    b->threads[b->n_threads++] = o->threads;
    if (depths)
        code = read_list(depths, "--depth", 0, MAX_DEPTH, b->depths, &b->n_depths, err);
    if (!code && rows)
        code = read_list(rows, "--rows", 1, MAX_ROWS, b->rows, &b->n_rows, err);
    if (!code && o->bench.threads)
        code = read_list(o->bench.threads, "-t", 1, MAX_THREADS, b->threads, &b->n_threads, err);
    else if (b->what & BENCH_THREADS)
        all_threads(b);
    limit_threads(b);
    return code ? code : read_kv_types(b, err);
}

static enum pp_code read_options(struct bench *b, struct pp_error *err)
{
    b->n_prompt = b->o->n_prompt;
    b->n_gen = b->o->n_gen;
    b->repetitions = b->o->repetitions;
    if (b->n_prompt < 1)
        return pp_fail(err, PP_ERR_USAGE, "bench needs a prompt of at least one token");
    enum pp_code code = read_words(b, err);
    return code ? code : read_lists(b, err);
}

/* --- progress --------------------------------------------------------------------------------------------------- */

void bench_show(struct bench *b, const char *what, uint64_t done, uint64_t total)
{
    if (!b->bar.last_ns)
        b->bar.last_ns = 1; /* show the bar at once, not only after a tenth of a second */
    pp_cli_bar_show(&b->bar, what, done, total);
}

void bench_show_prompt(void *user, uint64_t done, uint64_t total)
{
    char what[64];
    snprintf(what, sizeof what, "a prompt of %llu tokens", (unsigned long long)total);
    bench_show(user, what, done, total);
}

/* --- the model -------------------------------------------------------------------------------------------------- */

static void writing(void *user, uint64_t done, uint64_t total)
{
    pp_cli_bar_show(user, "writing", done, total);
}

static enum pp_code write_random(struct bench *b, const struct pp_random_model *spec, const char *path,
                                 struct pp_error *err)
{
    enum pp_code code = pp_random_model_write(spec, path, writing, &b->bar, b->cancel, err);
    pp_cli_bar_clear(&b->bar);
    return code;
}

static struct pp_random_model random_spec(const struct bench *b)
{
    return (struct pp_random_model){
        .shape = b->o->bench.shape,
        .type = b->o->bench.type,
        .n_layers = b->o->bench.layers,
        .n_vocab = b->o->bench.vocab,
        .seed = 1,
    };
}

/* The number of layers that gives about a billion weights, more than caches hold; at most those of the shape. */
static int64_t enough_layers(const struct pp_random_shape *s)
{
    int64_t n_ff = s->n_ff * (s->n_expert ? s->n_expert : 1);
    int64_t one = s->n_embd * (2 * s->n_embd + 2 * s->n_embd / s->n_head * s->n_head_kv + 3 * n_ff);
    int64_t n = 1000000000 / one + 1;
    return n < s->n_layers ? n : s->n_layers;
}

void bench_temporary(char *path, size_t size, const char *ending)
{
    static int count;
    const char *dir = getenv("TMPDIR");
    snprintf(path, size, "%.900s/pippin-bench-%ld-%d%s", dir && *dir ? dir : "/tmp", (long)getpid(), count++, ending);
}

/* Writes a random model that is deleted at the end. */
static enum pp_code make_random(struct bench *b, struct pp_error *err)
{
    struct pp_random_model spec = random_spec(b);
    const struct pp_random_shape *shape = pp_random_shape_by_name(spec.shape);
    if (shape && !spec.n_layers)
        spec.n_layers = enough_layers(shape);
    bench_temporary(b->path, sizeof b->path, ".gguf");
    b->temporary = true;
    enum pp_code code = write_random(b, &spec, b->path, err);
    if (code)
        return code;
    if (shape && spec.n_layers != shape->n_layers)
        b->report.full_layers = shape->n_layers;
    return PP_OK;
}

static enum pp_code open_model(struct bench *b, struct pp_error *err)
{
    enum pp_code code = b->o->bench.shape ? make_random(b, err)
                                          : pp_cli_model_path(b->o, b->paths, b->path, sizeof b->path, err);
    const bool as_it_is = !pp_options_given(b->o, "quant") && !pp_is_folder(b->path);
    if (!code)
        code = pp_model_open_as(b->path, as_it_is ? NULL : b->o->quant, b->o->imatrix.file, &b->model, err);
    if (!code)
        code = pp_model_check_writes(b->model, err);
    for (int i = 0; i < b->o->n_lora && !code; i++) {
        const char *path = b->o->lora[i].path;
        if (!(code = pp_adapter_check(b->paths, b->path, path, err)))
            code = pp_adapter_load(b->model, path, &b->adapters[i], err);
        b->uses[i] = (struct pp_adapter_use){.adapter = b->adapters[i], .scale = b->o->lora[i].scale};
        b->n_adapters += !code;
    }
    return code;
}

/* For measurements that need only a tokenizer. */
static enum pp_code open_tokenizer(struct bench *b, struct pp_error *err)
{
    enum pp_code code = pp_cli_model_path(b->o, b->paths, b->path, sizeof b->path, err);
    if (code)
        return code;
    code = pp_tokenizer_open(b->path, &b->tokenizer, err);
    return code == PP_ERR_NOT_FOUND
               ? pp_fail(err, PP_ERR_USAGE, "%s has no vocabulary, so there is no tokenizer to measure", b->path)
               : code;
}

/* --write: writes a random model and measures nothing. */
static enum pp_code keep_random(struct bench *b, struct pp_error *err)
{
    struct pp_random_model spec = random_spec(b);
    struct pp_model *m;
    char *end = NULL; /* the target of a link, resolved before it is replaced */
    enum pp_code code = pp_cli_may_replace(b->o->bench.write, pp_random_model_is, "a random model", err);
    if (!code)
        code = pp_follow_links(b->o->bench.write, &end, err);
    if (!code)
        code = write_random(b, &spec, b->o->bench.write, err);
    if (!code)
        code = pp_model_open(end, &m, err);
    pp_free(end);
    if (code)
        return code;
    const struct pp_model_info *info = pp_model_info(m);
    if (b->o->json) {
        struct pp_buf out = {0};
        pp_buf_char(&out, '{');
        pp_cli_json_str(&out, "file", b->o->bench.write);
        pp_cli_json_str(&out, "model", info->name);
        pp_cli_json_str(&out, "type", info->type_name);
        pp_cli_json_int(&out, "n_layers", info->n_layer);
        pp_cli_json_int(&out, "n_params", info->n_params);
        pp_cli_json_count(&out, "bytes", info->bytes);
        pp_buf_str(&out, "}\n");
        fputs(pp_buf_cstr(&out), stdout);
        pp_buf_free(&out);
    } else {
        char path[sizeof b->path];
        pp_utf8_print(path, sizeof path, "%s", b->o->bench.write);
        pp_utf8_line(path, sizeof path);
        printf("%s: %s, %s, %lld layer%s, %.1f MB\n", path, info->name, info->type_name,
               (long long)info->n_layer, info->n_layer == 1 ? "" : "s", (double)info->bytes / 1e6);
    }
    pp_model_close(m);
    return PP_OK;
}

/* --- the command ------------------------------------------------------------------------------------------------ */

static enum pp_code run(struct bench *b, struct pp_error *err)
{
    enum pp_code code = read_options(b, err);
    if (code)
        return code;
    if (b->o->bench.write)
        return keep_random(b, err);
    if (b->what == BENCH_TOKENIZER && !b->o->bench.shape)
        code = open_tokenizer(b, err);
    else if (b->what != BENCH_SESSIONS)
        code = open_model(b, err);
    if (!code && b->what & BENCH_PASSES)
        code = bench_measure(b, err);
    if (!code && b->what & BENCH_START)
        code = bench_start(b, err);
    if (!code && b->what & BENCH_TOKENIZER)
        code = bench_tokenizer(b, err);
    if (!code && b->what & BENCH_RESUME)
        code = bench_resume(b, err);
    if (!code && b->what & BENCH_SEVERAL)
        code = bench_several(b, err);
    if (!code && b->what & BENCH_LORA)
        code = bench_lora(b, err);
    if (!code && b->what & BENCH_DRAFT)
        code = bench_draft(b, err);
    if (!code && b->what & BENCH_TRACE)
        code = bench_trace(b, err);
    if (!code && b->what & BENCH_SESSIONS)
        code = bench_sessions(b, err);
    if (!code && b->what & BENCH_MICRO)
        code = bench_micro(b, err);
    if (!code)
        (b->o->json ? bench_print_json : bench_print_text)(b);
    return code;
}

/* Replaces the error about a full context, which speaks of a conversation. */
static enum pp_code explain_context(const struct pp_options *o, enum pp_code code, struct pp_error *err)
{
    if (code != PP_ERR_CONTEXT || !o->ctx_size)
        return code;
    return pp_fail(err, code, "the context of %lld tokens is smaller than what is to be measured; give a larger "
                              "--ctx-size, or leave it out, or measure less (-p, -n, --depth, --rows)",
                   (long long)o->ctx_size);
}

static int compare(const struct pp_options *o)
{
    struct pp_error err = {0};
    bool slower = false;
    int exit_code = pp_cli_end(bench_compare(o, &slower, &err), &err);
    return exit_code ? exit_code : slower;
}

int pp_cmd_bench(const struct pp_options *o, const struct pp_paths *p)
{
    struct pp_error err = {0};
    struct bench b = {.o = o, .paths = p, .cancel = pp_cli_begin()};
    if (o->bench.compare)
        return compare(o);
    enum pp_code code = explain_context(o, run(&b, &err), &err);
    pp_cli_bar_clear(&b.bar);
    for (int i = 0; i < b.n_adapters; i++)
        pp_adapter_free(b.adapters[i]);
    pp_model_close(b.model);
    pp_tokenizer_free(b.tokenizer);
    if (b.temporary)
        unlink(b.path);
    bench_report_free(&b.report);
    return pp_cli_end(code, &err);
}
