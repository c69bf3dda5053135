/* tokenizer_gguf.c - vocabularies in GGUF metadata (tokenizer.ggml.*), read and written.
 *
 * Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. What a tokenizer.json or tokenizer.model states
 * beyond them is written under pippin.tokenizer.*, which other readers ignore:
 *   split          array of strings  regular expressions, if no name for tokenizer.ggml.pre has that meaning;
 *                                    WordPiece: if words are cut differently from BERT's
 *   ignore_merges  bool              if it differs from what the name in tokenizer.ggml.pre implies
 *   add_space      bool              byte-level BPE: a space is put before text that does not begin with one
 *   byte_unknown   u32               byte-level BPE: the token for bytes that are not tokens; without it they are
 *                                    dropped
 *   fuse_unknown   bool              ... one such token for a run of them
 *   by_rank        bool              SentencePiece BPE that merges by tokenizer.ggml.merges instead of by scores (other
 *                                    programs call it gemma4, or gpt2 with certain names of split rules)
 *   space_prefix   u32               struct tok_prefix: start | control << 2 | user << 4
 *   space_suffix   bool              SentencePiece: the space of space_prefix is put after the text instead
 *   strip          u32               SentencePiece: enum tok_strip, the leading space that detokenizing removes
 *   squeeze        bool              SentencePiece BPE: runs of spaces become one, those at the ends are removed
 *   split_spaces   bool              SentencePiece: every U+2581 begins a word
 *   split_white    bool              SentencePiece unigrams: words are separated by white space of any kind
 *   apart          bool              SentencePiece unigrams: each word is scored by itself
 *   normalizers    string            "normalizers" of the tokenizer.json, as a JSON list
 *   covered        u32               enum tok_covered: which settings under other keys these normalizers replace
 *   scores         bytes             SentencePiece unigrams whose scores need double precision: an f64 for each token
 *   no_bytes       bool              tokens such as "<0x0A>" are plain texts; bytes do not become them
 *   each_unknown   bool              SentencePiece BPE: each unknown character is a token, instead of a run of them
 *   drop_unknown   bool              SentencePiece BPE: unknown characters are dropped
 *   bare_spaces    bool              SentencePiece: spaces are not written as U+2581
 *   bare_prefix    bool              ... nor is the space that is put before or after texts
 *   denormalizer   bytes             SentencePiece: the table by which tokens' texts are replaced in the output
 *   inside, outside  array of i32    enum tok_flags; stored of single characters, or of all tokens if words are
 *                                    looked up whole
 *   word_end       string            BPE of characters: appended to the last character of a word
 *   word_inside    string            BPE of characters: put before characters that do not begin a word
 *   glue           string            ... joined by spaces: a token that begins with this takes no space before it
 *   cleanup        bool              word-based: no space is put before tokens such as "." and "'s"; WordPiece's
 *                                    default
 *   whole_words    bool              BPE of characters, without merges: a word is a token, or unknown as a whole
 *   spelled        bool              BPE of characters, unigrams: tokens' texts have a character for each byte
 *   longest_word   u32               WordPiece: longer words (in characters) are unknown
 *   cased          bool              WordPiece, in old files: upper case and accents are kept
 *   clean          bool              WordPiece: false: control characters are kept
 *   chinese        bool              WordPiece: false: Chinese characters are not words of their own
 *   breaks         array of i32      struct tok_breaks, if it is on: alike, spaces
 *   late           array of i32      tokens that are looked for in normalised text
 *   lead, tail     array of i32      tokens put before a text after BOS, and after a text, unless that is EOS alone
 *   lstrip, rstrip, single_word, spaced, ends  array of i32  tokens with these flags, if no other key implies them */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/tokenizer_internal.h"

