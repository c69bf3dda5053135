/* cmd_bench_draft.c - the gain by speculative decoding: the same answers without drafts, by lookup, with a draft
 * model, and with both, interleaved. The answers come from:
 *
 *   conversations (-f FILE of JSON lines, or built-in ones), whose last answer the model generates anew by greedy
 *   decoding;
 *   copying tasks: a text in the prompt quoted, quoted with occasional edits, and code. The model is forced to write
 *   these, whatever it would have said, so that a small model can be measured;
 *   for a model without a vocabulary (--shape): a text that a script drafts with a given acceptance rate, compared
 *   with the formula of arXiv 2211.17192 for the measured times of passes. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "src/cmd_bench.h"
#include "src/overflow.h"

enum { MAX_TALKS = 32, FORMULA_TOKENS = 400 };

struct talk {
    int32_t *prompt, *forced; /* forced: the forced answer; NULL: the model's own */
    size_t n_prompt, n_forced;
    int kind;                 /* index into kinds */
};

static const char *const kinds[] = {"conversations", "a quotation", "with edits", "code again"};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const struct way {
    const char *name;
    bool model, lookup, tree;
    int always;               /* tokens drafted per pass; 0: as many as pay off */
} ways[] = {
    {"no guesses", false, false, false, 0},
    {"lookup", false, true, false, 0},
    {"draft", true, false, false, 0},
    {"draft and lookup", true, true, false, 0},
    {"draft, always 1", true, false, false, 1},
    {"draft, always 4", true, false, false, 4},
    {"draft, a tree of 4", true, false, true, 4},
};
enum { WAYS = sizeof ways / sizeof *ways };

struct drafting {
    struct bench *b;
    struct pp_engine *engine;
    struct pp_cli_model draft;
    struct talk talks[MAX_TALKS];
    int n_talks;
    size_t results[KINDS][WAYS];  /* index + 1; 0: none */
    uint64_t drafted[KINDS][WAYS], accepted[KINDS][WAYS];
};

/* --- texts ----------------------------------------------------------------------------------------------------- */

static const char *const builtin_talks[] = {
    "I would like to book a table at a restaurant in San Jose.", "Hi, how are you doing today? I love hiking.",
    "I need a cab to the airport, please.",                       "Find me a hotel in Seattle for two nights.",
    "What do you do for a living? I am a teacher.",               "I want to order a large latte with oat milk.",
    "Play some music by a band that I like.",                     "Can you tell me the weather in Portland tomorrow?",
};

static const char passage[] =
    "The lighthouse keeper climbed the narrow stairs every evening, counting the steps as his father had done before "
    "him. From the gallery he could see the whole bay: the fishing boats coming home, the dark line of the reef, and "
    "far out the slow lights of ships on their way to the north. He trimmed the wick, wound the clockwork that turned "
    "the lens, and wrote the time and the weather into the book on the table. On clear nights he stayed a while and "
    "listened to the sea. On the others he slept in his chair, and woke whenever the bell on the reef began to ring.";

static const char snippet[] =
    "static int count_words(const char *text)\n{\n    int words = 0;\n    bool inside = false;\n"
    "    for (const char *at = text; *at; at++) {\n        bool letter = isalpha((unsigned char)*at);\n"
    "        if (letter && !inside)\n            words++;\n        inside = letter;\n    }\n    return words;\n}\n\n"
    "static int count_lines(const char *text)\n{\n    int lines = 0;\n    for (const char *at = text; *at; at++)\n"
    "        if (*at == '\\n')\n            lines++;\n    return lines;\n}\n";

static enum pp_code tokens_of(const struct drafting *d, const char *text, int32_t **ids, size_t *n,
                              struct pp_error *err)
{
    return pp_tokenize(pp_model_tokenizer(d->b->model), text, strlen(text), 0, ids, n, err);
}

/* Adds a conversation. Takes ownership of the messages. */
static enum pp_code add_talk(struct drafting *d, cJSON *messages, int kind, const char *forced, struct pp_error *err)
{
    struct talk *t = &d->talks[d->n_talks];
    const char *own = pp_model_info(d->b->model)->chat_template;
    const char *why, *name = pp_template_instead(pp_model_tokenizer(d->b->model), "", d->b->path, &why);
    const char *source = own ? own : pp_template_builtin(name);
    struct pp_template *tmpl = NULL;
    char *json = cJSON_PrintUnformatted(messages);
    cJSON_Delete(messages);
    *t = (struct talk){.kind = kind};
    d->n_talks++;
    enum pp_code code = json ? pp_template_parse(source, strlen(source), "the chat template", &tmpl, err)
                             : pp_fail_nomem(err, "the conversations");
    if (!code) {
        struct pp_prompt_input in = {
            .tokenizer = pp_model_tokenizer(d->b->model), .tmpl = tmpl, .messages_json = json};
        code = pp_prompt_tokens(&in, &t->prompt, &t->n_prompt, err);
    }
    if (!code && forced)
        code = tokens_of(d, forced, &t->forced, &t->n_forced, err);
    pp_template_free(tmpl);
    cJSON_free(json);
    return code;
}

