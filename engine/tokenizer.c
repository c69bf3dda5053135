/* tokenizer.c - text to token ids and back: special tokens, SentencePiece's spaces, and the public interface. */
#include "engine/text.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/other_file.h"
#include "engine/base/utf8.h"
#include "engine/source.h"
#include "engine/tokenizer_internal.h"

enum { LONG_TEXT = 2048 }; /* bytes from which a cache of words pays off */
#define MAX_TOKENIZER_FILE ((size_t)512 << 20)

void pp_tokenizer_free(struct pp_tokenizer *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_patterns; i++)
        pp_free(t->patterns[i]);
    tok_splitter_free(t->splitter);
    pp_free(t->text);
    pp_free(t->start);
    pp_free(t->ahead);
    pp_free(t->type);
    pp_free(t->flags);
    pp_free(t->score);
    pp_free(t->exact);
    pp_free(t->slots);
    pp_free(t->merges);
    pp_free(t->pairs);
    pp_free(t->byte_merges);
    pp_free(t->special.index.ids);
    pp_free(t->late.index.ids);
    pp_free(t->spaced.ids);
    pp_free(t->late_of);
    tok_steps_free(t->steps);
    pp_free(t->pieces.ids);
    pp_free(t->charsmap);
    pp_free(t->denormal);
    pp_free(t);
}

/* --- opening ------------------------------------------------------------------------------------------- */

/* Reads tokenizer.json rather than tokenizer.model: it has the tokens that were added later. */
static enum pp_code open_file(const char *path, const char *folder, struct pp_tokenizer **out, struct pp_error *err)
{
    char *data;
    size_t n;
    enum pp_code code = pp_read_file(path, MAX_TOKENIZER_FILE, &data, &n, err);
    if (code)
        return code;
    size_t first = strspn(data, " \t\r\n");
    if (data[first] == '{')
        code = tok_from_json(data, n, folder, out, err);
    else if (data[first] == '[')
        code = tok_from_plamo(data, n, folder, out, err);
    else if (tok_is_rwkv(data, n))
        code = tok_from_rwkv(data, n, out, err);
    else if (tok_is_tiktoken(data, n))
        code = tok_from_tiktoken(data, n, strrchr(path, '/') ? strrchr(path, '/') + 1 : path, folder, out, err);
    else if (!(code = pp_fail_other_file("the file", data, n, err)))
        code = tok_from_sentencepiece(data, n, folder, out, err);
    pp_free(data);
    return code ? pp_fail_prefix(err, "%s", path) : PP_OK;
}

/* Opens a file of the folder, if it is there; false: it is not. */
static bool open_in_folder(const char *folder, const char *name, struct pp_tokenizer **out, enum pp_code *code,
                           struct pp_error *err)
{
    struct pp_buf path = {0};
    pp_buf_fmt(&path, "%s/%s", folder, name);
    const bool there = path.bad || access(path.data, F_OK) == 0;
    if (there)
        *code = path.bad ? pp_fail_nomem(err, "a path") : open_file(path.data, folder, out, err);
    pp_buf_free(&path);
    return there;
}

static bool is_in_folder(const char *folder, const char *name)
{
    struct pp_buf path = {0};
    pp_buf_fmt(&path, "%s/%s", folder, name);
    const bool there = !path.bad && access(path.data, F_OK) == 0;
    pp_buf_free(&path);
    return there;
}

/* Opens files that list only tokens; the rest follows from the model's class. False: there are none. */
static bool open_lists(const char *folder, struct pp_tokenizer **out, enum pp_code *code, struct pp_error *err)
{
    static const char *const pieces[] = {"spiece.model", "sentencepiece.bpe.model"};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        if (!is_in_folder(folder, pieces[i]))
            continue;
        *code = tok_spm_check(folder, pieces[i], err);
        return *code || open_in_folder(folder, pieces[i], out, code, err);
    }
    const bool merges = is_in_folder(folder, "vocab.json") && is_in_folder(folder, "merges.txt");
    if (!merges && !is_in_folder(folder, "vocab.txt"))
        return false;
    *code = tok_from_vocab(folder, merges, out, err);
    if (*code)
        pp_fail_prefix(err, "%s", folder);
    return true;
}

static int is_tiktoken_name(const struct dirent *d)
{
    const size_t n = strlen(d->d_name);
    return d->d_name[0] != '.' && n > 9 && strcmp(d->d_name + n - 9, ".tiktoken") == 0;
}

