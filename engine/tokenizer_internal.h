/* tokenizer_internal.h - shared by the tokenizer's files, and private to them.
 *
 * A reader (tokenizer_gguf.c, _json.c, _sentencepiece.c, _tiktoken.c, _rwkv.c, _plamo.c) fills a struct tok_spec whose
 * strings point into its source; tok_build() copies it into an immutable struct pp_tokenizer with the tables that
 * tokenizing needs.
 * Text is then cut at special tokens (tokenizer.c), normalised as the vocabulary's makers did (tokenizer_steps.c,
 * tokenizer_normalize.c), and cut into words (tokenizer_split.c and the files that it names). Each word becomes tokens
 * (tokenizer_words.c): by merging characters (tokenizer_bpe.c), by the likeliest cut (tokenizer_unigram.c) or by the
 * longest pieces (tokenizer_wordpiece.c), or it is one token (tokenizer_units.c). */
#ifndef PP_ENGINE_TOKENIZER_INTERNAL_H
#define PP_ENGINE_TOKENIZER_INTERNAL_H

#include "engine/gguf.h"
#include "engine/text.h"

enum tok_kind {
    TOK_BYTE_LEVEL, /* GPT-2: every byte is represented by a printable character; merges by rank */
    TOK_SPM,        /* SentencePiece BPE: spaces become U+2581; unknown characters fall back to byte tokens */
    TOK_UNIGRAM,    /* SentencePiece's other kind: the cut into pieces with the largest sum of scores */
    TOK_WORDPIECE,  /* BERT: words by their longest pieces; a piece that begins a word begins with U+2581 */
    TOK_RWKV,       /* arbitrary bytes, by the longest token */
    TOK_PLAMO,      /* the cut with the largest sum of scores, from the end; unknown characters fall back to bytes */
    TOK_CHARACTERS, /* plain characters, in words that patterns cut; merges by rank */
};

/* Where PLaMo 3 cuts text first. */
struct tok_breaks {
    bool on;          /* around <|plamo:...|> */
    uint32_t alike;   /* and around runs of at least this many equal characters, except line ends; 0: not */
    uint32_t spaces;  /* and around runs of at least this many spaces; 0: not */
};

/* BERT's normalisation of text before it is cut into words. */
struct tok_bert {
    bool clean;         /* control characters are removed, white space becomes spaces */
    bool chinese;       /* a Chinese character is a word of its own */
    bool strip_accents;
    bool lower;
};

/* SPM: whether characters or words are tokens by themselves, or characters are merged. */
enum tok_units { TOK_UNITS_MERGED, TOK_UNITS_CHARACTERS, TOK_UNITS_WORDS };

enum tok_type { /* the numbers of tokenizer.ggml.token_type */
    TOK_NORMAL = 1, TOK_UNKNOWN, TOK_CONTROL, TOK_USER, TOK_UNUSED, TOK_BYTE,
};

enum tok_flags {
    TOK_END = 1,    /* ends an answer */
    TOK_LSTRIP = 2, /* white space before it in the text belongs to it */
    TOK_RSTRIP = 4, /* and white space after it */
    TOK_LATE = 8,   /* it is looked for in normalised text */
    TOK_WORD = 16,  /* it counts only where no letter, digit or the like is next to it */
    TOK_SPACED = 32, /* at the beginning of the text, the space that is put before texts comes before it, too */
    TOK_INSIDE = 64,   /* TOK_CONTROL, TOK_UNKNOWN: words may become it, too */
    TOK_OUTSIDE = 128, /* TOK_USER: words never become it */
};

/* Where SentencePiece puts a space in front of text: at its start, after a control token, after a user-defined one. */
enum tok_prefix_when { TOK_PREFIX_NEVER, TOK_PREFIX_ALWAYS, TOK_PREFIX_UNLESS_SPACE };
struct tok_prefix {
    uint8_t start, control, user; /* enum tok_prefix_when */
};

/* Which space detokenizing removes at the beginning of a text: one that tokenizing adds, none, or the first
 * (tokenizer.json). */
enum tok_strip { TOK_STRIP_ADDED, TOK_STRIP_NONE, TOK_STRIP_FIRST };

/* What the steps of a tokenizer.json do already; the spec then states it for other programs only. */
enum tok_covered {
    TOK_COVERS_TABLE = 1,  /* charsmap and squeeze */
    TOK_COVERS_PREFIX = 2, /* the space before text */
};