static bool str_is(struct pp_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

/* For "%.*s" in an error. */
static int shown_len(struct pp_str s)
{
    return s.len < 64 ? (int)s.len : 64;
}

static const char lead_key[] = "pippin.tokenizer.lead"; /* put before a text, after BOS */
static const char tail_key[] = "pippin.tokenizer.tail"; /* put after a text, unless it is only EOS */
static const char denormal_key[] = "pippin.tokenizer.denormalizer";
static const char table_key[] = "tokenizer.ggml.precompiled_charsmap"; /* SentencePiece's, of characters */

/* tokenizer.ggml.model, by enum tok_kind */
static const char *const kind_names[] = {"gpt2", "llama", "t5", "bert", "rwkv", "plamo2", "whitespace"};
enum { N_KINDS = sizeof kind_names / sizeof *kind_names };
/* The same for kinds that other programs have no names for, by enum tok_units. */
static const char *const unit_names[] = {"llama", "sentencepiece-char", "sentencepiece-word"};

/* --- reading ------------------------------------------------------------------------------------------- */

static enum pp_code read_tokens(const struct pp_gguf *g, struct tok_spec *spec, struct pp_error *err)
{
    enum pp_gguf_type type;
    size_t n, n_types = 0;
    if (!pp_gguf_array(g, "tokenizer.ggml.tokens", &type, &n) || type != PP_GGUF_STRING || n == 0)
        return pp_fail(err, PP_ERR_NOT_FOUND, "the file has no vocabulary (tokenizer.ggml.tokens)");
    enum pp_code code = tok_spec_resize(spec, n, err);
    if (code)
        return code;
    bool typed = pp_gguf_array(g, "tokenizer.ggml.token_type", &type, &n_types);
    if (typed && n_types != n)
        return pp_fail(err, PP_ERR_FORMAT, "there are %zu tokens, but %zu token types", n, n_types);
    for (size_t i = 0; i < n; i++) {
        int64_t t = TOK_NORMAL;
        if (!pp_gguf_array_string(g, "tokenizer.ggml.tokens", i, &spec->texts[i]))
            return pp_fail(err, PP_ERR_FORMAT, "token %zu cannot be read", i);
        if (!spec->texts[i].data)
            spec->texts[i] = (struct pp_str){"", 0};
        if (typed && !pp_gguf_array_int(g, "tokenizer.ggml.token_type", i, &t))
            return pp_fail(err, PP_ERR_FORMAT, "the type of token %zu cannot be read", i);
        spec->types[i] = t >= TOK_NORMAL && t <= TOK_BYTE ? (uint8_t)t : TOK_NORMAL;
    }
    return PP_OK;
}

/* "left right"; either may itself begin with a space. */
static bool split_merge(struct pp_str s, struct tok_merge_text *m)
{
    const char *space = s.len > 1 ? memchr(s.data + 1, ' ', s.len - 1) : NULL;
    if (!space)
        return false;
    size_t left = (size_t)(space - s.data);
    m->left = (struct pp_str){s.data, left};
    m->right = (struct pp_str){space + 1, s.len - left - 1};
    return true;
}

static enum pp_code read_merges(const struct pp_gguf *g, struct tok_spec *spec, struct pp_error *err)
{
    enum pp_gguf_type type;
    size_t n;
    if (!pp_gguf_array(g, "tokenizer.ggml.merges", &type, &n) || type != PP_GGUF_STRING)
        return pp_fail(err, PP_ERR_FORMAT, "the vocabulary has no merges (tokenizer.ggml.merges)");
    spec->merges = pp_realloc_array(NULL, n + 1, sizeof *spec->merges);
    if (!spec->merges)
        return pp_fail_nomem(err, "the tokenizer's merges");
    for (size_t i = 0; i < n; i++) {
        struct pp_str s;
        if (!pp_gguf_array_string(g, "tokenizer.ggml.merges", i, &s) || !split_merge(s, &spec->merges[spec->n_merges]))
            return pp_fail(err, PP_ERR_FORMAT, "merge %zu is not two texts with a space between them", i);
        spec->n_merges++;
    }
    return PP_OK;
}

static enum pp_code read_scores(const struct pp_gguf *g, struct tok_spec *spec, struct pp_error *err)
{
    enum pp_gguf_type type;
    size_t n;
    spec->scores = pp_calloc(spec->cap, sizeof *spec->scores);
    if (!spec->scores)
        return pp_fail_nomem(err, "the vocabulary");
    if (!pp_gguf_array(g, "tokenizer.ggml.scores", &type, &n))
        return PP_OK;
    if (n != spec->n)
        return pp_fail(err, PP_ERR_FORMAT, "there are %zu tokens, but %zu scores", spec->n, n);
    for (size_t i = 0; i < n; i++) {
        double score;
        if (!pp_gguf_array_float(g, "tokenizer.ggml.scores", i, &score))
            return pp_fail(err, PP_ERR_FORMAT, "the score of token %zu cannot be read", i);
        spec->scores[i] = (float)score;
    }
    return PP_OK;
}

/* The split rule of files that do not name one, as some of ollama's, or name it "default". */
static struct pp_str usual_rule(const struct pp_gguf *g, const struct tok_spec *spec)
{
    static const char eot[] = "<|eot_id|>";
    const char *name = "default";
    struct pp_str family = {"", 0};
    pp_gguf_string(g, "general.architecture", &family);
    if (str_is(family, "gptoss"))
        name = "gpt-4o";
    else if (str_is(family, "mistral3"))
        name = "tekken";
    else if (str_is(family, "llama") && tok_spec_find(spec, eot, sizeof eot - 1) == 128009)
        name = "llama-bpe";
    return (struct pp_str){name, strlen(name)};
}

static enum pp_code read_patterns(const struct pp_gguf *g, struct tok_spec *spec, struct pp_error *err)
{
    static const char key[] = "pippin.tokenizer.split";
    enum pp_gguf_type type;
    size_t n;
    if (!pp_gguf_has(g, key))
        return PP_OK;
    if (!pp_gguf_array(g, key, &type, &n) || type != PP_GGUF_STRING)
        return pp_fail(err, PP_ERR_FORMAT, "metadata %s is not a list of regular expressions; convert the model again",
                       key);
    if (n > TOK_MAX_PATTERNS)
        return pp_fail(err, PP_ERR_FORMAT, "metadata %s has more than %d patterns", key, TOK_MAX_PATTERNS);
    for (; spec->n_patterns < n; spec->n_patterns++)
        if (!pp_gguf_array_string(g, key, spec->n_patterns, &spec->patterns[spec->n_patterns]))
            return pp_fail(err, PP_ERR_FORMAT, "metadata %s cannot be read", key);
    return PP_OK;
}

static enum pp_code read_split(const struct pp_gguf *g, struct tok_spec *spec, struct pp_error *err)
{
    int64_t unknown;
    struct pp_str name = {"default", 7};
    enum pp_code code = read_patterns(g, spec, err);
    if (code)
        return code;
    if (!pp_gguf_has(g, "pippin.tokenizer.split")) {
        pp_gguf_string(g, "tokenizer.ggml.pre", &name);
        if (str_is(name, "default"))
            name = usual_rule(g, spec);
        spec->rule = tok_rule_by_name(name.data, name.len);
        if (!spec->rule) {
            struct pp_buf names = {0};
            tok_rule_names(&names);
            pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer's split rule \"%.*s\" is not known; known are %s",
                    shown_len(name), name.data, pp_buf_cstr(&names));
            pp_buf_free(&names);
            return PP_ERR_UNSUPPORTED;
        }
        spec->ignore_merges = spec->rule->ignore_merges;
        spec->add_bos = spec->rule->add_bos;
    }
    pp_gguf_bool(g, "pippin.tokenizer.ignore_merges", &spec->ignore_merges);
    pp_gguf_bool(g, "pippin.tokenizer.add_space", &spec->add_space);
    if (pp_gguf_int(g, "pippin.tokenizer.byte_unknown", &unknown) && unknown >= 0 && unknown < TOK_MAX_VOCAB)
        spec->byte_unknown = unknown + 1;
    pp_gguf_bool(g, "pippin.tokenizer.fuse_unknown", &spec->fuse_unknown);
    return PP_OK;
}