static enum pp_code open_folder(const char *folder, struct pp_tokenizer **out, struct pp_error *err)
{
    static const char *const names[] = {"tokenizer.json", "tekken.json", "tokenizer.model", "tiktoken.model",
                                        TOK_RWKV_FILE, TOK_PLAMO_FILE};
    struct dirent **found = NULL;
    enum pp_code code;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (open_in_folder(folder, names[i], out, &code, err))
            return code;
    if (open_lists(folder, out, &code, err))
        return code;
    const int n = scandir(folder, &found, is_tiktoken_name, alphasort);
    if (n <= 0 || !open_in_folder(folder, found[0]->d_name, out, &code, err))
        code = pp_fail(err, PP_ERR_NOT_FOUND, "%s has no vocabulary: it needs tokenizer.json, tekken.json, "
                                              "tokenizer.model, tokenizer.jsonl, a .tiktoken file, vocab.json with "
                                              "merges.txt, vocab.txt or spiece.model", folder);
    for (int i = 0; i < n; i++)
        free(found[i]);
    free(found);
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_tokenizer **out, struct pp_error *err)
{
    enum pp_code code = tok_from_gguf(g, out, err);
    return code ? pp_fail_prefix(err, "%s", pp_gguf_path(g)) : PP_OK;
}

enum pp_code pp_tokenizer_from_source(const struct pp_source *s, struct pp_tokenizer **out, struct pp_error *err)
{
    *out = NULL;
    if (pp_source_gguf(s))
        return from_gguf(pp_source_gguf(s), out, err);
    return open_folder(pp_source_folder(s), out, err);
}

enum pp_code pp_tokenizer_open(const char *path, struct pp_tokenizer **out, struct pp_error *err)
{
    struct stat st;
    *out = NULL;
    if (stat(path, &st) != 0) {
        enum pp_code code = errno == ENOENT || errno == ENOTDIR ? PP_ERR_NOT_FOUND : PP_ERR_IO;
        return pp_fail(err, code, "cannot open %s: %s", path, strerror(errno));
    }
    if (S_ISDIR(st.st_mode))
        return open_folder(path, out, err);
    if (pp_gguf_is(path)) {
        struct pp_gguf *g;
        enum pp_code code = pp_gguf_open(path, &g, err);
        if (code)
            return code;
        code = from_gguf(g, out, err);
        pp_gguf_close(g);
        return code;
    }
    char *folder = pp_folder_of(path);
    if (!folder)
        return pp_fail_nomem(err, "a path");
    enum pp_code code = open_file(path, folder, out, err);
    pp_free(folder);
    return code;
}

/* --- tokenizing ---------------------------------------------------------------------------------------- */

/* The state of one call of pp_tokenize. */
struct run {
    const struct pp_tokenizer *t;
    struct tok_merger merger;
    struct tok_split_state *split;
    const char *end;      /* end of the memory with the text that is being tokenized */
    bool last;            /* no text comes after that */
    bool inside;          /* the text continues another one */
    size_t n_before;      /* tokens put before the text */
    struct pp_buf steps[2]; /* buffers for tokenizer.json's normalizers */
    struct pp_buf normal; /* a stretch, normalised */
    struct pp_buf spaced; /* a stretch with spaces as U+2581 */
    enum tok_prefix_when prefix; /* for the next stretch */
};

/* Bytes of the white space (Unicode's White_Space) with which text begins: one character; 0: none. */
static size_t space_at(const char *text, size_t n)
{
    int32_t c;
    if (n == 0)
        return 0;
    const size_t width = pp_utf8_decode(text, n, &c);
    return tok_char_class(c) & TOK_SPACE_CHAR ? width : 0;
}

/* The same for its end. */
static size_t space_before(const char *text, size_t n)
{
    for (size_t width = 1; width <= 4 && width <= n; width++)
        if (((uint8_t)text[n - width] & 0xC0) != 0x80)
            return space_at(text + n - width, width) == width ? width : 0;
    return 0;
}

/* The longest special token with which text begins, or TOK_NONE. *len: its bytes in the text. */
static uint32_t special_here(const struct pp_tokenizer *t, const struct tok_specials *s, const char *text, size_t n,
                             bool control, size_t *len)
{
    struct tok_walk w = {.t = t, .index = &s->index};
    uint32_t best = TOK_NONE, token;
    for (size_t i = 0; i < n && tok_walk(&w, text[i], &token); i++)
        for (uint32_t k = w.lo; token != TOK_NONE && k < w.hi && tok_text(t, w.index->ids[k]).len == w.depth; k++)
            if (control || t->type[tok_special_token(t, w.index->ids[k])] == TOK_USER) {
                best = tok_special_token(t, w.index->ids[k]);
                *len = w.depth;
                break;
            }
    return best;
}

static enum pp_code word(void *merger, const char *text, size_t n, struct pp_error *err)
{
    return tok_merge_word(merger, text, n, err);
}

/* A word that is the only one in its buffer. */
static enum pp_code lone_word(void *merger, const char *text, size_t n, struct pp_error *err)
{
    ((struct tok_merger *)merger)->end = text + n;
    return tok_merge_word(merger, text, n, err);
}

/* Whether the next stretch continues the text before this call, so that nothing is put before it. */
static bool goes_on(const struct run *r)
{
    return r->inside && r->merger.ids.n == r->n_before;
}

static enum pp_code split(struct run *r, const char *text, size_t n, const char *end, struct pp_error *err)
{
    const tok_word_fn fn = tok_splitter_copies(r->t->splitter) ? lone_word : word;
    r->merger.end = end;
    return tok_split(r->t->splitter, r->split, text, n, goes_on(r), fn, &r->merger, err);
}