enum {
    TOK_MAX_PATTERNS = 16,
    TOK_MAX_VOCAB = 1 << 22,
    TOK_MAX_HOLES = 1 << 16, /* ids without a token that a file may leave */
    TOK_MAX_PRE = 32,
    TOK_MAX_WORD_END = 16,
    TOK_MAX_WORD_INSIDE = 16,
    TOK_MAX_LEAD = 4,
};
#define TOK_NONE UINT32_MAX /* "no symbol", "no rank" */
#define TOK_SPACE "\xe2\x96\x81" /* U+2581, SentencePiece's visible space */
#define TOK_SPACE_LEN 3

/* --- split rules (tokenizer_split.c) ------------------------------------------------------------------- */

/* A rule by its name in tokenizer.ggml.pre, with what llama.cpp implies by that name. */
struct tok_rule {
    const char *name;
    const char *const *patterns; /* regular expressions, applied one after the other; NULL at the end */
    bool ignore_merges;
    bool add_bos;
};
/* NULL if unknown. */
const struct tok_rule *tok_rule_by_name(const char *name, size_t n);
/* The rule whose patterns a tokenizer.json writes like this, or NULL. */
const struct tok_rule *tok_rule_by_patterns(const struct pp_str *patterns, size_t n);
/* How a tokenizer.json writes the rule with this name: [.., NULL]; or NULL: it cannot. */
const char *const *tok_rule_spelling(const char *name);
/* Appends all names, separated by commas. */
void tok_rule_names(struct pp_buf *out);
extern const char tok_pattern_gpt2[]; /* ByteLevel with use_regex */
/* Used like a pattern: puts a space before each piece that begins with another character, as ByteLevel does. */
extern const char tok_pattern_spaced[];
/* Used like a pattern: cuts where the script changes, as UnicodeScripts does. */
extern const char tok_pattern_scripts[];
/* Used like a pattern, followed by a decimal number: cuts pieces of that many characters, as FixedLength does. */
extern const char tok_pattern_length[];
enum { TOK_MAX_LENGTH = 1 << 24 };

/* Unicode's White_Space in a class of an expression; PCRE2's own also has U+180E. */
#define TOK_WHITE_SPACE                                                                                      \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
/* Appends an expression of a tokenizer.json, or of tiktoken (rust), in a form that PCRE2 and the original library both
 * understand. PP_ERR_UNSUPPORTED: it is not a valid expression. */
enum pp_code tok_regex(const char *expression, bool rust, struct pp_buf *out, struct pp_error *err);

struct tok_splitter; /* compiled; immutable, for any thread */
enum pp_code tok_splitter_new(const struct pp_str *patterns, size_t n, struct tok_splitter **out, struct pp_error *err);
/* The same with regular expressions alone: the reference. */
enum pp_code tok_splitter_new_plain(const struct pp_str *patterns, size_t n, struct tok_splitter **out,
                                    struct pp_error *err);
void tok_splitter_free(struct tok_splitter *s);
/* A pattern may begin with a comment, "(?#removed)", that tells what becomes of its matches; without it both matches
 * and the text between are words. This is the comment for a pre-tokenizer's "behavior": "" for the usual one, or NULL
 * if it is unknown. */
const char *tok_behavior(const char *behavior, bool invert);
/* The reverse: the behaviour of a pattern's comment; *rest: where the regular expression begins. */
const char *tok_behavior_of(const char *pattern, bool *inverted, const char **rest);
/* Whether the pattern matches at every place of any text. */
bool tok_pattern_is_total(const char *pattern);
/* How many of the patterns need regular expressions. */
size_t tok_splitter_expressions(const struct tok_splitter *s);

/* Whether words may be in buffers of their own that last only until the next word. */
bool tok_splitter_copies(const struct tok_splitter *s);

/* Called for each word; an error ends the splitting. */
typedef enum pp_code (*tok_word_fn)(void *ctx, const char *word, size_t n, struct pp_error *err);
struct tok_split_state; /* the state for splitting one text, in one or more pieces of n bytes in all */
struct tok_split_state *tok_split_state_new(const struct tok_splitter *s, size_t n); /* NULL: out of memory */
void tok_split_state_free(struct tok_split_state *st);
/* text: any n bytes. A byte that is not UTF-8 counts as a symbol. on: the text continues another one, so
 * tok_pattern_spaced puts no space before its first piece. */
enum pp_code tok_split(const struct tok_splitter *s, struct tok_split_state *st, const char *text, size_t n,
                       bool on, tok_word_fn fn, void *ctx, struct pp_error *err);

/* --- the same without regular expressions (tokenizer_scan.c, tokenizer_class.c) --------------------------- */