/* White space is dropped; letters become lower case if the file says so, as llama.cpp does. */
static enum pp_code read_characters(const struct pp_gguf *g, struct tok_spec *spec, struct pp_error *err)
{
    static const char words[] = "(?#others removed)[^" TOK_WHITE_SPACE "]+", lower[] = "[{\"type\":\"Lowercase\"}]";
    bool small = false, add_space = false;
    int64_t packed = 0;
    enum pp_code code = read_patterns(g, spec, err);
    if (!code)
        code = read_merges(g, spec, err);
    if (!code && !pp_gguf_has(g, "pippin.tokenizer.split"))
        spec->patterns[spec->n_patterns++] = (struct pp_str){words, sizeof words - 1};
    pp_gguf_bool(g, "tokenizer.ggml.normalizer.lowercase", &small);
    if (small)
        spec->steps = (struct pp_str){lower, sizeof lower - 1};
    pp_gguf_bool(g, "tokenizer.ggml.add_space_prefix", &add_space);
    if (add_space)
        spec->prefix = (struct tok_prefix){TOK_PREFIX_ALWAYS, TOK_PREFIX_ALWAYS, TOK_PREFIX_ALWAYS};
    if (pp_gguf_int(g, "pippin.tokenizer.space_prefix", &packed))
        spec->prefix = (struct tok_prefix){packed & 3, packed >> 2 & 3, packed >> 4 & 3};
    pp_gguf_bool(g, "pippin.tokenizer.ignore_merges", &spec->ignore_merges);
    pp_gguf_string(g, "pippin.tokenizer.word_end", &spec->word_end);
    pp_gguf_string(g, "pippin.tokenizer.word_inside", &spec->word_inside);
    pp_gguf_string(g, "pippin.tokenizer.glue", &spec->glue);
    pp_gguf_bool(g, "pippin.tokenizer.cleanup", &spec->cleanup);
    pp_gguf_bool(g, "pippin.tokenizer.whole_words", &spec->whole_words);
    return code;
}

/* Whether it is SentencePiece with ranked merges. Some files call it gpt2, or llama as ollama's of Gemma 4 do, and show
 * it by the name of a split rule, though nothing is split. */
static bool is_ranked(const struct pp_gguf *g)
{
    static const char *const rules[] = {"gemma4", "granite-embed-multi-311m", "sarvam-moe"};
    static const char kind[] = "tokenizer.ggml.model";
    const bool other = pp_gguf_string_is(g, kind, "gpt2") || pp_gguf_string_is(g, kind, "llama");
    bool ranked = pp_gguf_string_is(g, kind, "gemma4");
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        ranked = ranked || (other && pp_gguf_string_is(g, "tokenizer.ggml.pre", rules[i]));
    return ranked;
}

static enum pp_code read_spm(const struct pp_gguf *g, struct tok_spec *spec, struct pp_error *err)
{
    struct pp_str family = {"", 0};
    enum pp_gguf_type type;
    size_t n;
    bool add_space = true, by_rank = false;
    int64_t packed;
    spec->add_bos = true;
    spec->unk = tok_spec_find(spec, "<unk>", 5);
    spec->bos = tok_spec_find(spec, "<s>", 3);
    spec->eos = tok_spec_find(spec, "</s>", 4);
    if (pp_gguf_string(g, "general.architecture", &family)) /* ollama's files of Gemma 3 do not set it */
        add_space = !str_is(family, "gemma3");
    add_space = add_space && !is_ranked(g);
    pp_gguf_bool(g, "tokenizer.ggml.add_space_prefix", &add_space);
    if (add_space)
        spec->prefix = (struct tok_prefix){TOK_PREFIX_ALWAYS, TOK_PREFIX_ALWAYS, TOK_PREFIX_ALWAYS};
    if (pp_gguf_int(g, "pippin.tokenizer.space_prefix", &packed))
        spec->prefix = (struct tok_prefix){packed & 3, packed >> 2 & 3, packed >> 4 & 3};
    if (pp_gguf_int(g, "pippin.tokenizer.strip", &packed) && packed > 0 && packed <= TOK_STRIP_FIRST)
        spec->strip = (uint8_t)packed;
    pp_gguf_bool(g, "pippin.tokenizer.ignore_merges", &spec->ignore_merges);
    pp_gguf_bool(g, "pippin.tokenizer.by_rank", &by_rank);
    by_rank = by_rank || is_ranked(g);
    if (is_ranked(g))
        tok_spec_mark_bytes(spec); /* some files do not mark them */
    pp_gguf_bool(g, "pippin.tokenizer.squeeze", &spec->squeeze);
    if (pp_gguf_array(g, table_key, &type, &n))
        spec->charsmap = pp_gguf_array_bytes(g, table_key);
    if (pp_gguf_array(g, denormal_key, &type, &n))
        spec->denormal = pp_gguf_array_bytes(g, denormal_key);
    return by_rank ? read_merges(g, spec, err) : read_scores(g, spec, err);
}

/* SentencePiece's unigrams, which GGUF names after T5. */
static enum pp_code read_unigram(const struct pp_gguf *g, struct tok_spec *spec, struct pp_error *err)
{
    enum pp_gguf_type type;
    size_t n;
    enum pp_code code = read_spm(g, spec, err);
    spec->add_bos = false;
    spec->squeeze = true;
    pp_gguf_bool(g, "tokenizer.ggml.remove_extra_whitespaces", &spec->squeeze);
    if (!code && !spec->scores)
        return pp_fail(err, PP_ERR_FORMAT, "the vocabulary has no scores (tokenizer.ggml.scores)");
    if (!code && pp_gguf_array(g, "pippin.tokenizer.scores", &type, &n))
        spec->exact = pp_gguf_array_bytes(g, "pippin.tokenizer.scores");
    return code;
}