static void add_message(cJSON *messages, const char *role, const char *text)
{
    cJSON *m = cJSON_CreateObject();
    cJSON_AddStringToObject(m, "role", role);
    cJSON_AddStringToObject(m, "content", text);
    cJSON_AddItemToArray(messages, m);
}

static cJSON *one_message(const char *before, const char *text)
{
    struct pp_buf b = {0};
    cJSON *messages = cJSON_CreateArray();
    pp_buf_fmt(&b, "%s%s", before, text);
    add_message(messages, "user", pp_buf_cstr(&b));
    pp_buf_free(&b);
    return messages;
}

/* The messages of {"m": [[role, text], ...]} or {"messages": [{"role", "content"}, ...]} without the last answer;
 * NULL: there is none. */
static cJSON *messages_of(const cJSON *line)
{
    const cJSON *pairs = pp_json_member(line, "m");
    const cJSON *all = cJSON_IsArray(pairs) ? pairs : pp_json_member(line, "messages"), *item;
    cJSON *messages = cJSON_CreateArray();
    int n = cJSON_GetArraySize(all), i = 0;
    cJSON_ArrayForEach(item, all)
    {
        const cJSON *role = cJSON_IsArray(item) ? cJSON_GetArrayItem(item, 0) : pp_json_member(item, "role");
        const cJSON *text = cJSON_IsArray(item) ? cJSON_GetArrayItem(item, 1) : pp_json_member(item, "content");
        if (cJSON_IsString(role) && cJSON_IsString(text) && ++i < n)
            add_message(messages, role->valuestring, text->valuestring);
    }
    if (cJSON_GetArraySize(messages) > 0)
        return messages;
    cJSON_Delete(messages);
    return NULL;
}

static enum pp_code read_file(struct drafting *d, struct pp_error *err)
{
    struct pp_buf text = {0};
    enum pp_code code = pp_cli_read(d->b->o->file, &text, err);
    char *at = code ? NULL : text.data, *end;
    for (; at && *at && !code && d->n_talks < MAX_TALKS - KINDS; at = end) {
        end = strchr(at, '\n');
        if (end)
            *end++ = 0;
        cJSON *line = cJSON_Parse(at), *messages = line ? messages_of(line) : NULL;
        cJSON_Delete(line);
        if (messages)
            code = add_talk(d, messages, 0, NULL, err);
        if (!end)
            break;
    }
    pp_buf_free(&text);
    if (!code && d->n_talks == 0)
        code = pp_fail(err, PP_ERR_FORMAT, "%s holds no conversations: lines of {\"messages\": [{\"role\": ..., "
                                           "\"content\": ...}, ...]} are read", d->b->o->file);
    return code;
}

/* Replaces every 16th word. */
static void edit(const char *text, struct pp_buf *out)
{
    int words = 0;
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, " ") + (at[strcspn(at, " ")] == ' ');
        if (++words % 16 == 0)
            pp_buf_str(out, "quietly ");
        else
            pp_buf_add(out, at, n);
        at += n;
    }
}

static enum pp_code collect(struct drafting *d, struct pp_error *err)
{
    struct pp_buf edited = {0};
    enum pp_code code = d->b->o->file ? read_file(d, err) : PP_OK;
    for (size_t i = 0; !d->b->o->file && !code && i < sizeof builtin_talks / sizeof *builtin_talks; i++)
        code = add_talk(d, one_message("", builtin_talks[i]), 0, NULL, err);
    edit(passage, &edited);
    if (!code)
        code = add_talk(d, one_message("Quote this text:\n\n", passage), 1, passage, err);
    if (!code)
        code = add_talk(d, one_message("Put in a quiet word now and then:\n\n", passage), 2, pp_buf_cstr(&edited), err);
    if (!code)
        code = add_talk(d, one_message("Repeat this code:\n\n", snippet), 3, snippet, err);
    pp_buf_free(&edited);
    return code;
}