/* Classes of characters that patterns refer to. */
enum tok_char_class {
    TOK_LETTER = 1, TOK_UPPER = 2, TOK_LOWER = 4, /* those with case are letters too; title case counts as upper */
    TOK_MARK = 8, TOK_NUMBER = 16, TOK_PUNCT = 32, TOK_SYMBOL = 64,
    TOK_SPACE_CHAR = 128, /* Unicode's White_Space */
    TOK_LINE_END = 256,   /* CR and LF */
};
/* Bits of enum tok_char_class; 0 for all other characters, and for c < 0. */
unsigned tok_char_class(int32_t c);

/* The length of the match at p, p < end; 0: none. */
typedef size_t (*tok_scan_fn)(const char *p, const char *end);
size_t tok_scan_gpt2(const char *p, const char *end);
size_t tok_scan_llama3(const char *p, const char *end);
size_t tok_scan_qwen2(const char *p, const char *end);
size_t tok_scan_seed(const char *p, const char *end);
size_t tok_scan_tekken(const char *p, const char *end);
size_t tok_scan_gpt4o(const char *p, const char *end);
size_t tok_scan_deepseek_v3(const char *p, const char *end);
size_t tok_scan_qwen35(const char *p, const char *end);
size_t tok_scan_k2_horizon(const char *p, const char *end);
size_t tok_scan_minicpm5(const char *p, const char *end);
size_t tok_scan_ufakzeka(const char *p, const char *end);
size_t tok_scan_jais2(const char *p, const char *end);
/* The same after a word for which tok_scan_is_halved(): the rest of white space that is cut into pieces and is known to
 * have no line end. Looking for one again after each piece would take quadratic time. */
size_t tok_scan_jais2_spaces(const char *p, const char *end);
bool tok_scan_is_halved(const char *word, size_t n);
size_t tok_scan_exaone_moe(const char *p, const char *end);
size_t tok_scan_chameleon(const char *p, const char *end);
size_t tok_scan_youtu(const char *p, const char *end);
size_t tok_scan_kimi(const char *p, const char *end);
size_t tok_scan_spark(const char *p, const char *end);
/* The next run of numbers, of *n characters up to *stop; apart: of decimal digits after which a word ends. NULL:
 * none. */
const char *tok_number_find(const char *p, const char *end, bool apart, const char **stop, size_t *n);
/* Bytes of the first n of its characters. */
size_t tok_number_part(const char *p, const char *end, size_t n);
/* Where the white space at the end of the text begins; NULL: there is none. */
const char *tok_trailing_spaces(const char *p, const char *end);

struct tok_runs; /* a pattern that is a run of characters of one class; immutable */
/* *out: NULL if the pattern is of another kind. */
enum pp_code tok_runs_new(struct pp_str pattern, struct tok_runs **out, struct pp_error *err);
void tok_runs_free(struct tok_runs *r);
/* The first match at or after p, and where it stops; NULL: none. */
const char *tok_runs_find(const struct tok_runs *r, const char *p, const char *end, const char **stop);

/* --- building (tokenizer_build.c) ---------------------------------------------------------------------- */

struct tok_merge_text {
    struct pp_str left, right;
};