/* Splits text that is not DNA. */
static enum pp_code plain_text(void *run, const char *text, size_t n, struct pp_error *err)
{
    struct run *r = run;
    return split(r, text, n, r->end, err);
}

/* Writes spaces as U+2581 (unless the vocabulary keeps spaces), and merges word by word. A word begins at a run of
 * U+2581, if no merge reaches across that; or at each U+2581, if the vocabulary wants it; otherwise all is one word. */
static enum pp_code merge_spaced(struct run *r, const char *text, size_t n, char *to, struct pp_error *err)
{
    const bool cut = r->t->words_at_space, cut_all = r->t->split_spaces;
    const char *end = text + n;
    char *begin = r->spaced.data, *at = to;
    bool in_run = true;
    while (text < end) {
        const bool own = (uint8_t)*text == (uint8_t)TOK_SPACE[0] && end - text >= TOK_SPACE_LEN &&
                         memcmp(text, TOK_SPACE, TOK_SPACE_LEN) == 0;
        const bool space = (*text == ' ' && !r->t->bare_spaces) || own;
        if (!space) {
            *at++ = *text++;
            in_run = false;
            continue;
        }
        if ((cut && !in_run) || (cut_all && at > begin)) {
            enum pp_code code = tok_merge_word(&r->merger, begin, (size_t)(at - begin), err);
            if (code)
                return code;
            begin = at;
        }
        in_run = true;
        memcpy(at, TOK_SPACE, TOK_SPACE_LEN);
        at += TOK_SPACE_LEN;
        text += own ? TOK_SPACE_LEN : 1;
    }
    return tok_merge_word(&r->merger, begin, (size_t)(at - begin), err);
}

/* Merges a part of such text, cut into words at runs of U+2581 if no merge reaches across those. */
static enum pp_code merge_part(struct run *r, const char *begin, const char *end, struct pp_error *err)
{
    const char *at = begin;
    bool in_run = true;
    enum pp_code code = PP_OK;
    while (!code && at < end) {
        const bool space = end - at >= TOK_SPACE_LEN && memcmp(at, TOK_SPACE, TOK_SPACE_LEN) == 0;
        if (r->t->words_at_space && space && !in_run) {
            code = tok_merge_word(&r->merger, begin, (size_t)(at - begin), err);
            begin = at;
        }
        in_run = space;
        at += space ? TOK_SPACE_LEN : 1;
    }
    return code || begin == end ? code : tok_merge_word(&r->merger, begin, (size_t)(end - begin), err);
}

/* Writes text with U+2581 for each space, unless the vocabulary keeps spaces. Returns the end. */
static char *write_spaced(const struct pp_tokenizer *t, const char *text, size_t n, char *to)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] != ' ' || t->bare_spaces) {
            *to++ = text[i];
            continue;
        }
        memcpy(to, TOK_SPACE, TOK_SPACE_LEN);
        to += TOK_SPACE_LEN;
    }
    return to;
}

/* The same with user-defined tokens, which are looked for after all spaces are written. */
static enum pp_code merge_around(struct run *r, const char *text, size_t n, char *to, struct pp_error *err)
{
    const char *begin = r->spaced.data, *const end = write_spaced(r->t, text, n, to), *at = begin;
    enum pp_code code = PP_OK;
    for (size_t len; !code && at < end;) {
        const uint32_t id = tok_longest_here(r->t, &r->t->spaced, at, (size_t)(end - at), &len);
        if (id == TOK_NONE) {
            at += pp_utf8_decode(at, (size_t)(end - at), &(int32_t){0});
            continue;
        }
        code = merge_part(r, begin, at, err);
        if (!code)
            code = tok_ids_add(&r->merger.ids, (int32_t)id, err);
        begin = at += len;
    }
    return code ? code : merge_part(r, begin, end, err);
}

enum { SLACK = 32 };

static size_t count_spaces(const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += text[i] == ' ';
    return count;
}

/* Normalises the stretch if the vocabulary does. False: out of memory. */
static bool normalize(struct run *r, const char **text, size_t *n)
{
    if (!tok_normalizes(r->t))
        return true;
    pp_buf_clear(&r->normal);
    tok_normalize(r->t, *text, *n, !r->inside && r->merger.ids.n == r->n_before, r->last && *text + *n == r->end,
                  &r->normal);
    *text = pp_buf_cstr(&r->normal);
    *n = r->normal.len;
    return !r->normal.bad;
}

/* The space that is put before texts. */
static struct pp_str prefix_text(const struct pp_tokenizer *t)
{
    return t->bare_prefix ? (struct pp_str){" ", 1} : (struct pp_str){TOK_SPACE, TOK_SPACE_LEN};
}

