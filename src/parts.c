#include "src/parts.h"

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void add_reasoning(struct pp_parts *p, const char *s, size_t n)
{
    size_t end = n;
    p->thought = true;
    while (!p->any_reasoning && n && is_blank(*s))
        s++, n--, end--;
    while (end && is_blank(s[end - 1]))
        end--;
    if (end) {
        pp_buf_add(&p->reasoning, p->blanks.data, p->blanks.len);
        pp_buf_clear(&p->blanks);
        pp_buf_add(&p->reasoning, s, end);
        p->any_reasoning = true;
    }
    pp_buf_add(&p->blanks, s + end, n - end);
}

static void add_text(struct pp_parts *p, const char *s, size_t n)
{
    while (p->thought && !p->spoken && n && is_blank(*s))
        s++, n--;
    pp_buf_add(&p->text, s, n);
    pp_draft_runs_add(&p->drafted, n, p->drafted_input);
    p->spoken = p->spoken || n;
}

static void move_to_reasoning(struct pp_parts *p)
{
    pp_buf_add(&p->reasoning, p->text.data, p->text.len);
    pp_buf_clear(&p->text);
    pp_draft_runs_clear(&p->drafted);
    p->any_reasoning = p->any_reasoning || p->spoken;
    p->text_was_reasoning = p->thought = true;
    p->spoken = false;
}

static void sink(void *user, enum pp_part part, const char *bytes, size_t n)
{
    struct pp_parts *p = user;
    if (part == PP_PART_TEXT_WAS_REASONING)
        move_to_reasoning(p);
    else if (part == PP_PART_ANSWER)
        add_text(p, bytes, n);
    else
        add_reasoning(p, bytes, n);
}

bool pp_parts_begin(struct pp_parts *p, const struct pp_reasoning *r, enum pp_answer_begin begins)
{
    p->reasoner = pp_reasoner_new(r, begins, sink, p);
    p->thinking = begins == PP_BEGINS_REASONING;
    return p->reasoner != NULL;
}

/* Tokens count towards the part that is being written when they arrive; the tags count as reasoning. */
static void count(struct pp_parts *p, int n_tokens, uint64_t now)
{
    bool was = p->thinking;
    p->thinking = pp_reasoner_part(p->reasoner) != PP_PART_ANSWER;
    if (was || p->thinking)
        p->n_reasoning += n_tokens;
    if (p->thinking && !p->began_ns)
        p->began_ns = now;
    if (p->began_ns) {
        p->reasoning_ns += now - p->began_ns;
        p->began_ns = p->thinking ? now : 0;
    }
}

void pp_parts_add(struct pp_parts *p, const char *bytes, const char *drafted, size_t n, int n_tokens, uint64_t now)
{
    for (size_t at = 0, end; at < n; at = end) {
        for (end = drafted ? at + 1 : n; end < n && drafted[end] == drafted[at];)
            end++;
        p->drafted_input = drafted && drafted[at];
        pp_reasoner_feed(p->reasoner, bytes + at, end - at);
    }
    count(p, n_tokens, now);
}

void pp_parts_end(struct pp_parts *p, uint64_t now)
{
    pp_reasoner_end(p->reasoner);
    count(p, 0, now);
    p->thinking = false;
}

bool pp_parts_over(const struct pp_parts *p)
{
    return pp_reasoner_over(p->reasoner);
}

void pp_parts_free(struct pp_parts *p)
{
    pp_reasoner_free(p->reasoner);
    pp_buf_free(&p->reasoning);
    pp_buf_free(&p->text);
    pp_buf_free(&p->blanks);
    pp_draft_runs_free(&p->drafted);
    *p = (struct pp_parts){0};
}
