/* fuzz_reasoning.c - any bytes as an answer, whole and in pieces: the parts must be the same. The first byte says which
 * markers it has, where it begins, and how long a piece is. */
#include <stdlib.h>
#include <string.h>

#include "engine/reasoning.h"
#include "tests/hostile.h"

struct parts {
    struct pp_buf reasoning, answer;
};

static void collect(void *user, enum pp_part part, const char *bytes, size_t n)
{
    struct parts *p = user;
    if (part == PP_PART_TEXT_WAS_REASONING) {
        pp_buf_add(&p->reasoning, p->answer.data, p->answer.len);
        pp_buf_clear(&p->answer);
    } else {
        pp_buf_add(part == PP_PART_ANSWER ? &p->answer : &p->reasoning, bytes, n);
    }
}

static bool take_apart(const struct pp_reasoning *r, enum pp_answer_begin begins, const struct hostile_input *in,
                       size_t step, struct parts *out)
{
    struct pp_reasoner *p = pp_reasoner_new(r, begins, collect, out);
    if (!p)
        abort();
    for (size_t i = 0; i < in->size; i += step)
        pp_reasoner_feed(p, (const char *)in->data + i, step < in->size - i ? step : in->size - i);
    pp_reasoner_end(p);
    bool over = pp_reasoner_over(p);
    pp_reasoner_free(p);
    return over;
}

static bool equal(const struct pp_buf *a, const struct pp_buf *b)
{
    return a->len == b->len && memcmp(pp_buf_cstr(a), pp_buf_cstr(b), a->len) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const sources[] = {"</think>", "<|channel|><|message|>", "[/THINK]", "</think><response>"};
    struct hostile_input in = {data, size};
    unsigned how = hostile_byte(&in);
    struct pp_reasoning r = pp_reasoning_of(sources[how & 3], NULL);
    enum pp_answer_begin begins = (enum pp_answer_begin)((how >> 2) % 3);
    struct parts whole = {0}, cut = {0};
    r.control = how & 16 ? 0x3F : 0;
    bool over = take_apart(&r, begins, &in, in.size + 1, &whole);
    if (take_apart(&r, begins, &in, how / 32 + 1, &cut) != over || !equal(&whole.reasoning, &cut.reasoning) ||
        !equal(&whole.answer, &cut.answer))
        abort();
    pp_buf_free(&whole.reasoning);
    pp_buf_free(&whole.answer);
    pp_buf_free(&cut.reasoning);
    pp_buf_free(&cut.answer);
    return 0;
}