/* Tokenizes normalised text, or a word of it, with a space before it if `when` says so. */
static enum pp_code spm_words(struct run *r, const char *text, size_t n, enum tok_prefix_when when,
                              struct pp_error *err)
{
    const bool spaced = text[0] == ' ' || (n >= TOK_SPACE_LEN && memcmp(text, TOK_SPACE, TOK_SPACE_LEN) == 0);
    const bool put = when == TOK_PREFIX_ALWAYS || (when == TOK_PREFIX_UNLESS_SPACE && !spaced);
    const struct pp_str prefix = put ? prefix_text(r->t) : (struct pp_str){"", 0};
    const size_t whole = prefix.len + n + (TOK_SPACE_LEN - 1) * count_spaces(text, n);
    pp_buf_clear(&r->spaced);
    if (pp_grow(&r->spaced.data, &r->spaced.cap, whole + SLACK, 1) != 0)
        return pp_fail_nomem(err, "a copy of the text");
    char *to = r->spaced.data;
    r->merger.end = to + whole + SLACK; /* so that the fast path also reads the last words */
    memset(to + whole, 0, SLACK);
    memcpy(to, prefix.data, prefix.len);
    to += prefix.len;
    if (r->t->units)
        return tok_units_text(&r->merger, r->spaced.data, (size_t)(write_spaced(r->t, text, n, to) - r->spaced.data),
                              err);
    const bool around = r->t->spaced_late && r->t->kind == TOK_SPM;
    return around ? merge_around(r, text, n, to, err) : merge_spaced(r, text, n, to, err);
}

/* Splits at white space. Each word gets the prefix of its stretch; the first one gets that of later words if white
 * space precedes it. */
static enum pp_code white_words(struct run *r, const char *text, size_t n, enum tok_prefix_when when,
                                struct pp_error *err)
{
    const bool covered = r->t->covered & TOK_COVERS_PREFIX;
    enum pp_code code = PP_OK;
    for (size_t i = 0, width; !code && i < n;) {
        size_t end = i;
        if ((width = space_at(text + i, n - i))) {
            i += width;
            when = covered ? TOK_PREFIX_NEVER : r->t->prefix.user;
            continue;
        }
        while (end < n && !space_at(text + end, n - end))
            end += pp_utf8_decode(text + end, n - end, &(int32_t){0});
        code = spm_words(r, text + i, end - i, when, err);
        i = end;
    }
    return code;
}

/* Tokenizes the space that is put before texts, when no text follows it. */
static enum pp_code lone_prefix(struct run *r, struct pp_error *err)
{
    const struct pp_str prefix = prefix_text(r->t);
    char sign[TOK_SPACE_LEN + SLACK] = {0};
    memcpy(sign, prefix.data, prefix.len);
    r->merger.end = sign + sizeof sign;
    if (r->t->units)
        return tok_units_text(&r->merger, sign, prefix.len, err);
    return tok_merge_word(&r->merger, sign, prefix.len, err);
}

static enum pp_code spm_stretch(struct run *r, const char *text, size_t n, struct pp_error *err)
{
    if (!normalize(r, &text, &n))
        return pp_fail_nomem(err, "a copy of the text");
    const bool covered = r->t->covered & TOK_COVERS_PREFIX || r->t->suffix;
    const enum tok_prefix_when when = covered ? TOK_PREFIX_NEVER : r->prefix;
    if (n == 0) /* normalising left nothing; if it was spaces, they and the prefix are squeezed together */
        return when == TOK_PREFIX_NEVER || r->t->squeeze ? PP_OK : lone_prefix(r, err);
    return r->t->split_white ? white_words(r, text, n, when, err) : spm_words(r, text, n, when, err);
}

/* Tokenizes text between special tokens. */
static enum pp_code stretch(struct run *r, const char *text, size_t n, struct pp_error *err)
{
    enum pp_code code;
    if (n == 0)
        return PP_OK;
    if (r->t->kind == TOK_SPM || r->t->kind == TOK_UNIGRAM) {
        code = spm_stretch(r, text, n, err);
    } else if (r->t->kind == TOK_RWKV) {
        code = tok_rwkv_text(&r->merger, text, n, err);
    } else if (r->t->kind == TOK_PLAMO) {
        code = tok_plamo_text(&r->merger, text, n, err);
    } else if (r->t->kind == TOK_WORDPIECE && !r->t->splitter) {
        code = tok_bert_words(r->t, text, n, &r->normal, lone_word, &r->merger, err);
    } else if (r->t->add_space && text[0] != ' ' && !goes_on(r)) {
        pp_buf_clear(&r->spaced);
        pp_buf_char(&r->spaced, ' ');
        pp_buf_add(&r->spaced, text, n);
        if (r->spaced.bad)
            return pp_fail_nomem(err, "a copy of the text");
        code = split(r, r->spaced.data, r->spaced.len, r->spaced.data + r->spaced.len, err);
    } else if (r->t->dna) {
        code = tok_dna_text(&r->merger, text, n, plain_text, r, err);
    } else {
        code = split(r, text, n, r->end, err);
    }
    r->prefix = TOK_PREFIX_NEVER;
    return code;
}

static enum pp_code special(struct run *r, uint32_t id, struct pp_error *err)
{
    const struct pp_tokenizer *t = r->t;
    if (t->flags[id] & TOK_SPACED && t->prefix.start != TOK_PREFIX_NEVER && !r->inside &&
        r->merger.ids.n == r->n_before) {
        enum pp_code code = lone_prefix(r, err);
        if (code)
            return code;
    }
    r->prefix = t->type[id] == TOK_USER ? t->prefix.user : t->prefix.control;
    return tok_ids_add(&r->merger.ids, (int32_t)id, err);
}

