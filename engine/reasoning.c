/* reasoning.c - see reasoning.h. Two small state machines over a window of bytes:
 *
 *   tags                              harmony
 *   START ── open ──► REASONING       HEAD ── <|message|> ──► BODY (the part that the channel names)
 *     │ else            │ close        ▲                       │ <|end|>, <|start|>
 *     ▼                 ▼              └───────────────────────┘   ... of an answer: OVER
 *   ANSWER ◄── else ── AFTER
 *
 * Solar Open's messages are like those of harmony, but the tag after the role says which part begins: <|think|>,
 * <|content|> or <|tool_calls|>.
 *
 * A window never holds more than WINDOW bytes: when it is full, what is still undecided is taken for what it
 * looks like so far. */
#include "engine/reasoning.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/text.h"

enum { WINDOW = 4096, HEADER_MOST = 512, STRAY_MOST = 64, TAG_MOST = 48 };

/* Both formats use the array `tag`, with their own indices. */
enum { OPEN, CLOSE, ANSWER_OPEN, ANSWER_CLOSE };
enum { CHANNEL, MESSAGE, START_TAG, END, RETURN, CALL, N_HARMONY };
enum { THINK = CHANNEL, CONTENT = MESSAGE, CALLS_END = RETURN, TOOL_CALLS = CALL }; /* Solar Open's */
enum { N_TAGS = N_HARMONY };

struct pp_reasoning_tags {
    const char *name;
    const char *tag[N_TAGS]; /* NULL: there is none */
    const char *open_rest;   /* what follows the opening token and counts as part of the tag; NULL: nothing */
    bool harmony;
    bool tagged_parts;       /* harmony with Solar Open's tags */
    bool needs_answer_tag;   /* among rows with the same first tags: the one that tags its answer, too */
    /* How answers are written, with the white space that templates put around the tags: before the reasoning, after it,
     * and instead of both where there is none. */
    const char *open, *close, *empty;
};

#define TAGS(open, close) .tag = {[OPEN] = (open), [CLOSE] = (close)}
#define TAGS4(open, close, answer, end) \
    .tag = {[OPEN] = (open), [CLOSE] = (close), [ANSWER_OPEN] = (answer), [ANSWER_CLOSE] = (end)}
#define WRITTEN(before, after) .open = before, .close = after, .empty = before after