/* --- measurement ----------------------------------------------------------------------------------------------- */

struct timing {
    int64_t tokens;
    uint64_t ns;
};

/* Lets the draft model process the prompt before the measurement, which is of decoding. A draft model with another
 * vocabulary does that when it is first asked. */
static enum pp_code read_prompt(const struct drafting *d, struct pp_seq *draft, const struct talk *k,
                                struct pp_error *err)
{
    struct pp_row batch[64];
    const size_t most = sizeof batch / sizeof *batch;
    enum pp_code code = PP_OK;
    if (pp_model_info(d->draft.model)->n_vocab != pp_model_info(d->b->model)->n_vocab)
        return PP_OK;
    for (size_t at = 0, n; at < k->n_prompt && !code; at += n) {
        n = k->n_prompt - at < most ? k->n_prompt - at : most;
        for (size_t i = 0; i < n; i++)
            batch[i] = (struct pp_row){.seq = draft, .token = k->prompt[at + i], .parent = PP_PARENT_PREVIOUS};
        code = pp_step(d->draft.engine, batch, (int)n, d->b->cancel, err);
    }
    return code;
}

/* Measures an answer from its second token on: the first is computed with the prompt. */
static enum pp_code decode(const struct drafting *d, struct pp_seq *seq, const int32_t *prompt, size_t n,
                           const struct pp_gen_options *opt, struct timing *t, struct pp_stats *stats,
                           struct pp_error *err)
{
    struct pp_gen *gen = NULL;
    struct pp_buf text = {0};
    enum pp_finish finish = PP_FINISH_NONE;
    int n_tokens = 0;
    enum pp_code code = pp_gen_start(seq, prompt, (int64_t)n, opt, d->b->cancel, &gen, err);
    uint64_t t0 = pp_now_ns();
    while (!code && finish == PP_FINISH_NONE)
        code = pp_gen_next(gen, d->b->cancel, &text, &n_tokens, &finish, err);
    t->ns += pp_now_ns() - t0;
    t->tokens += n_tokens - 1;
    if (!code)
        *stats = pp_gen_stats(gen);
    pp_gen_free(gen);
    pp_buf_free(&text);
    return code;
}

static enum pp_code answer(struct drafting *d, const struct talk *k, int way, struct timing *t, struct pp_error *err)
{
    const struct way *w = &ways[way];
    struct pp_gen_options opt = {
        .sampling = pp_sampling_default(),
        .max_tokens = k->forced ? (int64_t)k->n_forced : d->b->n_gen,
        .ignore_end = true,
        .lookup = w->lookup,
        .draft_max = w->always ? w->always : d->b->o->draft_max,
        .draft_always = w->always > 0,
        .draft_siblings = w->tree,
        .forced = k->forced,
        .n_forced = (int64_t)k->n_forced,
    };
    struct pp_seq *seq = NULL, *draft = NULL;
    struct pp_stats s = {0};
    opt.sampling.temp = 0;
    enum pp_code code = pp_seq_new(d->engine, &seq, err);
    if (!code)
        code = pp_seq_set_adapters(seq, d->b->uses, d->b->n_adapters, err);
    if (!code && w->model)
        code = pp_cli_model_seq(&d->draft, &draft, err);
    if (!code && w->model)
        code = read_prompt(d, draft, k, err);
    opt.draft = draft;
    if (!code)
        code = decode(d, seq, k->prompt, k->n_prompt, &opt, t, &s, err);
    d->drafted[k->kind][way] += s.draft_tokens;
    d->accepted[k->kind][way] += s.draft_accepted;
    pp_seq_free(draft);
    pp_seq_free(seq);
    return code;
}

static enum pp_code add_result(struct drafting *d, const char *name, size_t *index, struct pp_error *err)
{
    struct bench_result *r = bench_add(&d->b->report, d->b->repetitions);
    if (!r)
        return pp_fail_nomem(err, "the results");
    *index = d->b->report.n;
    r->what = "draft";
    r->unit = "tokens/s";
    r->more_is_better = true;
    snprintf(r->name, sizeof r->name, "%s", name);
    return PP_OK;
}

static bool wanted(const struct drafting *d, int way)
{
    return !ways[way].model || d->draft.engine;
}

/* Measures all answers in all ways. The ways of each answer are interleaved, beginning with another one each time,
 * so that disturbances affect all alike. */