struct tok_spec {
    enum tok_kind kind;
    size_t n, cap;                 /* cap: size of all arrays of tokens; 0 before tok_spec_resize */
    struct pp_str *texts;          /* [n]; data NULL: a hole, filled with "[PADi]" */
    uint8_t *types;                /* [n] enum tok_type */
    uint8_t *flags;                /* [n] enum tok_flags */
    float *scores;                 /* [n], SPM without merges; otherwise NULL */
    struct pp_str exact;           /* UNIGRAM: scores of the first tokens in double precision; or none */
    struct tok_merge_text *merges; /* [n_merges] best first */
    size_t n_merges;
    const struct tok_rule *rule;   /* byte level: either rule or patterns */
    struct pp_str patterns[TOK_MAX_PATTERNS]; /* also for CHARACTERS */
    size_t n_patterns;
    int64_t bos, eos, eot, unk;    /* or -1; ids that are too large are dropped */
    int64_t lead[TOK_MAX_LEAD];    /* [n_lead] tokens after BOS, where that is put before a text */
    size_t n_lead;
    int64_t tail[1 + TOK_MAX_LEAD]; /* [n_tail] tokens put after a text; none, with add_eos: EOS is */
    size_t n_tail;
    bool add_bos, add_eos;
    bool bos_explicit;             /* bos is put before texts, whichever token has that name */
    bool unk_explicit;             /* unk is what unknown text becomes, whichever token has that name; -1: none */
    bool ignore_merges;            /* a word that is a token is taken whole */
    int64_t byte_unknown;          /* byte level: 1 + what a byte becomes that is not a token; 0: it is left out */
    bool fuse_unknown;             /* ... once for a run of them */
    bool no_bytes;                 /* not byte level: tokens "<0x0A>" are plain texts, and bytes do not become them */
    bool each_unknown;             /* SPM: an unknown token for each unknown character, not one for a run of them */
    bool add_space;                /* byte level: a space is put before text between added tokens, unless it begins with
                                      one */
    struct pp_str word_end;        /* CHARACTERS: appended to the last character of a word; or none */
    struct pp_str word_inside;     /* CHARACTERS: put before characters that do not begin a word; or none */
    struct pp_str glue;            /* CHARACTERS, joined by spaces: a token that begins with this takes none before it;
                                      or none */
    bool cleanup;                  /* no space is put before tokens such as "." and "'s" */
    bool whole_words;              /* CHARACTERS: a word is a token, or unknown as a whole */
    bool spelled;                  /* CHARACTERS, UNIGRAM: tokens' texts have a character for each byte */
    bool dna;                      /* byte level: text between <dna> and </dna> is DNA, six letters a token */
    struct tok_prefix prefix;      /* SPM, UNIGRAM */
    uint8_t strip;                 /* SPM: enum tok_strip */
    bool suffix;                   /* SPM, UNIGRAM: the space comes after the text instead */
    uint8_t units;                 /* SPM: enum tok_units */
    struct pp_str charsmap;        /* SPM, UNIGRAM: SentencePiece's precompiled_charsmap, or none */
    bool squeeze;                  /* SPM, UNIGRAM: runs of spaces become one, those at the ends are removed */
    bool split_spaces;             /* SPM, UNIGRAM: every U+2581 begins a word */
    bool split_white;              /* UNIGRAM: words are separated by white space of any kind */
    bool apart;                    /* UNIGRAM: each word is scored by itself, in double precision, as tokenizer.json
                                      does; otherwise as SentencePiece does */
    struct tok_bert bert;          /* WORDPIECE */
    bool split_words;              /* WORDPIECE: words are cut by the patterns, or are the whole text, instead of by
                                      BERT's rules */
    uint32_t longest_word;         /* WORDPIECE: in characters; longer words are unknown; 0: BERT's limit */
    struct tok_breaks breaks;      /* PLAMO */
    struct pp_str steps;           /* a JSON list of normalizers, for tok_steps_new(); or none */
    uint8_t covered;               /* enum tok_covered */
    bool bare_spaces;              /* SPM, UNIGRAM: spaces are not written as U+2581 */
    bool bare_prefix;              /* ... nor is the one before text; U+2581 is an ordinary character */
    struct pp_str denormal;        /* SPM, UNIGRAM: the table of SentencePiece's denormalizer; or none */
    char *unescaped;               /* RWKV, PLAMO: owns the decoded texts; or NULL */
};

/* Grows to n tokens; new ones are holes of type TOK_UNUSED. */
enum pp_code tok_spec_resize(struct tok_spec *spec, size_t n, struct pp_error *err);
void tok_spec_free(struct tok_spec *spec);
enum pp_code tok_build(const struct tok_spec *spec, struct pp_tokenizer **out, struct pp_error *err);

/* --- the tokenizer ------------------------------------------------------------------------------------- */

struct tok_slot { /* an entry of the hash table of texts */
    uint32_t hash;
    uint32_t symbol; /* TOK_NONE: empty */
};

struct tok_pair { /* an entry of the hash table of merges */
    uint64_t key;    /* left << 32 | right; UINT64_MAX: empty */
    uint32_t rank;
    uint32_t symbol; /* what the two become */
};

/* The merge of two neighbours. The smallest priority is done first; TOK_NONE: they do not merge. */
struct tok_merge {
    uint32_t priority, symbol;
};

/* Tokens sorted by their texts: those with a common beginning are neighbours, the shortest first. */
struct tok_index {
    uint32_t *ids;     /* [n] */
    uint32_t n;
    uint32_t at[257];  /* where tokens with each first byte begin */
};

/* Tokens to look for in text. */
struct tok_specials {
    struct tok_index index;
    bool first[2][256];    /* the bytes with which they begin; [1]: with control tokens */
    int only[2];           /* the only such byte; -1: there are several; 0: none, or NUL */
};