static const struct pp_reasoning_tags rows[] = {
    {.name = "harmony", .harmony = true,
     .tag = {[CHANNEL] = "<|channel|>", [MESSAGE] = "<|message|>", [START_TAG] = "<|start|>", [END] = "<|end|>",
             [RETURN] = "<|return|>", [CALL] = "<|call|>"},
     .open = "<|channel|>analysis<|message|>", .close = "<|end|><|start|>assistant<|channel|>final<|message|>",
     .empty = "<|channel|>final<|message|>"},
    {.name = "solar", .harmony = true, .tagged_parts = true,
     .tag = {[THINK] = "<|think|>", [CONTENT] = "<|content|>", [START_TAG] = "<|begin|>", [END] = "<|end|>",
             [CALLS_END] = "<|calls|>", [TOOL_CALLS] = "<|tool_calls|>"},
     .open = "<|think|>", .close = "<|end|><|begin|>assistant<|content|>", .empty = "<|content|>"},
    {.name = "gemma", TAGS("<|channel>", "<channel|>"), .open_rest = "thought\n",
     WRITTEN("<|channel>thought\n", "<channel|>")},
    {.name = "command-text", TAGS4("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>", "<|END_TEXT|>"),
     .needs_answer_tag = true, WRITTEN("<|START_THINKING|>", "<|END_THINKING|><|START_TEXT|>")},
    {.name = "command", TAGS4("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
     WRITTEN("<|START_THINKING|>", "<|END_THINKING|><|START_RESPONSE|>")},
    {.name = "mistral", TAGS("[THINK]", "[/THINK]"), WRITTEN("[THINK]", "[/THINK]")},
    {.name = "minimax", TAGS("<mm:think>", "</mm:think>"), WRITTEN("<mm:think>", "</mm:think>")},
    {.name = "seed", TAGS("<seed:think>", "</seed:think>"), WRITTEN("<seed:think>", "</seed:think>")},
    {.name = "apertus", TAGS("<|inner_prefix|>", "<|inner_suffix|>"),
     WRITTEN("<|inner_prefix|>", "<|inner_suffix|>")},
    {.name = "thought", TAGS4("<|begin_of_thought|>", "<|end_of_thought|>", "<|begin_of_solution|>",
                              "<|end_of_solution|>"),
     WRITTEN("<|begin_of_thought|>\n\n", "\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\n")},
    {.name = "kimi", TAGS("◁think▷", "◁/think▷"), WRITTEN("◁think▷", "◁/think▷")},
    {.name = "apriel", TAGS4("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", NULL, "[END FINAL RESPONSE]"),
     WRITTEN("Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]\n")},
    {.name = "granite", TAGS4("<think>", "</think>", "<response>", "</response>"), .needs_answer_tag = true,
     WRITTEN("<think>", "</think><response>")},
    {.name = "hunyuan", TAGS4("<think>", "</think>", "<answer>", "</answer>"), .needs_answer_tag = true,
     WRITTEN("<think>\n", "\n</think>\n<answer>\n")},
    {.name = "think", TAGS("<think>", "</think>"), WRITTEN("<think>\n", "\n</think>\n\n")},
    {.name = "exaone", TAGS("<thought>", "</thought>"), WRITTEN("<thought>\n", "\n</thought>\n\n")},
    {.name = "thinking", TAGS("<thinking>", "</thinking>"), WRITTEN("<thinking>\n", "\n</thinking>\n\n")},
    {.name = "reasoning", TAGS("<reasoning>", "</reasoning>"), WRITTEN("<reasoning>\n", "\n</reasoning>\n\n")},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

/* --- which ------------------------------------------------------------------------------------------------ */

/* A template names one of the two tags at least: the closing one where it cuts earlier reasoning out, or the opening
 * one that it begins answers with. */
static bool template_knows(const struct pp_reasoning_tags *row, const char *source)
{
    if (row->harmony)
        return strstr(source, row->tag[CHANNEL]) && strstr(source, row->tag[MESSAGE]) &&
               (!row->tagged_parts || strstr(source, row->tag[START_TAG]));
    if (!strstr(source, row->tag[CLOSE]) && !strstr(source, row->tag[OPEN]))
        return false;
    return !row->needs_answer_tag || strstr(source, row->tag[ANSWER_OPEN]);
}

static int32_t token_of(const struct pp_tokenizer *t, const char *tag)
{
    return t && tag ? pp_tokenizer_find(t, tag, strlen(tag)) : -1;
}

static bool vocabulary_knows(const struct pp_reasoning_tags *row, const struct pp_tokenizer *t)
{
    if (row->harmony)
        return token_of(t, row->tag[CHANNEL]) >= 0 && token_of(t, row->tag[MESSAGE]) >= 0 &&
               (!row->tagged_parts || token_of(t, row->tag[START_TAG]) >= 0);
    return !row->needs_answer_tag && token_of(t, row->tag[OPEN]) >= 0 && token_of(t, row->tag[CLOSE]) >= 0;
}

static bool is_control(const struct pp_tokenizer *t, int32_t id)
{
    struct pp_buf text = {0};
    if (id < 0)
        return false;
    pp_token_text(t, id, false, &text);
    bool hidden = text.len == 0;
    pp_buf_free(&text);
    return hidden;
}

static struct pp_reasoning with_tokens(const struct pp_reasoning_tags *row, const struct pp_tokenizer *t)
{
    struct pp_reasoning r = {.tags = row};
    for (int i = 0; i < N_TAGS; i++) {
        int32_t id = token_of(t, row->tag[i]);
        if (row->harmony && (i == RETURN || (i == CALL && !row->tagged_parts))) /* these end the generation */
            continue;
        if (!is_control(t, id) || id == pp_tokenizer_eos(t))
            continue;
        r.control |= 1u << i;
        r.tokens[r.n_tokens++] = id;
    }
    return r;
}

struct pp_reasoning pp_reasoning_of(const char *template_source, const struct pp_tokenizer *t)
{
    for (int i = 0; template_source && i < N_ROWS; i++)
        if (template_knows(&rows[i], template_source))
            return with_tokens(&rows[i], t);
    for (int i = 0; i < N_ROWS; i++)
        if (vocabulary_knows(&rows[i], t))
            return with_tokens(&rows[i], t);
    return (struct pp_reasoning){0};
}

const char *pp_reasoning_name(const struct pp_reasoning *r)
{
    return r->tags ? r->tags->name : "none";
}

/* --- prompts ---------------------------------------------------------------------------------------------- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t trimmed(const char *s, size_t n)
{
    while (n && is_blank(s[n - 1]))
        n--;
    return n;
}

static bool ends_with(const char *s, size_t n, const char *head, const char *tail)
{
    size_t nh = strlen(head), nt = tail ? trimmed(tail, strlen(tail)) : 0;
    return n >= nh + nt && memcmp(s + n - nt, tail ? tail : "", nt) == 0 && memcmp(s + n - nt - nh, head, nh) == 0;
}

enum pp_answer_begin pp_reasoning_begins(const struct pp_reasoning *r, const char *prompt, size_t n)
{
    const struct pp_reasoning_tags *row = r->tags;
    if (!row)
        return PP_BEGINS_FREE;
    if (row->tagged_parts)
        return ends_with(prompt, n, row->tag[CONTENT], NULL) ? PP_BEGINS_ANSWER
               : ends_with(prompt, n, row->tag[THINK], NULL) ? PP_BEGINS_REASONING
                                                             : PP_BEGINS_FREE;
    if (row->harmony)
        return ends_with(prompt, n, "<|channel|>final", "<|message|>")      ? PP_BEGINS_ANSWER
               : ends_with(prompt, n, "<|channel|>analysis", "<|message|>") ? PP_BEGINS_REASONING
                                                                            : PP_BEGINS_FREE;
    n = trimmed(prompt, n);
    if (ends_with(prompt, n, row->tag[OPEN], row->open_rest))
        return PP_BEGINS_REASONING;
    if (ends_with(prompt, n, row->tag[CLOSE], NULL) ||
        (row->tag[ANSWER_OPEN] && ends_with(prompt, n, row->tag[ANSWER_OPEN], NULL)))
        return PP_BEGINS_ANSWER;
    return PP_BEGINS_FREE;
}

struct pp_reasoning_frame pp_reasoning_frame(const struct pp_reasoning *r, enum pp_answer_begin begins,
                                             bool has_reasoning, bool has_answer, bool *reasoning)
{
    struct pp_reasoning_frame f = {"", ""};
    *reasoning = r->tags && has_reasoning && begins != PP_BEGINS_ANSWER;
    if (!r->tags || begins == PP_BEGINS_ANSWER)
        return f;
    const struct pp_reasoning_tags *w = r->tags;
    if (*reasoning && begins == PP_BEGINS_FREE)
        f.before = w->open;
    if (has_answer && (*reasoning || begins == PP_BEGINS_REASONING))
        f.between = w->close;
    else if (has_answer && r->tags->harmony)
        f.between = w->empty;
    return f;
}

int32_t pp_reasoning_opener(const struct pp_reasoning *r, const struct pp_tokenizer *t, bool *header)
{
    *header = r->tags && r->tags->harmony;
    return r->tags ? token_of(t, r->tags->tag[OPEN]) : -1;
}

const char *pp_reasoning_skip(const struct pp_reasoning *r, enum pp_answer_begin begins)
{
    if (!r->tags || begins == PP_BEGINS_ANSWER)
        return "";
    return begins == PP_BEGINS_REASONING ? r->tags->close : r->tags->empty;
}

/* --- the window ------------------------------------------------------------------------------------------- */

enum state { START, START_INSIDE, REASONING, AFTER, ANSWER, HEAD, BODY, OVER };

struct pp_reasoner {
    const struct pp_reasoning_tags *row; /* NULL: everything is the answer */
    pp_part_sink *sink;
    void *user;
    char tag[N_TAGS][TAG_MOST];          /* as in the text, with PP_CONTROL_MARK; "": none */
    size_t len[N_TAGS];
    bool first[256];                     /* bytes with which tags begin */
    enum state state;
    bool may_take_back;                  /* nothing has ruled out yet that the answer so far is reasoning */
    char last;                           /* the last byte that was handed out */
    bool answer_tagged;                  /* the answer was opened by a tag, so its closing tag counts, too */
    /* harmony */
    enum pp_part part;                   /* of the message in BODY */
    bool role_due;                       /* the header begins with a role */
    bool thought;                        /* a message of reasoning came before */
    size_t n;
    char window[WINDOW];                 /* [n] not handed out yet */
};

struct pp_reasoner *pp_reasoner_new(const struct pp_reasoning *r, enum pp_answer_begin begins, pp_part_sink *sink,
                                    void *user)
{
    struct pp_reasoner *p = pp_calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->row = r->tags;
    p->sink = sink;
    p->user = user;
    for (int i = 0; p->row && i < N_TAGS; i++) {
        const char *mark = r->control >> i & 1 ? PP_CONTROL_MARK : "", *tag = p->row->tag[i];
        if (!tag)
            continue;
        const char *rest = i == OPEN && p->row->open_rest ? p->row->open_rest : "";
        size_t a = strlen(mark), b = strlen(tag), c = strlen(rest);
        memcpy(p->tag[i], mark, a);
        memcpy(p->tag[i] + a, tag, b);
        memcpy(p->tag[i] + a + b, rest, c);
        p->len[i] = a + b + c;
        p->first[(unsigned char)p->tag[i][0]] = p->len[i] > 0;
    }
    bool inside = begins == PP_BEGINS_REASONING, answer = begins == PP_BEGINS_ANSWER;
    if (p->row && p->row->harmony) {
        p->state = inside || answer ? BODY : HEAD;
        p->part = inside ? PP_PART_REASONING : PP_PART_ANSWER;
        p->thought = inside;
    } else {
        p->state = !p->row ? ANSWER : inside ? START_INSIDE : answer ? AFTER : START;
        p->part = inside ? PP_PART_REASONING : PP_PART_ANSWER;
        p->may_take_back = p->state == START;
    }
    return p;
}

void pp_reasoner_free(struct pp_reasoner *p)
{
    pp_free(p);
}

enum pp_part pp_reasoner_part(const struct pp_reasoner *p)
{
    return p->part;
}

bool pp_reasoner_answers(const struct pp_reasoner *p)
{
    return p->state == ANSWER || p->state == AFTER || (p->state == BODY && p->part == PP_PART_ANSWER);
}

bool pp_reasoner_over(const struct pp_reasoner *p)
{
    return p->state == OVER;
}

/* The tag that s begins with; -1: none. */
static int tag_at(const struct pp_reasoner *p, const char *s, size_t n)
{
    for (int i = 0; i < N_TAGS; i++) {
        if (p->len[i] && p->len[i] <= n && memcmp(s, p->tag[i], p->len[i]) == 0)
            return i;
    }
    return -1;
}

/* Hands out bytes, without control tokens that mean nothing here. */
static void emit(struct pp_reasoner *p, enum pp_part part, const char *s, size_t n)
{
    while (n) {
        const char *mark = memchr(s, (uint8_t)PP_CONTROL_MARK[0], n);
        size_t before = mark ? (size_t)(mark - s) : n;
        int tag = mark ? tag_at(p, mark, n - before) : -1;
        size_t skipped = tag < 0 ? 0 : p->len[tag];
        if (mark && tag < 0)
            before++; /* a byte of the text itself */
        if (before) {
            p->sink(p->user, part, s, before);
            p->last = s[before - 1];
        }
        s += before + skipped;
        n -= before + skipped;
    }
}

static void drop(struct pp_reasoner *p, size_t n)
{
    memmove(p->window, p->window + n, p->n - n);
    p->n -= n;
}

static void hand_out(struct pp_reasoner *p, enum pp_part part, size_t n)
{
    emit(p, part, p->window, n);
    drop(p, n);
}

/* How many bytes at the end of the window could be the beginning of a tag. */
static size_t tag_begins(const struct pp_reasoner *p)
{
    size_t most = p->n < TAG_MOST - 1 ? p->n : TAG_MOST - 1;
    for (size_t tail = most; tail > 0; tail--)
        for (int i = 0; p->first[(unsigned char)p->window[p->n - tail]] && i < N_TAGS; i++)
            if (p->len[i] > tail && memcmp(p->window + p->n - tail, p->tag[i], tail) == 0)
                return tail;
    return 0;
}

/* Offset of the first tag of the set (bits), and which tag; -1: none. */
static int find_tag(const struct pp_reasoner *p, unsigned set, size_t *at)
{
    int found = -1;
    *at = p->n;
    for (int i = 0; i < N_TAGS; i++) {
        if (!(set >> i & 1) || !p->tag[i][0])
            continue;
        const char *s = memmem(p->window, p->n, p->tag[i], p->len[i]);
        if (s && (size_t)(s - p->window) < *at) {
            *at = (size_t)(s - p->window);
            found = i;
        }
    }
    return found;
}

/* Whether s begins with the tag (1), may do so with more bytes (0), or does not (-1). */
static int compare(const struct pp_reasoner *p, int tag, const char *s, size_t n)
{
    size_t len = p->len[tag], common = n < len ? n : len;
    if (!len || memcmp(s, p->tag[tag], common) != 0)
        return -1;
    return n >= len;
}

static void go(struct pp_reasoner *p, enum state state)
{
    p->state = state;
    p->part = state == REASONING ? PP_PART_REASONING : PP_PART_ANSWER;
    if (state == REASONING) {
        p->may_take_back = false;
        p->sink(p->user, PP_PART_REASONING, "", 0);
    }
}

/* --- tags ------------------------------------------------------------------------------------------------- */

/* Each step takes something from the window or changes the state; false: it needs more bytes. */

/* START, START_INSIDE, AFTER: skips blanks and decides by the tag, or other text, after them. */
static bool step_begin(struct pp_reasoner *p, bool final)
{
    size_t blanks = 0;
    bool after = p->state == AFTER;
    while (blanks < p->n && is_blank(p->window[blanks]))
        blanks++;
    const char *s = p->window + blanks;
    size_t n = p->n - blanks;
    int open = n ? compare(p, OPEN, s, n) : 0, answer = after && n ? compare(p, ANSWER_OPEN, s, n) : -1;
    if (open > 0) {
        drop(p, blanks + p->len[OPEN]);
        go(p, REASONING);
    } else if (answer > 0) {
        emit(p, PP_PART_ANSWER, p->window, blanks);
        drop(p, blanks + p->len[ANSWER_OPEN]);
        p->answer_tagged = true;
        go(p, ANSWER);
    } else if ((open == 0 || answer == 0) && !final && p->n < WINDOW) {
        return false;
    } else {
        p->answer_tagged = p->answer_tagged || (after && !p->tag[ANSWER_OPEN][0]);
        go(p, p->state == START_INSIDE ? REASONING : ANSWER);
    }
    return true;
}

/* Hands out all but what could become a tag. */
static bool hand_out_rest(struct pp_reasoner *p, enum pp_part part, bool final)
{
    size_t ready = p->n - (final ? 0 : tag_begins(p));
    hand_out(p, part, ready);
    return ready > 0;
}

static bool step_reasoning(struct pp_reasoner *p, bool final)
{
    size_t at;
    if (find_tag(p, 1u << CLOSE, &at) < 0)
        return hand_out_rest(p, PP_PART_REASONING, final);
    hand_out(p, PP_PART_REASONING, at);
    drop(p, p->len[CLOSE]);
    go(p, AFTER);
    return true;
}

/* In "`</think>`" the tag is talked about. Tokens that emit() drops do not count as the byte before it. */
static bool is_quoted(const struct pp_reasoner *p, size_t at)
{
    char before = p->last;
    for (size_t i = 0; i < at;) {
        int tag = p->window[i] == PP_CONTROL_MARK[0] ? tag_at(p, p->window + i, at - i) : -1;
        if (tag < 0)
            before = p->window[i];
        i += tag < 0 ? 1 : p->len[tag];
    }
    return before && strchr("`'\"", before);
}

static bool step_answer(struct pp_reasoner *p, bool final)
{
    size_t at;
    unsigned set = (p->may_take_back ? 1u << CLOSE : 0) | (p->answer_tagged ? 1u << ANSWER_CLOSE : 0);
    int tag = p->row ? find_tag(p, set, &at) : -1;
    if (tag < 0)
        return hand_out_rest(p, PP_PART_ANSWER, final);
    size_t len = p->len[tag];
    if (tag == CLOSE && is_quoted(p, at)) {
        hand_out(p, PP_PART_ANSWER, at + len);
    } else if (tag == CLOSE) {
        p->may_take_back = false;
        p->sink(p->user, PP_PART_TEXT_WAS_REASONING, "", 0);
        hand_out(p, PP_PART_REASONING, at);
        drop(p, len);
        go(p, AFTER);
    } else {
        hand_out(p, PP_PART_ANSWER, at);
        drop(p, len);
        p->answer_tagged = false;
    }
    return true;
}

/* --- harmony ---------------------------------------------------------------------------------------------- */

static enum pp_part part_of_channel(const struct pp_reasoner *p, size_t header)
{
    size_t len = p->len[CHANNEL], n = 0;
    const char *s = memmem(p->window, header, p->tag[CHANNEL], len);
    if (!s)
        return PP_PART_ANSWER;
    s += len;
    while (s + n < p->window + header && !strchr(" \t\n<" PP_CONTROL_MARK, s[n]))
        n++;
    if (n == 5 && memcmp(s, "final", n) == 0)
        return PP_PART_ANSWER;
    return n == 8 && memcmp(s, "analysis", n) == 0 ? PP_PART_REASONING : PP_PART_OTHER;
}

static void begin_body(struct pp_reasoner *p, enum pp_part part)
{
    p->state = BODY;
    p->part = part;
    if (part == PP_PART_ANSWER)
        return;
    p->sink(p->user, part, "\n\n", p->thought ? 2 : 0);
    p->thought = true;
}

/* tag: the one that ends the header. */
static void take_header(struct pp_reasoner *p, size_t header, int tag)
{
    static const char role[] = "assistant";
    enum pp_part part = !p->row->tagged_parts ? part_of_channel(p, header)
                        : tag == THINK        ? PP_PART_REASONING
                        : tag == CONTENT      ? PP_PART_ANSWER
                                              : PP_PART_OTHER;
    if (p->role_due && (header < sizeof role - 1 || memcmp(p->window, role, sizeof role - 1) != 0)) {
        p->state = OVER; /* another role's message */
        return;
    }
    drop(p, header + p->len[tag]);
    begin_body(p, part);
}

/* Whether this is text without a header, from a model that breaks the format. plain: bytes before the tag; tag -1: none
 * yet. */
static bool is_stray(const struct pp_reasoner *p, size_t plain, int tag, bool final)
{
    if (p->role_due || !plain)
        return false;
    return plain >= STRAY_MOST || memchr(p->window, '\n', plain) || tag == END || tag == RETURN || tag == CALL ||
           (tag < 0 && final);
}

static bool step_head(struct pp_reasoner *p, bool final)
{
    const bool tagged = p->row->tagged_parts;
    const unsigned ends = 1u << MESSAGE | 1u << START_TAG | 1u << END | 1u << RETURN | 1u << CALL |
                          (unsigned)tagged << THINK;
    size_t at;
    int tag = find_tag(p, ends | 1u << CHANNEL, &at);
    if (is_stray(p, tag < 0 && !final ? p->n - tag_begins(p) : at, tag, final)) {
        begin_body(p, PP_PART_ANSWER);
        return true;
    }
    tag = find_tag(p, ends, &at);
    if (tag >= 0 ? at > HEADER_MOST : p->n >= HEADER_MOST + TAG_MOST) { /* headers are never so long */
        drop(p, !tagged && compare(p, CHANNEL, p->window, p->n) > 0 ? p->len[CHANNEL] : 0);
        begin_body(p, PP_PART_ANSWER);
    } else if (tag == START_TAG) {
        drop(p, at + p->len[START_TAG]);
        p->role_due = true;
    } else if (tag == MESSAGE || (tagged && (tag == THINK || tag == TOOL_CALLS))) {
        take_header(p, at, tag);
    } else if (tag >= 0) {
        p->state = OVER;
    } else if (final) {
        p->n = 0; /* an incomplete header is dropped */
    } else {
        return false;
    }
    return true;
}

static bool step_body(struct pp_reasoner *p, bool final)
{
    size_t at;
    const bool tagged = p->row->tagged_parts;
    int tag = find_tag(p, 1u << CHANNEL | 1u << START_TAG | 1u << END | 1u << RETURN | 1u << CALL |
                              (unsigned)tagged << CONTENT, &at);
    if (tag < 0)
        return hand_out_rest(p, p->part, final);
    hand_out(p, p->part, at);
    if (tag == RETURN || (tag == CALL && !tagged) || (p->part == PP_PART_ANSWER && tag != CHANNEL)) {
        p->state = OVER;
        return true;
    }
    if (tag == START_TAG || tag == END)
        drop(p, p->len[tag]);
    p->role_due = tag == START_TAG;
    p->state = HEAD;
    return true;
}

/* --- all together ----------------------------------------------------------------------------------------- */

static bool step(struct pp_reasoner *p, bool final)
{
    switch (p->state) {
    case START:
    case START_INSIDE:
    case AFTER:
        return step_begin(p, final);
    case REASONING:
        return step_reasoning(p, final);
    case ANSWER:
        return step_answer(p, final);
    case HEAD:
        return step_head(p, final);
    case BODY:
        return step_body(p, final);
    case OVER:
        p->n = 0;
        break;
    }
    return false;
}

void pp_reasoner_feed(struct pp_reasoner *p, const char *bytes, size_t n)
{
    while (n && p->state != OVER) {
        size_t room = WINDOW - p->n, take = n < room ? n : room;
        memcpy(p->window + p->n, bytes, take);
        p->n += take;
        bytes += take;
        n -= take;
        while (p->n && step(p, false))
            continue;
    }
}

void pp_reasoner_end(struct pp_reasoner *p)
{
    while (p->n && step(p, true))
        continue;
}