/* The first place from i on where a special token can begin, or n. */
static size_t next_special(const struct tok_specials *s, const char *text, size_t i, size_t n, bool control)
{
    const int only = s->only[control];
    if (only >= 0) {
        const char *found = memchr(text + i, only, n - i);
        return found ? (size_t)(found - text) : n;
    }
    while (i < n && !s->first[control][(uint8_t)text[i]])
        i++;
    return i;
}

typedef enum pp_code (*stretch_fn)(struct run *r, const char *text, size_t n, bool control, struct pp_error *err);

/* Finds the special tokens of text; `between` gets the text between them. */
static enum pp_code cut(struct run *r, const struct tok_specials *s, const char *text, size_t n, bool control,
                        stretch_fn between, struct pp_error *err)
{
    const struct pp_tokenizer *t = r->t;
    size_t begin = 0, len = 0, white_end = 0; /* end of the last run of white space that was skipped */
    enum pp_code code;
    for (size_t i = 0; (i = next_special(s, text, i, n, control)) < n;) {
        const uint32_t id = special_here(t, s, text + i, n - i, control, &len);
        if (id == TOK_NONE) {
            i++;
            continue;
        }
        if (t->flags[id] & TOK_WORD && !tok_stands_alone(text, i, i + len, n)) {
            i += len;
            continue;
        }
        size_t end = i, space, after = i + len;
        /* if tokens are white space themselves, a long run must not be skipped again for each of them */
        if (t->flags[id] & TOK_RSTRIP && after < white_end && ((uint8_t)text[after] & 0xC0) != 0x80)
            after = white_end;
        while (t->flags[id] & TOK_RSTRIP && (space = space_at(text + after, n - after)))
            white_end = after += space;
        while (end > begin && t->flags[id] & TOK_LSTRIP && (space = space_before(text + begin, end - begin)))
            end -= space;
        if (end > begin && (code = between(r, text + begin, end - begin, control, err)))
            return code;
        /* a token that begins in white space that the previous token took, and strips to its left, may have nothing
         * left */
        if ((begin < after || !(t->flags[id] & TOK_LSTRIP)) && (code = special(r, id, err)))
            return code;
        begin = after;
        i += len;
    }
    return between(r, text + begin, n - begin, control, err);
}

static enum pp_code plain_stretch(struct run *r, const char *text, size_t n, bool control, struct pp_error *err)
{
    (void)control;
    return stretch(r, text, n, err);
}

/* Normalises text, then looks for tokens that are looked for in normalised text. */
static enum pp_code steps_stretch(struct run *r, const char *text, size_t n, bool control, struct pp_error *err)
{
    struct pp_str made = {text, n};
    const char *const end = r->end;
    const bool last = r->last;
    bool moved = false;
    enum pp_code code = tok_steps_run(r->t->steps, &made, goes_on(r), r->steps, &moved, err);
    if (code)
        return code;
    if (moved && r->t->prefix.user == TOK_PREFIX_NEVER) /* the character with the prefix is gone */
        r->prefix = TOK_PREFIX_NEVER;
    if (made.data < text || made.data > text + n) { /* the result is in a new buffer */
        r->last = last && text + n == end;
        r->end = made.data + made.len;
    }
    code = cut(r, &r->t->late, made.data, made.len, control, plain_stretch, err);
    r->end = end;
    r->last = last;
    return code;
}

static enum pp_code tokenize(struct run *r, const char *text, size_t n, bool control, struct pp_error *err)
{
    return cut(r, &r->t->special, text, n, control, r->t->steps ? steps_stretch : plain_stretch, err);
}

/* Whether text begins with BOS, as templates may write it. */
static bool begins_with_bos(const struct pp_tokenizer *t, const char *text, size_t n)
{
    size_t len;
    return special_here(t, &t->special, text, n, true, &len) == (uint32_t)t->bos ||
           special_here(t, &t->late, text, n, true, &len) == (uint32_t)t->bos;
}