/* Symbols 0 to n_vocab - 1 are the tokens. Texts that merges name and that are not tokens are symbols after these. */
struct pp_tokenizer {
    enum tok_kind kind;
    uint32_t n_vocab, n_symbols;
    char *text;            /* all texts, concatenated */
    uint32_t *start;       /* [n_symbols + 1] offsets into text */
    size_t text_cap, start_cap;
    uint32_t max_len;      /* longest symbol in bytes */
    uint8_t *type, *flags; /* [n_vocab] */
    float *score;          /* [n_vocab] or NULL: merge by rank */
    double *exact;         /* UNIGRAM: [n_vocab] tokenizer.json's scores in double precision, or NULL */
    struct tok_slot *slots;
    uint32_t slot_mask;
    uint64_t *merges;      /* [n_merges] left << 32 | right, best first */
    uint32_t n_merges;
    struct tok_pair *pairs;
    uint32_t pair_mask;
    struct tok_merge *byte_merges; /* byte level: [65536] merges of two bytes, at first << 8 | second; or NULL */
    uint32_t byte_symbol[256];  /* byte level: the character of a byte; SPM: its byte token; or TOK_NONE */
    uint32_t ascii_symbol[128]; /* SPM: the symbol of an ASCII character, or TOK_NONE */
    bool words_at_space;   /* SPM, UNIGRAM: no symbol spans the start of a run of U+2581 */
    bool split_spaces;     /* SPM, UNIGRAM: some symbol spans another U+2581, and must not be made */
    struct tok_specials special;  /* looked for in raw text */
    struct tok_specials late;     /* in normalised text; by symbols, whose tokens are in late_of */
    uint32_t *late_of;            /* [late.index.n] tokens of the symbols from late_begin on */
    uint32_t late_begin;
    struct tok_index spaced;      /* SPM, UNIGRAM: user-defined tokens that are looked for in normalised text */
    bool spaced_late;             /* `spaced` is not empty */
    struct tok_index pieces;      /* UNIGRAM, WORDPIECE, RWKV, PLAMO: tokens of which words consist */
    double unknown_score;         /* UNIGRAM: of a character that is not a token */
    float best_score;             /* UNIGRAM: the largest of a piece, if positive; otherwise close to 0 */
    char *charsmap;               /* [charsmap_len], or NULL */
    size_t charsmap_len;
    char *denormal;               /* [denormal_len] table of replacements in detokenized text; or NULL */
    size_t denormal_len;
    bool squeeze, split_white, apart;
    struct tok_bert bert;
    uint32_t longest_word;
    struct tok_breaks breaks;
    struct tok_steps *steps;      /* the normalizers that run first; or NULL */
    int32_t bos, eos, eot, unk;
    int32_t lead[1 + TOK_MAX_LEAD]; /* [n_lead] tokens put before a text: BOS, and those after it */
    size_t n_lead;                  /* 0: none */
    int32_t *ahead;                 /* [n_ahead] tokens before all of that, whoever writes BOS */
    size_t n_ahead;
    int32_t tail[1 + TOK_MAX_LEAD]; /* [n_tail] tokens put after a text, with or without EOS */
    size_t n_tail;                  /* 0: none */
    int32_t byte_unknown; /* or -1 */
    bool add_bos, add_eos, ignore_merges, add_space, fuse_unknown, each_unknown, bare_spaces, bare_prefix;
    bool no_bytes;                /* tokens like "<0x0A>" are plain texts */
    bool dna;
    bool drop_unknown;            /* merging by rank: unknown characters are dropped */
    uint8_t covered;              /* enum tok_covered */
    struct tok_prefix prefix;
    uint8_t strip;                /* enum tok_strip */
    bool suffix;                  /* the space of `prefix` is put after each stretch of text instead */
    uint8_t units;                /* enum tok_units */
    char pre[TOK_MAX_PRE]; /* name of the split rule, "default" for SPM, "" for other patterns */
    char *patterns[TOK_MAX_PATTERNS]; /* the patterns, if pre is "" */
    size_t n_patterns;
    bool whole_words, spelled;
    char word_end[TOK_MAX_WORD_END]; /* CHARACTERS: [n_word_end] appended to the last character of a word */
    size_t n_word_end;
    char word_inside[TOK_MAX_WORD_INSIDE]; /* [n_word_inside] put before characters that do not begin a word */
    size_t n_word_inside;
    char glue[TOK_MAX_WORD_INSIDE]; /* [n_glue] CHARACTERS: how tokens begin that continue the one before */
    size_t n_glue;
    bool cleanup;                   /* words: no space is put before tokens such as "." and "'s" */
    struct tok_splitter *splitter; /* byte level, CHARACTERS, and WORDPIECE with other words than BERT's; otherwise
                                      NULL */
};