/* Files of PLaMo 3 do not say where text is cut first; this is as in its makers' tokenizer_config.json. */
static enum pp_code read_plamo(const struct pp_gguf *g, struct tok_spec *spec, struct pp_error *err)
{
    static const char key[] = "pippin.tokenizer.breaks";
    enum pp_gguf_type type;
    size_t n;
    int64_t alike = 4, spaces = 2;
    spec->bos = 1;
    spec->eos = 2;
    spec->unk = 0;
    if (pp_gguf_array(g, key, &type, &n)) {
        if (n != 2 || !pp_gguf_array_int(g, key, 0, &alike) || !pp_gguf_array_int(g, key, 1, &spaces) || alike < 0 ||
            alike > INT32_MAX || spaces < 0 || spaces > INT32_MAX)
            return pp_fail(err, PP_ERR_FORMAT, "%s is not two numbers of characters", key);
        spec->breaks.on = true;
    } else {
        spec->breaks.on = pp_gguf_string_is(g, "general.architecture", "plamo3") ||
                          pp_gguf_string_is(g, "tokenizer.ggml.pre", "plamo3");
    }
    if (spec->breaks.on)
        spec->breaks = (struct tok_breaks){true, (uint32_t)alike, (uint32_t)spaces};
    if (!pp_gguf_has(g, "tokenizer.ggml.token_type"))
        tok_spec_mark_bytes(spec);
    return read_scores(g, spec, err);
}

/* Files of other programs do not say how text is normalised; nearly all such models use lower case without accents. */
static enum pp_code read_wordpiece(const struct pp_gguf *g, struct tok_spec *spec, struct pp_error *err)
{
    bool cased = false, clean = true, chinese = true, lower, accents;
    int64_t longest = 0;
    pp_gguf_bool(g, "pippin.tokenizer.cased", &cased);
    lower = accents = !cased;
    if (pp_gguf_bool(g, "tokenizer.ggml.normalizer.lowercase", &lower))
        accents = lower;
    pp_gguf_bool(g, "tokenizer.ggml.normalizer.strip_accents", &accents);
    if (pp_gguf_int(g, "pippin.tokenizer.longest_word", &longest) && longest > 0 && longest <= INT32_MAX)
        spec->longest_word = (uint32_t)longest;
    spec->cleanup = true;
    pp_gguf_bool(g, "pippin.tokenizer.cleanup", &spec->cleanup);
    pp_gguf_bool(g, "pippin.tokenizer.clean", &clean);
    pp_gguf_bool(g, "pippin.tokenizer.chinese", &chinese);
    spec->bert = (struct tok_bert){.clean = clean, .chinese = chinese, .strip_accents = accents, .lower = lower};
    spec->prefix = (struct tok_prefix){TOK_PREFIX_ALWAYS, TOK_PREFIX_ALWAYS, TOK_PREFIX_ALWAYS};
    spec->add_bos = spec->add_eos = true;
    spec->unk = tok_spec_find(spec, "[UNK]", 5);
    spec->bos = tok_spec_find(spec, "[CLS]", 5);
    spec->eos = tok_spec_find(spec, "[SEP]", 5);
    spec->split_words = pp_gguf_has(g, "pippin.tokenizer.split");
    return read_patterns(g, spec, err);
}

/* Tokens with properties that no other key gives. */
static const struct { const char *key; uint8_t flag; } flag_lists[] = {
    {"pippin.tokenizer.lstrip", TOK_LSTRIP},
    {"pippin.tokenizer.rstrip", TOK_RSTRIP},
    {"pippin.tokenizer.single_word", TOK_WORD},
    {"pippin.tokenizer.spaced", TOK_SPACED},
    {"pippin.tokenizer.ends", TOK_END},
    {"pippin.tokenizer.inside", TOK_INSIDE},
    {"pippin.tokenizer.outside", TOK_OUTSIDE},
    {"pippin.tokenizer.late", TOK_LATE},
};

static void read_flag_list(const struct pp_gguf *g, const char *key, uint8_t flag, struct tok_spec *spec)
{
    enum pp_gguf_type type;
    size_t n;
    if (!pp_gguf_array(g, key, &type, &n))
        return;
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (pp_gguf_array_int(g, key, i, &id) && id >= 0 && (uint64_t)id < spec->n)
            spec->flags[id] |= flag;
    }
}

/* The model's name in lower case; "": there is none. */
static void read_name(const struct pp_gguf *g, char name[64])
{
    struct pp_str s = {"", 0};
    pp_gguf_string(g, "general.name", &s);
    snprintf(name, 64, "%.*s", (int)(s.len < 63 ? s.len : 63), s.data);
    for (char *c = name; *c; c++)
        *c = pp_lower(*c);
}

/* Phi-3's own tokens take the white space after them; its files do not say so. */
static void mark_phi3(struct tok_spec *spec)
{
    for (size_t i = 0; i < spec->n; i++) {
        uint8_t type = spec->types[i];
        bool special = type == TOK_CONTROL || type == TOK_USER || type == TOK_UNKNOWN;
        struct pp_str text = spec->texts[i];
        if (special && !str_is(text, "<unk>") && !str_is(text, "<s>") && !str_is(text, "<|endoftext|>"))
            spec->flags[i] |= TOK_RSTRIP;
    }
}

/* Mask tokens of encoders take the white space before them. */
static void mark_mask(const char *mask, struct tok_spec *spec)
{
    const int64_t id = tok_spec_find(spec, mask, strlen(mask));
    if (id >= 0)
        spec->flags[id] |= TOK_LSTRIP;
}