enum pp_code pp_tokenize(const struct pp_tokenizer *t, const char *text, size_t n, unsigned flags, int32_t **ids,
                         size_t *n_ids, struct pp_error *err)
{
    struct run r = {.t = t, .merger = {.t = t}, .end = text + n, .last = true, .prefix = t->prefix.start};
    if (flags & PP_TOKENIZE_ON) {
        r.inside = true;
        r.prefix = TOK_PREFIX_NEVER;
    }
    bool control = flags & PP_TOKENIZE_SPECIAL, ends = flags & PP_TOKENIZE_BOS;
    *ids = NULL;
    *n_ids = 0;
    if (n > INT32_MAX)
        return pp_fail(err, PP_ERR_USAGE, "a text of %zu bytes is too long to tokenize at once", n);
    if (t->splitter && !(r.split = tok_split_state_new(t->splitter, n)))
        return pp_fail_nomem(err, "splitting the text into words");
    if (n >= LONG_TEXT && t->kind != TOK_UNIGRAM) /* unigram scores depend on the words before */
        tok_merge_use_cache(&r.merger, n);
    /* If a template writes BOS itself, there is no second one. */
    bool bos_written = ends && t->add_bos && control && n && begins_with_bos(t, text, n);
    enum pp_code code = PP_OK;
    for (size_t i = 0; !code && (ends || flags & PP_TOKENIZE_AHEAD) && i < t->n_ahead; i++)
        code = tok_ids_add(&r.merger.ids, t->ahead[i], err);
    for (size_t i = 0; !code && ends && !bos_written && i < t->n_lead; i++)
        code = tok_ids_add(&r.merger.ids, t->lead[i], err);
    r.n_before = r.merger.ids.n;
    if (!code)
        code = tokenize(&r, text, n, control, err);
    for (size_t i = 0; !code && ends && i < t->n_tail; i++)
        code = tok_ids_add(&r.merger.ids, t->tail[i], err);
    if (!code && !r.merger.ids.v && !(r.merger.ids.v = pp_malloc(sizeof **ids))) /* no tokens: still a list */
        code = pp_fail_nomem(err, "the tokens of the text");
    if (!code) {
        *ids = r.merger.ids.v;
        *n_ids = r.merger.ids.n;
        r.merger.ids.v = NULL;
    }
    tok_merge_free(&r.merger);
    tok_split_state_free(r.split);
    pp_buf_free(&r.steps[0]);
    pp_buf_free(&r.steps[1]);
    pp_buf_free(&r.normal);
    pp_buf_free(&r.spaced);
    return code;
}

/* --- detokenizing -------------------------------------------------------------------------------------- */

/* Text with characters that do not represent bytes is copied as it is. */
static void byte_level_text(struct pp_str s, struct pp_buf *out)
{
    size_t before = out->len;
    for (size_t i = 0; i < s.len;) {
        int32_t c;
        i += pp_utf8_decode(s.data + i, s.len - i, &c);
        int byte = tok_char_to_byte(c);
        if (byte < 0) {
            out->len = before;
            pp_buf_add(out, s.data, s.len);
            return;
        }
        pp_buf_char(out, (char)byte);
    }
}

static void spm_text(struct pp_str s, struct pp_buf *out)
{
    const char *end = s.data + s.len;
    for (const char *at = s.data; at < end;) {
        const char *space = memmem(at, (size_t)(end - at), TOK_SPACE, TOK_SPACE_LEN);
        pp_buf_add(out, at, (size_t)((space ? space : end) - at));
        if (space)
            pp_buf_char(out, ' ');
        at = space ? space + TOK_SPACE_LEN : end;
    }
}

/* Punctuation and endings before which BERT's detokenizer writes no space. */
static bool is_spaceless(struct pp_str s)
{
    static const char *const texts[] = {".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const size_t n = strlen(texts[i]);
        if (s.len >= n && memcmp(s.data, texts[i], n) == 0)
            return true;
    }
    return false;
}

/* WordPiece: U+2581 marks the beginning of a word. */
static void word_text(const struct pp_tokenizer *t, struct pp_str s, struct pp_buf *out)
{
    const bool begins = s.len >= TOK_SPACE_LEN && memcmp(s.data, TOK_SPACE, TOK_SPACE_LEN) == 0;
    s.data += begins ? TOK_SPACE_LEN : 0;
    s.len -= begins ? TOK_SPACE_LEN : 0;
    if (begins && !(t->cleanup && is_spaceless(s)))
        pp_buf_char(out, ' ');
    pp_buf_add(out, s.data, s.len);
}

/* Whether a token has the mark of a word's end, which becomes a space. */
static bool ends_word(const struct pp_tokenizer *t, struct pp_str s)
{
    return t->n_word_end && s.len >= t->n_word_end &&
           memcmp(s.data + s.len - t->n_word_end, t->word_end, t->n_word_end) == 0;
}

/* Where nothing tells how texts are joined, each token is a word. */
static void characters_text(const struct pp_tokenizer *t, struct pp_str s, struct pp_buf *out)
{
    const bool glued = t->n_glue && s.len >= t->n_glue && memcmp(s.data, t->glue, t->n_glue) == 0;
    if (t->prefix.start != TOK_PREFIX_NEVER && !glued && !(t->cleanup && is_spaceless(s)))
        pp_buf_char(out, ' ');
    s.data += glued ? t->n_glue : 0;
    s.len -= glued ? t->n_glue : 0;
    const bool ends = ends_word(t, s);
    s.len -= ends ? t->n_word_end : 0;
    if (tok_steps_spell_signs(t->steps))
        tok_moses_shown(s, out);
    else
        pp_buf_add(out, s.data, s.len);
    if (ends)
        pp_buf_char(out, ' ');
}