static inline struct pp_str tok_text(const struct pp_tokenizer *t, uint32_t symbol)
{
    return (struct pp_str){t->text + t->start[symbol], t->start[symbol + 1] - t->start[symbol]};
}
/* The token of a symbol in `special` or `late`. */
static inline uint32_t tok_special_token(const struct pp_tokenizer *t, uint32_t symbol)
{
    return symbol < t->n_vocab ? symbol : t->late_of[symbol - t->late_begin];
}
/* The symbol with this text, or TOK_NONE. */
uint32_t tok_lookup(const struct pp_tokenizer *t, const char *text, size_t n);
/* The character that represents a byte in byte-level vocabularies; and the reverse (-1: it represents none). */
int32_t tok_byte_to_char(unsigned byte);
int tok_char_to_byte(int32_t c);
/* Appends the byte-level spelling of raw bytes. */
void tok_spell_bytes(const char *bytes, size_t n, struct pp_buf *out);
/* The merge of two symbols by rank. */
struct tok_merge tok_merge_by_rank(const struct pp_tokenizer *t, uint32_t left, uint32_t right);
/* Whether SentencePiece's merges may produce this text: not control, unknown or byte tokens, unless TOK_INSIDE, nor
 * those with TOK_OUTSIDE. */
bool tok_mergeable(const struct pp_tokenizer *t, uint32_t symbol);

/* The longest token of an index with which text begins, or TOK_NONE. *len: its bytes. */
uint32_t tok_longest_here(const struct pp_tokenizer *t, const struct tok_index *index, const char *text, size_t n,
                          size_t *len);

/* A walk through an index along a text; begins with depth 0. */
struct tok_walk {
    const struct pp_tokenizer *t;
    const struct tok_index *index;
    uint32_t lo, hi;   /* those that begin with the bytes read so far */
    size_t depth;
};
/* Reads one more byte. False: no token begins like this. *token: the first one that equals the bytes read, or
 * TOK_NONE. */
bool tok_walk(struct tok_walk *w, char byte, uint32_t *token);

/* --- normalising (tokenizer_normalize.c) ----------------------------------------------------------------- */

/* True if text is to be normalised as SentencePiece does. */
static inline bool tok_normalizes(const struct pp_tokenizer *t)
{
    return !(t->covered & TOK_COVERS_TABLE) && (t->charsmap || t->squeeze || t->suffix || t->units || t->bare_prefix);
}
/* Checks a precompiled_charsmap: PP_ERR_FORMAT. */
enum pp_code tok_charsmap_check(struct pp_str map, struct pp_error *err);
/* Appends the text normalised as SentencePiece does, before spaces become U+2581, with the suffix, if any. at_start,
 * at_end: whether it is at that end of the whole text. */
void tok_normalize(const struct pp_tokenizer *t, const char *text, size_t n, bool at_start, bool at_end,
                   struct pp_buf *out);
/* Appends the text with characters replaced by a checked precompiled_charsmap, grapheme by grapheme as tokenizer.json's
 * library does. */
void tok_map_characters(struct pp_str map, const char *text, size_t n, struct pp_buf *out);
/* Appends text as BERT normalises it; accents that will be removed are separated from their letters. */
void tok_bert_normalize(const struct tok_bert *b, const char *text, size_t n, struct pp_buf *out);
/* Calls fn for each of BERT's words, normalised. scratch is the caller's, and reused. */
enum pp_code tok_bert_words(const struct pp_tokenizer *t, const char *text, size_t n, struct pp_buf *scratch,
                            tok_word_fn fn, void *ctx, struct pp_error *err);

/* --- the normalizers of a tokenizer.json (tokenizer_steps.c, tokenizer_forms.c) ---------------------------- */

struct tok_steps; /* immutable */
struct cJSON;
/* Options of a BertNormalizer. */
struct tok_bert tok_bert_of(const struct cJSON *node);
enum pp_code tok_steps_new(struct pp_str json, struct tok_steps **out, struct pp_error *err);
void tok_steps_free(struct tok_steps *s);
const char *tok_steps_json(const struct tok_steps *s);
/* Whether words are cut as Moses does, which spells signs out ("&apos;s"). */
bool tok_steps_spell_signs(const struct tok_steps *s); /* NULL: no */
/* Appends English text cut as Moses does, with one space between words (tokenizer_moses.c). */
void tok_moses_words(struct pp_str text, struct pp_buf *out);
/* Appends a part of such a word in readable form. */
void tok_moses_shown(struct pp_str text, struct pp_buf *out);
/* Whether the neighbours of [begin, end) in a text of n bytes are no characters of a regular expression's \w. */
bool tok_stands_alone(const char *text, size_t begin, size_t end, size_t n);

/* Normalises *text; the result is in the same memory or in one of the two buffers. inside: nothing is put before it.
 * *moved: white space was removed from its beginning. */