/* Sets flags about white space around tokens that files lack, by the names that llama.cpp goes by. */
static void mark_strips(const struct pp_gguf *g, struct tok_spec *spec)
{
    static const char *const rules[] = {"jina-v2-de", "jina-v2-es", "jina-v2-code"};
    static const char *const families[] = {"nomic-bert-moe", "jina-bert-v3"};
    char name[64];
    bool masked = false;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        masked |= pp_gguf_string_is(g, "tokenizer.ggml.pre", rules[i]);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        masked |= pp_gguf_string_is(g, "general.architecture", families[i]);
    read_name(g, name);
    if (masked)
        mark_mask("<mask>", spec);
    else if (strstr(name, "phi-3") || strstr(name, "phi3"))
        mark_phi3(spec);
    else if (strstr(name, "modern-bert"))
        mark_mask("[MASK]", spec);
}

static void read_lead(const struct pp_gguf *g, struct tok_spec *spec)
{
    enum pp_gguf_type type;
    size_t n;
    if (!pp_gguf_array(g, lead_key, &type, &n))
        return;
    for (size_t i = 0; i < n && spec->n_lead < TOK_MAX_LEAD; i++)
        spec->n_lead += pp_gguf_array_int(g, lead_key, i, &spec->lead[spec->n_lead]);
}

static void read_tail(const struct pp_gguf *g, struct tok_spec *spec)
{
    enum pp_gguf_type type;
    size_t n;
    if (!pp_gguf_array(g, tail_key, &type, &n))
        return;
    for (size_t i = 0; i < n && spec->n_tail < TOK_MAX_LEAD + 1; i++)
        spec->n_tail += pp_gguf_array_int(g, tail_key, i, &spec->tail[spec->n_tail]);
}

static void read_ids(const struct pp_gguf *g, struct tok_spec *spec)
{
    int64_t eom = -1, covered = 0;
    bool drop = false;
    pp_gguf_int(g, "tokenizer.ggml.bos_token_id", &spec->bos);
    pp_gguf_int(g, "tokenizer.ggml.eos_token_id", &spec->eos);
    pp_gguf_int(g, "tokenizer.ggml.eot_token_id", &spec->eot);
    if (spec->kind == TOK_WORDPIECE) {
        pp_gguf_int(g, "tokenizer.ggml.cls_token_id", &spec->bos);
        pp_gguf_int(g, "tokenizer.ggml.seperator_token_id", &spec->eos); /* this spelling */
    }
    pp_gguf_int(g, "tokenizer.ggml.unknown_token_id", &spec->unk);
    pp_gguf_int(g, "tokenizer.ggml.eom_token_id", &eom);
    if (eom >= 0 && (uint64_t)eom < spec->n)
        spec->flags[eom] |= TOK_END;
    pp_gguf_bool(g, "tokenizer.ggml.add_bos_token", &spec->add_bos);
    pp_gguf_bool(g, "tokenizer.ggml.add_eos_token", &spec->add_eos);
    read_lead(g, spec);
    read_tail(g, spec);
    for (size_t i = 0; i < sizeof flag_lists / sizeof *flag_lists; i++)
        read_flag_list(g, flag_lists[i].key, flag_lists[i].flag, spec);
    if (pp_gguf_string(g, "pippin.tokenizer.normalizers", &spec->steps) &&
        pp_gguf_int(g, "pippin.tokenizer.covered", &covered))
        spec->covered = (uint8_t)(covered & (TOK_COVERS_TABLE | TOK_COVERS_PREFIX));
    pp_gguf_bool(g, "pippin.tokenizer.no_bytes", &spec->no_bytes);
    pp_gguf_bool(g, "pippin.tokenizer.each_unknown", &spec->each_unknown);
    pp_gguf_bool(g, "pippin.tokenizer.bare_spaces", &spec->bare_spaces);
    pp_gguf_bool(g, "pippin.tokenizer.bare_prefix", &spec->bare_prefix);
    pp_gguf_bool(g, "pippin.tokenizer.space_suffix", &spec->suffix);
    pp_gguf_bool(g, "pippin.tokenizer.spelled", &spec->spelled);
    if (pp_gguf_bool(g, "pippin.tokenizer.drop_unknown", &drop) && drop)
        spec->unk = -1;
    pp_gguf_bool(g, "pippin.tokenizer.split_spaces", &spec->split_spaces);
    pp_gguf_bool(g, "pippin.tokenizer.split_white", &spec->split_white);
    spec->squeeze = spec->squeeze && !spec->split_white; /* which other programs have instead */
    pp_gguf_bool(g, "pippin.tokenizer.apart", &spec->apart);
    read_flag_list(g, "tokenizer.ggml.eos_token_ids", TOK_END, spec); /* ollama's */
    mark_strips(g, spec);
}

static enum pp_code refuse_kind(struct pp_str model, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "the tokenizer is of the kind \"%.*s\"; pippin knows byte-level BPE "
                   "(\"gpt2\", \"hybriddna\"), BPE of characters (\"whitespace\"), SentencePiece BPE (\"llama\") and "
                   "unigrams (\"t5\"), WordPiece (\"bert\"), RWKV's (\"rwkv\") and PLaMo's (\"plamo2\")",
                   shown_len(model), model.data);
}