static bool parse_byte_token(struct pp_str s, char *byte)
{
    static const char digits[] = "0123456789ABCDEF";
    if (s.len != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>')
        return false;
    const char *high = memchr(digits, s.data[3], 16), *low = memchr(digits, s.data[4], 16);
    if (!high || !low)
        return false;
    *byte = (char)((high - digits) << 4 | (low - digits));
    return true;
}

void pp_token_text(const struct pp_tokenizer *t, int32_t id, bool special, struct pp_buf *out)
{
    char byte;
    if (id < 0 || (uint32_t)id >= t->n_vocab)
        return;
    struct pp_str s = tok_text(t, (uint32_t)id);
    switch (t->type[id]) {
    case TOK_UNKNOWN:
    case TOK_CONTROL:
        if (special)
            pp_buf_add(out, s.data, s.len);
        break;
    case TOK_USER:
        if (t->kind == TOK_SPM || t->kind == TOK_UNIGRAM)
            spm_text(s, out); /* such as Gemma's runs of spaces */
        else
            pp_buf_add(out, s.data, s.len);
        break;
    case TOK_UNUSED:
        break;
    default:
        if (t->spelled)
            byte_level_text(s, out);
        else if (t->kind == TOK_BYTE_LEVEL)
            byte_level_text(t->dna ? tok_dna_shown(s) : s, out);
        else if (t->kind == TOK_CHARACTERS && t->type[id] != TOK_BYTE)
            characters_text(t, s, out);
        else if (t->kind == TOK_RWKV)
            pp_buf_add(out, s.data, s.len);
        else if (t->type[id] == TOK_BYTE && parse_byte_token(s, &byte))
            pp_buf_char(out, byte);
        else if (t->kind == TOK_PLAMO)
            pp_buf_add(out, s.data, s.len);
        else if (t->kind == TOK_WORDPIECE)
            word_text(t, s, out);
        else
            spm_text(s, out);
    }
}

/* Whether tokenizing put a space before the next text. If that depends on the text, only a space at the very start
 * counts. */
static bool prefix_was_added(enum tok_prefix_when when, bool at_start)
{
    return when == TOK_PREFIX_ALWAYS || (when == TOK_PREFIX_UNLESS_SPACE && at_start);
}

/* Joins words and special tokens by spaces, without one before the first. */
static void joined_text(const struct pp_tokenizer *t, const int32_t *ids, size_t n, bool special, struct pp_buf *out)
{
    const size_t begin = out->len;
    for (size_t i = 0; i < n; i++) {
        const size_t before = out->len;
        if (ids[i] < 0 || (uint32_t)ids[i] >= t->n_vocab)
            continue;
        const bool own = t->type[ids[i]] != TOK_NORMAL && t->type[ids[i]] != TOK_BYTE;
        if (own && before > begin)
            pp_buf_char(out, ' ');
        const size_t at = out->len;
        pp_token_text(t, ids[i], special, out);
        if (out->len == at) {
            out->len = before;
        } else if (!own && before == begin && out->data[before] == ' ') {
            memmove(out->data + before, out->data + before + 1, out->len - before); /* including the NUL */
            out->len--;
        }
    }
    if (out->data)
        out->data[out->len] = 0;
}

/* Applies SentencePiece's denormalizer to out from `begin` on, except to control tokens that are written out. */
static void show_text(const struct pp_tokenizer *t, size_t begin, bool special, struct pp_buf *out)
{
    struct pp_buf all = {0};
    for (size_t i = begin, width; i < out->len; i += width) {
        const char *text = out->data + i, *shown = text;
        const size_t n = out->len - i;
        size_t n_shown = 0;
        if (special && special_here(t, &t->special, text, n, true, &width) != TOK_NONE)
            n_shown = width;
        else
            width = pp_shown_text(t, text, n, true, &shown, &n_shown);
        pp_buf_add(&all, shown, n_shown);
    }
    out->len = begin;
    pp_buf_add(out, pp_buf_cstr(&all), all.len);
    out->bad |= all.bad;
    pp_buf_free(&all);
}

/* Detokenizes without SentencePiece's denormalizer. */
static void plain_detokenize(const struct pp_tokenizer *t, const int32_t *ids, size_t n, bool special,
                             struct pp_buf *out)
{
    if (t->kind == TOK_WORDPIECE || (t->kind == TOK_CHARACTERS && t->prefix.start != TOK_PREFIX_NEVER)) {
        joined_text(t, ids, n, special, out);
        return;
    }
    size_t begin = out->len;
    const bool added = t->strip == TOK_STRIP_ADDED, first = t->strip == TOK_STRIP_FIRST;
    const bool squeezed = t->squeeze && !t->apart; /* then no text began with a space */
    bool may_strip = added ? squeezed || prefix_was_added(t->prefix.start, true) : first;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= t->n_vocab)
            continue;
        size_t before = out->len;
        pp_token_text(t, ids[i], special, out);
        uint8_t type = t->type[ids[i]];
        const bool at_start = out->len == begin;
        if (type == TOK_UNKNOWN || ids[i] == t->unk) { /* it replaces text that continues */
            may_strip = may_strip && at_start;
            continue;
        }
        /* treated like a piece */
        const bool spaced = type == TOK_USER && t->spaced_late && t->flags[ids[i]] & TOK_SPACED;
        if (type == TOK_CONTROL || (type == TOK_USER && !spaced)) {
            const bool put = prefix_was_added(type == TOK_USER ? t->prefix.user : t->prefix.control, at_start);
            may_strip = added ? put && (at_start || !t->suffix) : first && at_start;
            continue;
        }
        if (may_strip && t->kind != TOK_BYTE_LEVEL && !t->spelled && (type == TOK_NORMAL || spaced) &&
            out->len > before && out->data[before] == ' ' &&
            !(t->bare_prefix && tok_text(t, (uint32_t)ids[i]).data[0] == ' ')) { /* only U+2581 is stripped */
            memmove(out->data + before, out->data + before + 1, out->len - before); /* including the NUL */
            out->len--;
        }
        may_strip = squeezed && out->len == begin;
    }
    const int32_t last = n ? ids[n - 1] : -1;
    if (last >= 0 && (uint32_t)last < t->n_vocab && t->type[last] == TOK_NORMAL && out->len > begin &&
        ends_word(t, tok_text(t, (uint32_t)last)))
        out->data[--out->len] = 0;
}