static enum pp_code round_of(struct drafting *d, int kind, bool counts, struct pp_error *err)
{
    struct timing t[WAYS] = {0};
    enum pp_code code = PP_OK;
    for (int i = 0; i < d->n_talks && !code; i++)
        for (int k = 0; k < WAYS && !code && d->talks[i].kind == kind; k++) {
            int way = (i + k) % WAYS;
            if (wanted(d, way))
                code = answer(d, &d->talks[i], way, &t[way], err);
        }
    for (int way = 0; way < WAYS && !code; way++) {
        if (!counts)
            d->drafted[kind][way] = d->accepted[kind][way] = 0;
        if (!counts || !wanted(d, way))
            continue;
        struct bench_result *r = &d->b->report.results[d->results[kind][way] - 1];
        r->samples[r->n++] = (double)t[way].tokens * 1e9 / (double)t[way].ns;
    }
    return code;
}

static void finish_kind(struct drafting *d, int kind)
{
    struct bench_summary plain, these;
    struct bench_result *all = d->b->report.results, *none = &all[d->results[kind][0] - 1];
    for (int way = 0; way < WAYS; way++) {
        if (!d->results[kind][way])
            continue;
        struct bench_result *r = &all[d->results[kind][way] - 1];
        if (bench_summarise(none->samples, none->n, &plain) && bench_summarise(r->samples, r->n, &these))
            r->ratio = these.median / plain.median;
        if (d->drafted[kind][way])
            r->accepted = (double)d->accepted[kind][way] / (double)d->drafted[kind][way];
    }
}

static enum pp_code measure_kind(struct drafting *d, int kind, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int way = 0; way < WAYS && !code; way++) {
        char name[96];
        snprintf(name, sizeof name, "%s, %s", kinds[kind], ways[way].name);
        if (wanted(d, way))
            code = add_result(d, name, &d->results[kind][way], err);
    }
    for (int round = -1; round < d->b->repetitions && !code; round++) { /* the first round warms up */
        bench_show(d->b, kinds[kind], (uint64_t)(round + 1), (uint64_t)d->b->repetitions + 1);
        code = round_of(d, kind, round >= 0, err);
    }
    if (!code)
        finish_kind(d, kind);
    return code;
}

/* --- a script instead of a draft model ------------------------------------------------------------------------- */

struct script {
    const int32_t *forced;
    int64_t n_prompt, n_forced;
    bool right[FORMULA_TOKENS]; /* whether the script drafts this token correctly */
    int n_vocab;
};