static enum pp_code read_spec(const struct pp_gguf *g, struct tok_spec *spec, struct pp_error *err)
{
    struct pp_str model = {"", 0};
    if (!pp_gguf_string(g, "tokenizer.ggml.model", &model) || str_is(model, "no_vocab") || str_is(model, "none"))
        return pp_fail(err, PP_ERR_NOT_FOUND, "the file has no vocabulary");
    int kind = 0;
    while (kind < N_KINDS && !str_is(model, kind_names[kind]))
        kind++;
    if (is_ranked(g))
        kind = TOK_SPM;
    spec->dna = str_is(model, "hybriddna");
    if (spec->dna)
        kind = TOK_BYTE_LEVEL;
    for (uint8_t u = TOK_UNITS_CHARACTERS; u <= TOK_UNITS_WORDS; u++)
        if (str_is(model, unit_names[u])) {
            kind = TOK_SPM;
            spec->units = u;
        }
    if (kind == N_KINDS)
        return refuse_kind(model, err);
    spec->kind = (enum tok_kind)kind;
    enum pp_code code = read_tokens(g, spec, err);
    if (!code && spec->kind == TOK_SPM)
        code = read_spm(g, spec, err);
    if (!code && spec->kind == TOK_UNIGRAM)
        code = read_unigram(g, spec, err);
    if (!code && spec->kind == TOK_WORDPIECE)
        code = read_wordpiece(g, spec, err);
    if (!code && spec->kind == TOK_RWKV) {
        spec->bos = spec->eos = 0;
        code = tok_rwkv_unescape(spec, err);
    }
    if (!code && spec->kind == TOK_PLAMO)
        code = read_plamo(g, spec, err);
    if (!code && spec->kind == TOK_CHARACTERS)
        code = read_characters(g, spec, err);
    if (!code && spec->kind == TOK_BYTE_LEVEL) {
        code = read_merges(g, spec, err);
        if (!code)
            code = read_split(g, spec, err);
    }
    if (!code)
        read_ids(g, spec);
    return code;
}

/* Decodes the table of characters that some of ollama's files have in base 64, with a string for each character. *map:
 * pp_free. */
static enum pp_code decode_table(const struct pp_gguf *g, struct tok_spec *spec, char **map, struct pp_error *err)
{
    struct pp_buf text = {0};
    struct pp_str one;
    enum pp_gguf_type type;
    size_t n, size;
    if (spec->kind != TOK_UNIGRAM || !pp_gguf_array(g, table_key, &type, &n) || type != PP_GGUF_STRING)
        return PP_OK;
    for (size_t i = 0; i < n; i++)
        if (pp_gguf_array_string(g, table_key, i, &one))
            pp_buf_add(&text, one.data, one.len);
    const enum pp_code code = text.bad ? pp_fail_nomem(err, table_key)
                                       : tok_read_charsmap(pp_buf_cstr(&text), map, &size, err);
    if (!code)
        spec->charsmap = (struct pp_str){*map, size};
    pp_buf_free(&text);
    return code;
}

enum pp_code tok_from_gguf(const struct pp_gguf *g, struct pp_tokenizer **out, struct pp_error *err)
{
    struct tok_spec spec = {.bos = -1, .eos = -1, .eot = -1, .unk = -1};
    char *map = NULL;
    *out = NULL;
    enum pp_code code = read_spec(g, &spec, err);
    if (!code)
        code = decode_table(g, &spec, &map, err);
    if (!code)
        code = tok_build(&spec, out, err);
    tok_spec_free(&spec);
    pp_free(map);
    return code;
}

/* --- writing ------------------------------------------------------------------------------------------- */

static enum pp_code write_tokens(const struct pp_tokenizer *t, struct pp_gguf_writer *w, struct pp_error *err)
{
    struct pp_str *texts = pp_realloc_array(NULL, t->n_vocab, sizeof *texts);
    int32_t *types = pp_realloc_array(NULL, t->n_vocab, sizeof *types);
    struct pp_buf escaped = {0};
    for (int pass = 0; texts && types && pass < 2; pass++) { /* lengths first, as the buffer moves when it grows */
        size_t at = 0;
        for (uint32_t i = 0; i < t->n_vocab; i++) {
            const size_t before = escaped.len;
            types[i] = t->type[i];
            if (t->kind != TOK_RWKV) {
                texts[i] = tok_text(t, i);
                continue;
            }
            if (pass == 0)
                tok_rwkv_escape(tok_text(t, i), &escaped);
            texts[i] = (struct pp_str){escaped.data + at, pass ? texts[i].len : escaped.len - before};
            at += texts[i].len;
        }
    }
    if (texts && types && !escaped.bad) {
        pp_gguf_add_str_array(w, "tokenizer.ggml.tokens", texts, t->n_vocab);
        pp_gguf_add_i32_array(w, "tokenizer.ggml.token_type", types, t->n_vocab);
    }
    bool ok = texts && types && !escaped.bad;
    pp_buf_free(&escaped);
    pp_free(texts);
    pp_free(types);
    return ok ? PP_OK : pp_fail_nomem(err, "the vocabulary");
}

static enum pp_code write_merges(const struct pp_tokenizer *t, struct pp_gguf_writer *w, struct pp_error *err)
{
    struct pp_buf text = {0};
    struct pp_str *merges = pp_realloc_array(NULL, (size_t)t->n_merges + 1, sizeof *merges);
    for (int pass = 0; merges && pass < 2; pass++) { /* lengths first, as the buffer moves when it grows */
        size_t at = 0;
        for (uint32_t i = 0; i < t->n_merges; i++) {
            struct pp_str left = tok_text(t, (uint32_t)(t->merges[i] >> 32));
            struct pp_str right = tok_text(t, (uint32_t)t->merges[i]);
            merges[i] = (struct pp_str){text.data ? text.data + at : "", left.len + 1 + right.len};
            at += merges[i].len;
            if (pass == 1)
                continue;
            pp_buf_add(&text, left.data, left.len);
            pp_buf_char(&text, ' ');
            pp_buf_add(&text, right.data, right.len);
        }
    }
    bool ok = merges && !text.bad;
    if (ok)
        pp_gguf_add_str_array(w, "tokenizer.ggml.merges", merges, t->n_merges);
    pp_free(merges);
    pp_buf_free(&text);
    return ok ? PP_OK : pp_fail_nomem(err, "the tokenizer's merges");
}