enum pp_code tok_steps_run(const struct tok_steps *s, struct pp_str *text, bool inside, struct pp_buf two[2],
                           bool *moved, struct pp_error *err);
/* Decodes a precompiled_charsmap to *map and *n (pp_free); frees the old one. */
enum pp_code tok_read_charsmap(const char *base64, char **map, size_t *n, struct pp_error *err);

enum tok_form { TOK_NFC, TOK_NFD, TOK_NFKC, TOK_NFKD };
enum tok_changed { TOK_SAME, TOK_CHANGED, TOK_NO_MEMORY };
/* Must be called before the first tok_form(); later calls do nothing. */
void tok_form_init(enum tok_form form);
/* Appends the text in this form, or nothing if it has it already. Bytes that are not UTF-8 are kept. */
enum tok_changed tok_form(enum tok_form form, const char *text, size_t n, struct pp_buf *out);

/* --- words (tokenizer_words.c, and a file for each way to cut one) --------------------------------------- */

struct tok_ids {
    int32_t *v;
    size_t n, cap;
};
enum pp_code tok_ids_add(struct tok_ids *ids, int32_t id, struct pp_error *err);

/* The best way to cut a word up to a place: its last piece; or, where words are cut from their end, from there on: its
 * first piece. */
struct tok_cut {
    double score;    /* of the way to a place */
    uint32_t from;   /* where the piece begins, or ends; TOK_NONE: this place is not reached */
    uint32_t token;  /* TOK_NONE: unknown */
};

/* Work space of one call. Zero-initialise, set t; tok_merge_free at the end. */
struct tok_merger {
    const struct pp_tokenizer *t;
    struct tok_ids ids; /* the result */
    const char *end;    /* memory may be read up to here, beyond the word */
    struct tok_cache *cache; /* or NULL */
    struct tok_link *links;
    size_t links_cap;
    struct tok_candidate *heap;
    size_t heap_n, heap_cap;
    struct tok_cut *cuts;
    size_t cuts_cap;
    int64_t *costs;       /* of tokenizer_plamo.c */
    size_t costs_cap;
    float score;          /* sum of the words so far; its single precision decides between nearly equal cuts */
    struct pp_buf spelled;
};
/* Caches words from now on, for a text of this many bytes. Works without, if memory is short, but slower. */
void tok_merge_use_cache(struct tok_merger *m, size_t n_text);
/* Appends the tokens of a word of n bytes that lie before m->end. */
enum pp_code tok_merge_word(struct tok_merger *m, const char *word, size_t n, struct pp_error *err);
void tok_merge_free(struct tok_merger *m);
/* The score of a piece of a UNIGRAM vocabulary. */
double tok_unigram_score(const struct pp_tokenizer *t, uint32_t token);
/* tokenizer_bpe.c, tokenizer_unigram.c, tokenizer_wordpiece.c: tokenizes a word, n > 0, in these kinds of
 * vocabularies. */
enum pp_code tok_bpe_word(struct tok_merger *m, const char *word, size_t n, struct pp_error *err);
enum pp_code tok_unigram_word(struct tok_merger *m, const char *word, size_t n, struct pp_error *err);
enum pp_code tok_wordpiece_word(struct tok_merger *m, const char *word, size_t n, struct pp_error *err);
/* tokenizer_units.c: tokenizes a text with written spaces, in a vocabulary of characters or words. */
enum pp_code tok_units_text(struct tok_merger *m, const char *text, size_t n, struct pp_error *err);
/* tokenizer_dna.c: tokenizes a text between special tokens; plain gets text that is not DNA. */
enum pp_code tok_dna_text(struct tok_merger *m, const char *text, size_t n, tok_word_fn plain, void *ctx,
                          struct pp_error *err);
/* The text of a token as it is shown, without the mark of DNA. */
struct pp_str tok_dna_shown(struct pp_str text);
/* Tokenizes a text that is no token: its bytes, or one unknown token for a run of such texts. */
enum pp_code tok_emit_unknown(struct tok_merger *m, const char *bytes, size_t n, bool *after_unknown,
                              struct pp_error *err);

/* --- readers ------------------------------------------------------------------------------------------- */

enum pp_code tok_from_gguf(const struct pp_gguf *g, struct pp_tokenizer **out, struct pp_error *err);
/* Reads a tokenizer.json of n bytes; folder: with further configuration files, or NULL. */
enum pp_code tok_from_json(const char *json, size_t n, const char *folder, struct pp_tokenizer **out,
                           struct pp_error *err);
/* The same, parsed already. */
struct cJSON;
struct tok_config;
enum pp_code tok_from_tree(const struct cJSON *root, const struct tok_config *cfg, struct pp_tokenizer **out,
                           struct pp_error *err);