static double uniform(uint64_t i)
{
    i = (i + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    i = (i ^ (i >> 29)) * 0x94D049BB133111EBu;
    return (double)((i ^ (i >> 32)) >> 11) * 0x1p-53;
}

static int draft_from_script(void *user, const int32_t *tokens, int64_t n, int32_t *out, int most)
{
    const struct script *s = user;
    int k = 0;
    (void)tokens;
    for (int64_t at = n - s->n_prompt; k < most && at + k < s->n_forced; k++) {
        int32_t next = s->forced[at + k];
        out[k] = s->right[at + k] ? next : (next + 1) % s->n_vocab;
    }
    return k;
}

/* Decides which tokens are drafted correctly, with probability a. The lengths of correct runs follow their
 * distribution (k or more with probability a^k) exactly, only their order is random: plain random numbers would make
 * the result for 400 tokens vary by a tenth. */
static void draw_outcomes(struct script *s, double a)
{
    int runs[FORMULA_TOKENS + 1], n = (int)((1 - a) * FORMULA_TOKENS) + 1, at = 0;
    for (int i = 0; i < n; i++)
        runs[i] = a > 0 ? (int)(log((i + 0.5) / n) / log(a)) : 0;
    for (int i = n - 1; i > 0; i--) { /* Fisher-Yates shuffle */
        int k = (int)(uniform((uint64_t)i) * (i + 1)), length = runs[i];
        runs[i] = runs[k];
        runs[k] = length;
    }
    for (int i = 0; i < n; i++, at++) {
        for (int k = 0; k < runs[i] && at < FORMULA_TOKENS; k++)
            s->right[at++] = true;
        if (at < FORMULA_TOKENS)
            s->right[at] = false;
    }
    for (; at < FORMULA_TOKENS; at++)
        s->right[at] = true;
}

/* A pass of `rows` rows with logits after the sequence, without drafting; the sequence is restored. Adds its time to
 * *ns. */
static enum pp_code bare_pass(struct drafting *d, struct pp_seq *seq, int rows, uint64_t *ns, struct pp_error *err)
{
    struct pp_row batch[32];
    int64_t before = pp_seq_len(seq);
    for (int i = 0; i < rows; i++)
        batch[i] = (struct pp_row){.seq = seq, .token = i + 3, .parent = -1, .out = PP_OUT_LOGITS};
    uint64_t t0 = pp_now_ns();
    enum pp_code code = pp_step(d->engine, batch, rows, d->b->cancel, err);
    *ns += pp_now_ns() - t0;
    pp_seq_truncate(seq, before);
    return code;
}

/* A pass of the answer, and a bare one after it. */
struct two_passes {
    uint64_t answer, bare;    /* ns */
    int tokens;
};

static int by_bare_time(const void *a, const void *b)
{
    const struct two_passes *x = a, *y = b;
    return x->bare < y->bare ? -1 : x->bare > y->bare;
}

/* Leaves out passes that other programs have disturbed: those that took 1.5 times the median of the bare passes. */
static void sum_undisturbed(struct two_passes *two, int n, struct timing *t, struct timing *passes)
{
    qsort(two, (size_t)n, sizeof *two, by_bare_time);
    const uint64_t most = n ? two[n / 2].bare * 3 / 2 : 0;
    for (int i = 0; i < n; i++) {
        if (two[i].answer > most || two[i].bare > most)
            continue;
        t->ns += two[i].answer;
        t->tokens += two[i].tokens;
        passes->ns += two[i].bare;
        passes->tokens++;
    }
}

/* Generates the answer, with a bare pass after each of its passes, so that the costs of both are measured at the
 * same time and other programs affect both alike. */
static enum pp_code alternate(struct drafting *d, struct pp_gen *gen, struct pp_seq *bare, int rows, struct timing *t,
                              struct timing *passes, struct pp_error *err)
{
    struct two_passes two[FORMULA_TOKENS];
    struct pp_buf text = {0};
    enum pp_finish finish = PP_FINISH_NONE;
    enum pp_code code = PP_OK;
    int n = 0, known = 1; /* the first token was computed with the prompt */
    for (int tokens = 0; !code && finish == PP_FINISH_NONE && n < FORMULA_TOKENS; known = tokens) {
        struct two_passes *now = &two[n++];
        uint64_t t0 = pp_now_ns();
        *now = (struct two_passes){0};
        code = pp_gen_next(gen, d->b->cancel, &text, &tokens, &finish, err);
        now->answer = pp_now_ns() - t0;
        now->tokens = tokens - known;
        if (!code)
            code = bare_pass(d, bare, rows, &now->bare, err);
    }
    sum_undisturbed(two, n, t, passes);
    pp_buf_free(&text);
    return code;
}

/* An answer with n scripted draft tokens per pass, each right with probability a; and the result of the formula (with
 * no cost of drafting). */
static enum pp_code scripted(struct drafting *d, const int32_t *forced, double a, int n, size_t index,
                             struct pp_error *err)
{
    static int32_t prompt[64];
    struct script script = {.forced = forced, .n_prompt = 64, .n_forced = FORMULA_TOKENS,
                            .n_vocab = (int)pp_model_info(d->b->model)->n_vocab};
    struct pp_gen_options opt = {
        .sampling = pp_sampling_default(),
        .max_tokens = FORMULA_TOKENS,
        .ignore_end = true,
        .draft_max = n,
        .draft_always = true,
        .draft_script = n ? draft_from_script : NULL,
        .draft_script_user = &script,
        .forced = forced,
        .n_forced = FORMULA_TOKENS,
    };
    struct pp_seq *seq = NULL, *bare = NULL;
    struct pp_gen *gen = NULL;
    struct timing t = {0}, passes = {0};
    opt.sampling.temp = 0;
    draw_outcomes(&script, a);
    for (int i = 0; i < 64; i++)
        prompt[i] = i + 3;
    enum pp_code code = pp_seq_new(d->engine, &seq, err);
    if (!code)
        code = pp_gen_start(seq, prompt, 64, &opt, d->b->cancel, &gen, err);
    if (!code)
        code = pp_seq_fork(seq, pp_seq_len(seq), &bare, err);
    if (!code)
        code = alternate(d, gen, bare, n + 1, &t, &passes, err);
    if (!code) {
        struct pp_stats s = pp_gen_stats(gen);
        struct bench_result *r = &d->b->report.results[index - 1];
        double choose = (double)s.sample_ns / (double)s.decode_tokens, tokens = 0, chain = 1;
        for (int i = 0; i <= n; i++, chain *= a)
            tokens += chain; /* sums up to (1 - a^(n + 1)) / (1 - a) */
        r->samples[r->n++] = (double)t.tokens * 1e9 / (double)t.ns;
        r->formula = tokens * 1e9 / ((double)passes.ns / (double)passes.tokens + tokens * choose);
        r->accepted = s.draft_tokens ? (double)s.draft_accepted / (double)s.draft_tokens : 0;
    }
    pp_gen_free(gen);
    pp_seq_free(bare);
    pp_seq_free(seq);
    return code;
}

static enum pp_code measure_scripts(struct drafting *d, struct pp_error *err)
{
    static const struct {
        double a;
        int n;
    } cases[] = {{0, 0}, {0.6, 1}, {0.6, 4}, {0.8, 2}, {0.8, 4}, {0.8, 8}, {0.95, 8}, {0.95, 15}};
    static int32_t forced[FORMULA_TOKENS];
    size_t first = 0;
    enum pp_code code = PP_OK;
    for (int i = 0; i < FORMULA_TOKENS; i++)
        forced[i] = (int32_t)(uniform((uint64_t)i + 99999) * 90) + 3;
    for (size_t i = 0; i < sizeof cases / sizeof *cases && !code; i++) {
        char name[96];
        size_t index = 1;
        snprintf(name, sizeof name, cases[i].n ? "script right with %.2f, always %d" : "no guesses", cases[i].a,
                 cases[i].n);
        code = add_result(d, name, &index, err);
        first = i ? first : index;
        for (int round = 0; round < d->b->repetitions && !code; round++) {
            bench_show(d->b, "a script", i, sizeof cases / sizeof *cases);
            code = scripted(d, forced, cases[i].a, cases[i].n, index, err);
        }
        struct bench_summary plain, these;
        struct bench_result *all = d->b->report.results;
        if (!code && bench_summarise(all[first - 1].samples, all[first - 1].n, &plain) &&
            bench_summarise(all[index - 1].samples, all[index - 1].n, &these))
            all[index - 1].ratio = these.median / plain.median;
    }
    return code;
}

/* --- the command ----------------------------------------------------------------------------------------------- */

/* The draft model that was named, or the one of the starter. */
static enum pp_code open_draft(struct drafting *d, const struct pp_engine_options *like, struct pp_error *err)
{
    const struct bench *b = d->b;
    char path[600];
    const char *name = b->o->draft;
    struct pp_engine_options opt = *like;
    if (b->o->no_draft)
        return PP_OK;
    if (!name && pp_bundled_draft(b->paths, b->path, path, sizeof path))
        name = path;
    if (!name)
        return PP_OK;
    opt.share_pool = d->engine;
    enum pp_code code = pp_cli_model_open(&d->draft, b->paths, name, &opt, err);
    if (!code)
        code = pp_cli_check_draft(b->model, d->draft.model, err);
    for (int i = 0; !code && i < b->o->n_draft_lora; i++)
        code = pp_cli_model_adapter(&d->draft, b->o->draft_lora[i].path, b->o->draft_lora[i].scale, err);
    return code ? code : pp_engine_settle(d->draft.engine, b->cancel, err);
}

enum pp_code bench_draft(struct bench *b, struct pp_error *err)
{
    struct drafting d = {.b = b};
    struct pp_engine_options opt = pp_cli_engine_options(b->o);
    bool talks = pp_model_tokenizer(b->model) != NULL;
    opt.cache_dir = b->temporary ? NULL : b->paths->cache;
    opt.n_threads = (int)b->threads[0];
    opt.kv_type = (enum pp_kv_type)b->kv_types[0];
    enum pp_code code = b->n_gen > 1 ? PP_OK : pp_fail(err, PP_ERR_USAGE, "bench draft needs -n 2 or more");
    if (!code)
        code = pp_engine_new(b->model, &opt, NULL, NULL, &d.engine, err);
    if (!code)
        code = pp_engine_settle(d.engine, b->cancel, err);
    if (!code && talks)
        code = open_draft(&d, &opt, err);
    if (!code && talks)
        code = collect(&d, err);
    for (int kind = 0; kind < KINDS && talks && !code; kind++)
        code = measure_kind(&d, kind, err);
    if (!code && !talks)
        code = measure_scripts(&d, err);
    pp_cli_bar_clear(&b->bar);
    for (int i = 0; i < d.n_talks; i++) {
        pp_free(d.talks[i].prompt);
        pp_free(d.talks[i].forced);
    }
    pp_cli_model_close(&d.draft);
    pp_engine_free(d.engine);
    return code;
}