/* For ranked merges, readers that know only scores get the negative rank of the best merge that makes a token. */
static enum pp_code write_scores(const struct pp_tokenizer *t, struct pp_gguf_writer *w, struct pp_error *err)
{
    if (t->score) {
        pp_gguf_add_f32_array(w, "tokenizer.ggml.scores", t->score, t->n_vocab);
        return PP_OK;
    }
    float *scores = pp_realloc_array(NULL, t->n_vocab, sizeof *scores);
    if (!scores)
        return pp_fail_nomem(err, "the vocabulary");
    for (uint32_t i = 0; i < t->n_vocab; i++)
        scores[i] = t->type[i] == TOK_NORMAL ? -(float)t->n_merges : 0.0f;
    for (size_t i = 0; i <= t->pair_mask; i++) {
        const struct tok_pair *p = &t->pairs[i];
        if (p->key != UINT64_MAX && p->symbol < t->n_vocab && -(float)p->rank > scores[p->symbol])
            scores[p->symbol] = -(float)p->rank;
    }
    pp_gguf_add_f32_array(w, "tokenizer.ggml.scores", scores, t->n_vocab);
    pp_gguf_add_bool(w, "pippin.tokenizer.by_rank", true);
    pp_free(scores);
    return write_merges(t, w, err);
}

static void write_patterns(const struct pp_tokenizer *t, struct pp_gguf_writer *w)
{
    struct pp_str patterns[TOK_MAX_PATTERNS];
    for (size_t i = 0; i < t->n_patterns; i++)
        patterns[i] = (struct pp_str){t->patterns[i], strlen(t->patterns[i])};
    pp_gguf_add_str_array(w, "pippin.tokenizer.split", patterns, t->n_patterns);
}

static void write_split(const struct pp_tokenizer *t, struct pp_gguf_writer *w)
{
    const struct tok_rule *rule = tok_rule_by_name(t->pre, strlen(t->pre));
    const char *name = rule ? rule->name : "default";
    pp_gguf_add_text(w, "tokenizer.ggml.pre", name);
    if (!rule)
        write_patterns(t, w);
    if (t->ignore_merges != (rule && rule->ignore_merges))
        pp_gguf_add_bool(w, "pippin.tokenizer.ignore_merges", t->ignore_merges);
    if (t->add_space)
        pp_gguf_add_bool(w, "pippin.tokenizer.add_space", true);
    if (t->byte_unknown >= 0)
        pp_gguf_add_u32(w, "pippin.tokenizer.byte_unknown", (uint32_t)t->byte_unknown);
    if (t->fuse_unknown)
        pp_gguf_add_bool(w, "pippin.tokenizer.fuse_unknown", true);
}

static void write_prefix(struct tok_prefix p, bool suffix, struct pp_gguf_writer *w)
{
    bool add = p.start != TOK_PREFIX_NEVER && !suffix;
    uint32_t packed = p.start | (uint32_t)p.control << 2 | (uint32_t)p.user << 4;
    uint32_t usual = add ? TOK_PREFIX_ALWAYS | TOK_PREFIX_ALWAYS << 2 | TOK_PREFIX_ALWAYS << 4 : 0;
    pp_gguf_add_bool(w, "tokenizer.ggml.add_space_prefix", add);
    if (packed != usual)
        pp_gguf_add_u32(w, "pippin.tokenizer.space_prefix", packed);
}

static void write_characters(const struct pp_tokenizer *t, struct pp_gguf_writer *w)
{
    pp_gguf_add_text(w, "tokenizer.ggml.pre", "whitespace");
    write_patterns(t, w);
    write_prefix(t->prefix, false, w);
    if (t->ignore_merges)
        pp_gguf_add_bool(w, "pippin.tokenizer.ignore_merges", true);
    if (t->n_word_end)
        pp_gguf_add_text(w, "pippin.tokenizer.word_end", t->word_end);
    if (t->n_word_inside)
        pp_gguf_add_text(w, "pippin.tokenizer.word_inside", t->word_inside);
    if (t->n_glue)
        pp_gguf_add_text(w, "pippin.tokenizer.glue", t->glue);
    if (t->cleanup)
        pp_gguf_add_bool(w, "pippin.tokenizer.cleanup", true);
    if (t->whole_words)
        pp_gguf_add_bool(w, "pippin.tokenizer.whole_words", true);
}

static enum pp_code write_flags(const struct pp_tokenizer *t, struct pp_gguf_writer *w, struct pp_error *err)
{
    struct tok_ids list = {0};
    enum pp_code code = PP_OK;
    for (size_t k = 0; !code && k < sizeof flag_lists / sizeof *flag_lists; k++) {
        if (flag_lists[k].flag == TOK_LATE && !t->steps) /* nothing is normalised */
            continue;
        list.n = 0;
        for (uint32_t i = 0; !code && i < t->n_vocab; i++)
            if (t->flags[i] & flag_lists[k].flag)
                code = tok_ids_add(&list, (int32_t)i, err);
        if (!code && list.n)
            pp_gguf_add_i32_array(w, flag_lists[k].key, list.v, list.n);
    }
    pp_free(list.v);
    return code;
}

static void write_id(struct pp_gguf_writer *w, const char *key, int32_t id)
{
    if (id >= 0)
        pp_gguf_add_u32(w, key, (uint32_t)id);
}

static void write_bert(const struct pp_tokenizer *t, struct pp_gguf_writer *w)
{
    if (!t->bert.lower || !t->bert.strip_accents) {
        pp_gguf_add_bool(w, "tokenizer.ggml.normalizer.lowercase", t->bert.lower);
        pp_gguf_add_bool(w, "tokenizer.ggml.normalizer.strip_accents", t->bert.strip_accents);
    }
    if (t->splitter)
        write_patterns(t, w);
    if (!t->cleanup)
        pp_gguf_add_bool(w, "pippin.tokenizer.cleanup", false);
    if (!t->bert.clean)
        pp_gguf_add_bool(w, "pippin.tokenizer.clean", false);
    if (!t->bert.chinese)
        pp_gguf_add_bool(w, "pippin.tokenizer.chinese", false);
    write_id(w, "tokenizer.ggml.cls_token_id", t->bos);
    write_id(w, "tokenizer.ggml.seperator_token_id", t->eos);
}