void pp_detokenize(const struct pp_tokenizer *t, const int32_t *ids, size_t n, bool special, struct pp_buf *out)
{
    const size_t begin = out->len;
    plain_detokenize(t, ids, n, special, out);
    if (t->denormal && out->len > begin)
        show_text(t, begin, special, out);
}

/* --- queries ------------------------------------------------------------------------------------------- */

int32_t pp_tokenizer_n(const struct pp_tokenizer *t)
{
    return (int32_t)t->n_vocab;
}

int32_t pp_tokenizer_bos(const struct pp_tokenizer *t)
{
    return t->bos;
}

int32_t pp_tokenizer_eos(const struct pp_tokenizer *t)
{
    return t->eos;
}

bool pp_tokenizer_adds_bos(const struct pp_tokenizer *t)
{
    return t->add_bos;
}

size_t pp_tokenizer_lead(const struct pp_tokenizer *t, const int32_t **ids)
{
    *ids = t->lead;
    return t->n_lead;
}

size_t pp_tokenizer_ahead(const struct pp_tokenizer *t, const int32_t **ids)
{
    *ids = t->ahead;
    return t->n_ahead;
}

enum pp_code pp_tokenizer_put_ahead(struct pp_tokenizer *t, int32_t first, size_t n, struct pp_error *err)
{
    if (!(t->ahead = pp_calloc(n, sizeof *t->ahead)))
        return pp_fail_nomem(err, "what stands before texts");
    for (size_t i = 0; i < n; i++)
        t->ahead[i] = first + (int32_t)i;
    t->n_ahead = n;
    return PP_OK;
}

bool pp_tokenizer_is_end(const struct pp_tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->n_vocab && t->flags[id] & TOK_END;
}

int32_t pp_tokenizer_find(const struct pp_tokenizer *t, const char *text, size_t n)
{
    uint32_t id = tok_lookup(t, text, n);
    return id < t->n_vocab ? (int32_t)id : -1;
}

bool pp_tokenizer_equal(const struct pp_tokenizer *a, const struct pp_tokenizer *b, struct pp_error *err)
{
    static const char *const kinds[] = {"byte-level BPE", "SentencePiece BPE", "SentencePiece unigram", "WordPiece",
                                        "RWKV's", "PLaMo's", "BPE of characters"};
    if (a->kind != b->kind) {
        pp_fail(err, PP_ERR_MISMATCH, "one tokenizer is %s, the other %s", kinds[a->kind], kinds[b->kind]);
        return false;
    }
    if (a->n_vocab != b->n_vocab) {
        pp_fail(err, PP_ERR_MISMATCH, "the vocabularies have %u and %u tokens", a->n_vocab, b->n_vocab);
        return false;
    }
    for (uint32_t i = 0; i < a->n_vocab; i++) {
        struct pp_str x = tok_text(a, i), y = tok_text(b, i);
        if (x.len != y.len || (x.len && memcmp(x.data, y.data, x.len) != 0)) {
            pp_fail(err, PP_ERR_MISMATCH, "token %u is not the same text in both vocabularies", i);
            return false;
        }
    }
    return true;
}

static bool is_used(const struct pp_tokenizer *t, uint32_t id)
{
    return id < t->n_vocab && t->type[id] != TOK_UNUSED;
}

bool pp_tokenizer_same_ids(const struct pp_tokenizer *a, const struct pp_tokenizer *b)
{
    const uint32_t n = a->n_vocab > b->n_vocab ? a->n_vocab : b->n_vocab;
    bool same = a->kind == b->kind && a->n_ahead == b->n_ahead;
    for (uint32_t i = 0; i < n && same; i++) {
        const bool used = is_used(a, i);
        same = used == is_used(b, i);
        if (!used || !same)
            continue;
        const struct pp_str x = tok_text(a, i), y = tok_text(b, i);
        same = x.len == y.len && (!x.len || memcmp(x.data, y.data, x.len) == 0);
    }
    return same;
}