enum pp_code tok_from_sentencepiece(const void *data, size_t n, const char *folder, struct pp_tokenizer **out,
                                    struct pp_error *err);
/* Whether the first line is like tiktoken's. */
bool tok_is_tiktoken(const char *data, size_t n);
/* name: the file's, "qwen.tiktoken", which may tell which vocabulary it is. */
enum pp_code tok_from_tiktoken(const char *data, size_t n, const char *name, const char *folder,
                               struct pp_tokenizer **out, struct pp_error *err);
/* Mistral's tekken.json: whether it is one; and its reader. */
bool tok_is_tekken(const struct cJSON *root);
enum pp_code tok_from_tekken(const struct cJSON *root, const char *folder, struct pp_tokenizer **out,
                             struct pp_error *err);

/* RWKV's vocabulary: whether the first line is like one; and its reader. A NUL must follow the n bytes. */
#define TOK_RWKV_FILE "rwkv_vocab_v20230424.txt"
bool tok_is_rwkv(const char *data, size_t n);
enum pp_code tok_from_rwkv(const char *data, size_t n, struct pp_tokenizer **out, struct pp_error *err);
/* Appends the file's lines. */
void tok_rwkv_write(const struct pp_tokenizer *t, struct pp_buf *out);
/* Texts as GGUF files escape them: decodes all of a spec's; and appends one. */
enum pp_code tok_rwkv_unescape(struct tok_spec *spec, struct pp_error *err);
void tok_rwkv_escape(struct pp_str bytes, struct pp_buf *out);
/* Appends the tokens of a text between special tokens. */
enum pp_code tok_rwkv_text(struct tok_merger *m, const char *text, size_t n, struct pp_error *err);

/* Reads a tokenizer.jsonl of n bytes, which a NUL must follow. */
#define TOK_PLAMO_FILE "tokenizer.jsonl"
enum pp_code tok_from_plamo(const char *data, size_t n, const char *folder, struct pp_tokenizer **out,
                            struct pp_error *err);
/* The file's word for a type of token. */
const char *tok_plamo_kind(uint8_t type);
/* PP_ERR_FORMAT unless the vocabulary has what this kind needs. */
enum pp_code tok_plamo_check(const struct pp_tokenizer *t, struct pp_error *err);
/* Appends the tokens of a text between special tokens. */
enum pp_code tok_plamo_text(struct tok_merger *m, const char *text, size_t n, struct pp_error *err);

/* Reads a folder's vocab.json and merges.txt, or its vocab.txt (tokenizer_vocab.c). */
enum pp_code tok_from_vocab(const char *folder, bool merges, struct pp_tokenizer **out, struct pp_error *err);
/* PP_ERR_UNSUPPORTED unless the folder's SentencePiece model, a file with this name, is of a known class. */
enum pp_code tok_spm_check(const char *folder, const char *file, struct pp_error *err);
/* Applies what a known class adds to SentencePiece's vocabulary; names: zero-initialised, must be kept until tok_build
 * is done. */
enum pp_code tok_spm_class(const struct tok_config *cfg, struct tok_spec *spec, struct pp_buf *names,
                           struct pp_error *err);

/* Settings from tokenizer_config.json, with those of special_tokens_map.json, from config.json, generation_config.json,
 * and added_tokens.json (tokenizer_config.c). Strings in the spec point into cfg, so it must be kept until tok_build is
 * done. Missing files and members are fine. */
struct tok_config {
    struct cJSON *tokenizer, *model, *generation, *added;
};
enum pp_code tok_config_read(const char *folder, struct tok_config *cfg, struct pp_error *err);
void tok_config_free(struct tok_config *cfg);
/* Reads a file of the folder; *out stays unchanged if there is none. */
enum pp_code tok_config_json(const char *folder, const char *name, struct cJSON **out, struct pp_error *err);
/* The added and special tokens, bos, eos, unk, add_bos, add_eos, all end tokens, and the size of the vocabulary. */
enum pp_code tok_config_apply(const struct tok_config *cfg, struct tok_spec *spec, struct pp_error *err);
/* One object of added_tokens or added_tokens_decoder. */
enum pp_code tok_spec_add_token(struct tok_spec *spec, int64_t id, const struct cJSON *token, struct pp_error *err);
/* Marks tokens like "<0x0A>" as bytes, unless the file gives them another type. */
void tok_spec_mark_bytes(struct tok_spec *spec);
/* The id of a text in the spec, or -1; the last such. Linear. */
int64_t tok_spec_find(const struct tok_spec *spec, const char *text, size_t n);

#endif