/* Writes the settings that other programs' files have no keys for, where they differ from the usual. */
static void write_own(const struct pp_tokenizer *t, struct pp_gguf_writer *w)
{
    const struct {
        const char *key;
        bool on;
    } flags[] = {
        {"pippin.tokenizer.split_spaces", t->split_spaces},
        {"pippin.tokenizer.split_white", t->split_white},
        {"pippin.tokenizer.apart", t->apart},
        {"pippin.tokenizer.ignore_merges", t->kind == TOK_SPM && t->ignore_merges},
        {"pippin.tokenizer.no_bytes", t->no_bytes},
        {"pippin.tokenizer.each_unknown", t->each_unknown},
        {"pippin.tokenizer.drop_unknown", (t->kind == TOK_SPM && t->drop_unknown) || (t->apart && t->unk < 0)},
        {"pippin.tokenizer.bare_spaces", t->bare_spaces},
        {"pippin.tokenizer.bare_prefix", t->bare_prefix},
        {"pippin.tokenizer.space_suffix", t->suffix},
        {"pippin.tokenizer.squeeze", t->kind == TOK_SPM && t->squeeze},
        {"pippin.tokenizer.spelled", t->spelled},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (flags[i].on)
            pp_gguf_add_bool(w, flags[i].key, true);
    if (t->strip)
        pp_gguf_add_u32(w, "pippin.tokenizer.strip", t->strip);
    if (t->exact)
        pp_gguf_add_u8_array(w, "pippin.tokenizer.scores", (const uint8_t *)t->exact, t->n_vocab * sizeof *t->exact);
    if (t->longest_word)
        pp_gguf_add_u32(w, "pippin.tokenizer.longest_word", t->longest_word);
    if (t->breaks.on)
        pp_gguf_add_i32_array(w, "pippin.tokenizer.breaks",
                              (const int32_t[]){(int32_t)t->breaks.alike, (int32_t)t->breaks.spaces}, 2);
    if (!t->steps)
        return;
    pp_gguf_add_text(w, "pippin.tokenizer.normalizers", tok_steps_json(t->steps));
    if (t->covered)
        pp_gguf_add_u32(w, "pippin.tokenizer.covered", t->covered);
}

static enum pp_code write_all(const struct pp_tokenizer *t, struct pp_gguf_writer *w, struct pp_error *err)
{
    pp_gguf_add_text(w, "tokenizer.ggml.model",
                     t->dna ? "hybriddna" : t->units ? unit_names[t->units] : kind_names[t->kind]);
    if (t->kind == TOK_BYTE_LEVEL) {
        write_split(t, w);
    } else if (t->kind == TOK_CHARACTERS) {
        write_characters(t, w);
    } else if (t->kind != TOK_RWKV) {
        pp_gguf_add_text(w, "tokenizer.ggml.pre", "default");
        write_prefix(t->prefix, t->suffix, w);
    }
    if (t->kind == TOK_UNIGRAM)
        pp_gguf_add_bool(w, "tokenizer.ggml.remove_extra_whitespaces", t->squeeze || t->split_white);
    if (t->charsmap)
        pp_gguf_add_u8_array(w, table_key, (const uint8_t *)t->charsmap, t->charsmap_len);
    if (t->denormal)
        pp_gguf_add_u8_array(w, denormal_key, (const uint8_t *)t->denormal, t->denormal_len);
    write_own(t, w);
    enum pp_code code = write_tokens(t, w, err);
    if (!code && (t->kind == TOK_SPM || t->kind == TOK_UNIGRAM || t->kind == TOK_PLAMO))
        code = write_scores(t, w, err);
    else if (!code && (t->kind == TOK_BYTE_LEVEL || t->kind == TOK_CHARACTERS))
        code = write_merges(t, w, err);
    if (!code)
        code = write_flags(t, w, err);
    write_id(w, "tokenizer.ggml.bos_token_id", t->bos);
    write_id(w, "tokenizer.ggml.eos_token_id", t->eos);
    write_id(w, "tokenizer.ggml.eot_token_id", t->eot);
    write_id(w, "tokenizer.ggml.unknown_token_id", t->unk);
    if (t->kind == TOK_WORDPIECE)
        write_bert(t, w);
    pp_gguf_add_bool(w, "tokenizer.ggml.add_bos_token", t->add_bos);
    if (t->n_lead > 1)
        pp_gguf_add_i32_array(w, lead_key, t->lead + 1, t->n_lead - 1);
    /* other programs put EOS there, or nothing */
    pp_gguf_add_bool(w, "tokenizer.ggml.add_eos_token", t->n_tail && t->tail[0] == t->eos);
    if (t->n_tail > 1 || (t->n_tail && t->tail[0] != t->eos))
        pp_gguf_add_i32_array(w, tail_key, t->tail, t->n_tail);
    return code;
}

static int32_t kept_id(int32_t id, int64_t n)
{
    return id < n ? id : -1;
}

enum pp_code pp_tokenizer_to_gguf(const struct pp_tokenizer *t, int64_t most, struct pp_gguf_writer *w,
                                  struct pp_error *err)
{
    struct pp_tokenizer first = *t; /* shares the tables of the whole; later symbols are no tokens */
    if (most <= 0 || most >= t->n_vocab)
        return write_all(t, w, err);
    first.n_vocab = (uint32_t)most;
    first.bos = kept_id(t->bos, most);
    first.eos = kept_id(t->eos, most);
    first.eot = kept_id(t->eot, most);
    first.unk = kept_id(t->unk, most);
    first.byte_unknown = kept_id(t->byte_unknown, most);
    first.add_bos = t->add_bos && first.bos >= 0;
    first.n_lead = first.n_tail = 0;
    while (first.n_tail < t->n_tail && kept_id(t->tail[first.n_tail], most) >= 0)
        first.n_tail++;
    first.add_eos = first.n_tail > 0;
    while (first.n_lead < t->n_lead && kept_id(t->lead[first.n_lead], most) >= 0)
        first.n_lead++;
    return write_all(&first, w, err);
}
