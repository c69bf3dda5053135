/* speculate_bridge.c - see speculate_bridge.h. */
#include "engine/speculate_bridge.h"

#include <string.h>

#include "engine/base/mem.h"

/* CONTEXT: last tokens of the answer that are tokenized again together with drafted text. RETOKENIZED: last tokens of
 * the draft model among which tokenizing may begin again when text is added. */
enum { CONTEXT = 4, RETOKENIZED = 8 };

/* --- which vocabularies --------------------------------------------------------------------------------------- */

static bool round_trips(const struct pp_tokenizer *t, const char *text)
{
    struct pp_buf out = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    bool same = pp_tokenize(t, text, strlen(text), 0, &ids, &n, NULL) == PP_OK;
    if (same) {
        pp_detokenize(t, ids, n, false, &out);
        same = out.len == strlen(text) && memcmp(out.data, text, out.len) == 0;
    }
    pp_free(ids);
    pp_buf_free(&out);
    return same;
}

bool pp_tokenizer_bridges(const struct pp_tokenizer *target, const struct pp_tokenizer *draft, struct pp_error *err)
{
    static const char *const texts[] = {
        "The quick  brown FOX,\n\n\tit said: \"3.14\"!",
        "na\u00efve fa\u00e7ade \u2014 \u65e5\u672c",
        "for (int i = 0; i < n; i++)\n    x[i] += y->z;\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int side = 0; side < 2; side++)
            if (!round_trips(side ? draft : target, texts[i])) {
                pp_fail(err, PP_ERR_MISMATCH,
                        "the tokens of the %s do not reproduce the text exactly (case, accents or spaces are lost), "
                        "so it cannot be matched with another model's tokens",
                        side ? "draft" : "model");
                return false;
            }
    return true;
}

/* SentencePiece puts a space before every text. */
static bool prefixes_space(const struct pp_tokenizer *t)
{
    struct pp_buf piece = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    if (pp_tokenize(t, "a", 1, 0, &ids, &n, NULL) == PP_OK && n)
        pp_token_text(t, ids[0], false, &piece);
    bool space = piece.len && piece.data[0] == ' ';
    pp_free(ids);
    pp_buf_free(&piece);
    return space;
}

/* --- life ------------------------------------------------------------------------------------------------------- */

enum pp_code pp_bridge_new(const struct pp_tokenizer *target, const struct pp_tokenizer *draft, int64_t n_draft,
                           struct pp_bridge **out, struct pp_error *err)
{
    struct pp_bridge *b = pp_calloc(1, sizeof *b);
    *out = NULL;
    if (!b)
        return pp_fail_nomem(err, "the text between two vocabularies");
    b->target = target;
    b->draft = draft;
    b->target_spaces = prefixes_space(target);
    b->draft_spaces = prefixes_space(draft);
    enum pp_code code = pp_sampler_init(&b->sampler, n_draft, err);
    if (code)
        pp_bridge_free(b);
    else
        *out = b;
    return code;
}

void pp_bridge_free(struct pp_bridge *b)
{
    if (!b)
        return;
    pp_sampler_free(&b->sampler);
    pp_buf_free(&b->text);
    pp_free(b->ids);
    pp_free(b->ends);
    pp_free(b);
}

/* --- the answer's text in the draft's tokens -------------------------------------------------------------------- */

static bool append_token(struct pp_bridge *b, int32_t id, size_t end)
{
    if (b->n == b->cap) {
        int64_t cap = b->cap ? 2 * b->cap : 256;
        int32_t *ids = pp_realloc(b->ids, (size_t)cap * sizeof *ids);
        b->ids = ids ? ids : b->ids;
        size_t *ends = ids ? pp_realloc(b->ends, (size_t)cap * sizeof *ends) : NULL;
        b->ends = ends ? ends : b->ends;
        if (!ids || !ends)
            return false;
        b->cap = cap;
    }
    b->ids[b->n] = id;
    b->ends[b->n++] = end;
    return true;
}

/* Tokenizes the text after the last token. The text of its tokens may differ from the input (by a first space that
 * SentencePiece adds), so a token's end may be a byte off; the last one ends with the text. */
static enum pp_code tokenize_rest(struct pp_bridge *b)
{
    size_t from = b->n ? b->ends[b->n - 1] : 0, at = from, n;
    struct pp_buf piece = {0};
    int32_t *ids;
    if (from == b->text.len)
        return PP_OK;
    bool spaced = from > 0 && b->text.data[from] == ' ' && b->draft_spaces;
    enum pp_code code = pp_tokenize(b->draft, b->text.data + from + spaced, b->text.len - from - spaced,
                                    from ? 0 : PP_TOKENIZE_BOS, &ids, &n, NULL);
    if (code)
        return code;
    for (size_t i = 0; i < n && !code; i++) {
        pp_buf_clear(&piece);
        pp_token_text(b->draft, ids[i], false, &piece);
        at += piece.len;
        at = at < b->text.len ? at : b->text.len;
        if (!append_token(b, ids[i], i + 1 == n ? b->text.len : at))
            code = PP_ERR_NOMEM;
    }
    pp_free(ids);
    pp_buf_free(&piece);
    return code;
}

/* Forgets tokens that end after `end`, then goes back to where a word begins within the last RETOKENIZED tokens. */
static void go_back(struct pp_bridge *b, size_t end)
{
    while (b->n && b->ends[b->n - 1] > end)
        b->n--;
    if (b->n && b->ends[b->n - 1] == b->text.len)
        return; /* all the text is tokenized */
    for (int64_t i = b->n; i > 0 && i > b->n - RETOKENIZED; i--) {
        char first = b->text.data[b->ends[i - 1]];
        if (first == ' ' || first == '\n') {
            b->n = i;
            return;
        }
    }
}

enum pp_code pp_bridge_set(struct pp_bridge *b, const int32_t *tokens, int64_t n)
{
    struct pp_buf more = {0};
    size_t same = 0;
    b->steps = 0;
    b->margin = 1e9f;
    if (n < b->n_settled) { /* shorter than before: another text */
        b->n = b->n_settled = 0;
        b->settled = 0;
        pp_buf_clear(&b->text);
    }
    for (int64_t i = b->n_settled; i < n; i++)
        pp_token_text(b->target, tokens[i], true, &more);
    size_t n_drafted = b->text.len - b->settled;
    while (same < more.len && same < n_drafted && more.data[same] == b->text.data[b->settled + same])
        same++;
    size_t end = b->settled + same;
    b->text.len = b->settled;
    pp_buf_add(&b->text, more.data, more.len);
    bool bad = more.bad || b->text.bad;
    pp_buf_free(&more);
    if (bad)
        return PP_ERR_NOMEM;
    b->settled = b->text.len;
    b->n_settled = n;
    go_back(b, end);
    return tokenize_rest(b);
}

/* --- drafting --------------------------------------------------------------------------------------------------- */

bool pp_bridge_add(struct pp_bridge *b, const float *logits)
{
    struct pp_sampling most_likely = pp_sampling_default();
    most_likely.temp = 0;
    struct pp_choice choice = pp_sampler_choose(&b->sampler, &most_likely, logits, NULL, 0);
    size_t before = b->text.len;
    b->steps++;
    if (choice.token < 0 || pp_tokenizer_is_end(b->draft, choice.token))
        return false;
    pp_token_text(b->draft, choice.token, false, &b->text);
    b->margin = choice.margin < b->margin ? choice.margin : b->margin;
    return !b->text.bad && b->text.len > before && append_token(b, choice.token, b->text.len);
}

/* Tokenizes the last n tokens of the answer together with the drafted text. False: the tokens do not begin with those
 * n. */
static bool tokenize_with_context(const struct pp_bridge *b, const int32_t *tokens, int n, int32_t **ids, size_t *n_ids)
{
    struct pp_buf text = {0};
    bool fits = false;
    *ids = NULL;
    for (int i = 0; i < n; i++)
        pp_token_text(b->target, tokens[i], false, &text);
    pp_buf_add(&text, b->text.data + b->settled, b->text.len - b->settled);
    bool spaced = b->target_spaces && text.len && text.data[0] == ' ';
    if (!text.bad && text.len > (size_t)spaced &&
        pp_tokenize(b->target, text.data + spaced, text.len - spaced, 0, ids, n_ids, NULL) == PP_OK)
        fits = *n_ids > (size_t)n && memcmp(*ids, tokens, (size_t)n * sizeof *tokens) == 0;
    pp_buf_free(&text);
    if (!fits) {
        pp_free(*ids);
        *ids = NULL;
    }
    return fits;
}

enum pp_code pp_bridge_propose(const struct pp_bridge *b, const int32_t *tokens, int64_t n, int32_t **ids,
                               size_t *n_ids)
{
    *ids = NULL;
    *n_ids = 0;
    for (int k = n < CONTEXT ? (int)n : CONTEXT; k >= 0; k--)
        if (tokenize_with_context(b, tokens + n - k, k, ids, n_ids)) {
            *n_ids -= (size_t)k;
            memmove(*ids, *ids + k, *n_ids * sizeof **ids);
            return PP_OK;
        }
    return PP_ERR_NOT_FOUND;
}
