/* tokenizer_sentencepiece.c - SentencePiece's own file, tokenizer.model: a protobuf of type ModelProto.
 *
 * Format: sentencepiece_model.proto of https://github.com/google/sentencepiece and the protobuf wire format. Fields
 * that are not needed are passed over. */
#include <string.h>

#include "engine/base/cursor.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

/* --- protobuf ------------------------------------------------------------------------------------------ */

struct field {
    uint64_t number;
    uint64_t value; /* a varint, or the bits of a fixed-size number */
    struct pp_str bytes;
};

static uint64_t read_varint(struct pp_cursor *c)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte = pp_cursor_u8(c);
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return v;
    }
    c->bad = true;
    return 0;
}

/* The next field; false at the end, or when the message is malformed (then c->bad). */
static bool read_field(struct pp_cursor *c, struct field *f)
{
    if (c->bad || pp_cursor_left(c) == 0)
        return false;
    uint64_t tag = read_varint(c);
    *f = (struct field){.number = tag >> 3};
    switch (tag & 7) {
    case 0:
        f->value = read_varint(c);
        break;
    case 1:
        f->value = pp_cursor_u64(c);
        break;
    case 2:
        f->bytes.len = (size_t)read_varint(c);
        f->bytes.data = pp_cursor_bytes(c, f->bytes.len);
        break;
    case 5:
        f->value = pp_cursor_u32(c);
        break;
    default:
        c->bad = true;
    }
    return !c->bad;
}

/* --- ModelProto ---------------------------------------------------------------------------------------- */

enum { PIECES = 1, TRAINER = 2, NORMALIZER = 3, DENORMALIZER = 5 };      /* fields of ModelProto */
enum { PIECE = 1, SCORE = 2, TYPE = 3 };                                 /* of SentencePiece */
enum { MODEL_TYPE = 3, SUFFIX = 24, BYTE_FALLBACK = 35, UNK_ID = 40, BOS_ID = 41, EOS_ID = 42 }; /* of TrainerSpec */
enum { CHARSMAP = 2, DUMMY_PREFIX = 3, EXTRA_SPACES = 4, ESCAPE = 5 };   /* of NormalizerSpec */
enum { MODEL_UNIGRAM = 1, MODEL_BPE = 2, MODEL_WORD = 3, MODEL_CHAR = 4 };

static enum pp_code malformed(struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT, "the file is neither a tokenizer.json nor an intact SentencePiece model");
}

/* An int32 field; negative numbers are written with 64 bits. */
static int64_t as_int32(uint64_t v)
{
    return (int32_t)(uint32_t)v;
}

/* User-defined texts are looked for in raw text, so U+2581 in them becomes a space. If normalising changes spaces, they
 * are looked for in its result, and keep U+2581. */
static enum pp_code plain_spaces(struct pp_str *text, struct pp_buf *plain, struct pp_error *err)
{
    if (!memmem(text->data, text->len, TOK_SPACE, TOK_SPACE_LEN))
        return PP_OK;
    char *copy = plain->data + plain->len; /* allocated for all pieces */
    size_t n = 0;
    for (size_t i = 0; i < text->len;) {
        bool space = text->len - i >= TOK_SPACE_LEN && memcmp(text->data + i, TOK_SPACE, TOK_SPACE_LEN) == 0;
        if (plain->len + n >= plain->cap)
            return pp_fail_nomem(err, "the vocabulary");
        copy[n++] = space ? ' ' : text->data[i];
        i += space ? TOK_SPACE_LEN : 1;
    }
    plain->len += n;
    *text = (struct pp_str){copy, n};
    return PP_OK;
}

static enum pp_code read_piece(struct pp_str bytes, size_t i, struct tok_spec *spec, struct pp_error *err)
{
    struct pp_cursor c = pp_cursor(bytes.data, bytes.len);
    struct field f;
    spec->texts[i] = (struct pp_str){"", 0};
    spec->types[i] = TOK_NORMAL;
    spec->scores[i] = 0.0f;
    while (read_field(&c, &f)) {
        uint32_t bits = (uint32_t)f.value;
        if (f.number == PIECE && f.bytes.data)
            spec->texts[i] = f.bytes;
        else if (f.number == SCORE)
            memcpy(&spec->scores[i], &bits, sizeof bits);
        else if (f.number == TYPE && f.value >= TOK_NORMAL && f.value <= TOK_BYTE)
            spec->types[i] = (uint8_t)f.value; /* GGUF's numbers are the same */
    }
    if (c.bad)
        return malformed(err);
    if (!pp_utf8_valid(spec->texts[i].data, spec->texts[i].len))
        return pp_fail(err, PP_ERR_FORMAT, "piece %zu is not valid UTF-8; the file is damaged: download it again", i);
    if (spec->types[i] == TOK_USER)
        spec->flags[i] |= TOK_SPACED;
    return PP_OK;
}

static enum pp_code read_trainer(struct pp_str bytes, struct tok_spec *spec, struct pp_error *err)
{
    struct pp_cursor c = pp_cursor(bytes.data, bytes.len);
    struct field f;
    uint64_t model = MODEL_UNIGRAM;
    spec->unk = 0, spec->bos = 1, spec->eos = 2;
    spec->no_bytes = true;
    while (read_field(&c, &f)) {
        switch (f.number) {
        case MODEL_TYPE:
            model = f.value;
            break;
        case BYTE_FALLBACK:
            spec->no_bytes = f.value == 0;
            break;
        case SUFFIX:
            spec->suffix = f.value != 0;
            break;
        case UNK_ID:
            spec->unk = as_int32(f.value);
            break;
        case BOS_ID:
            spec->bos = as_int32(f.value);
            break;
        case EOS_ID:
            spec->eos = as_int32(f.value);
            break;
        }
    }
    if (c.bad)
        return malformed(err);
    if (model < MODEL_UNIGRAM || model > MODEL_CHAR)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the SentencePiece model is of type %llu; pippin knows unigram, BPE, "
                       "word and char (1 to 4)", (unsigned long long)model);
    spec->kind = model == MODEL_UNIGRAM ? TOK_UNIGRAM : TOK_SPM;
    spec->units = model == MODEL_CHAR   ? TOK_UNITS_CHARACTERS
                  : model == MODEL_WORD ? TOK_UNITS_WORDS
                                        : TOK_UNITS_MERGED;
    return PP_OK;
}

static enum pp_code read_normalizer(struct pp_str bytes, struct tok_spec *spec, struct pp_error *err)
{
    struct pp_cursor c = pp_cursor(bytes.data, bytes.len);
    struct field f;
    spec->squeeze = true;
    while (read_field(&c, &f)) {
        if (f.number == CHARSMAP)
            spec->charsmap = f.bytes;
        if (f.number == EXTRA_SPACES)
            spec->squeeze = f.value != 0;
        if (f.number == DUMMY_PREFIX && f.value == 0)
            spec->prefix = (struct tok_prefix){0};
        if (f.number == ESCAPE)
            spec->bare_spaces = spec->bare_prefix = f.value == 0;
    }
    return c.bad ? malformed(err) : PP_OK;
}

/* Reads how texts of tokens are changed before they are shown. Only a table changes anything: SentencePiece's trainer
 * writes other settings that leave spaces as they are. */
static enum pp_code read_denormalizer(struct pp_str bytes, struct tok_spec *spec, struct pp_error *err)
{
    struct pp_cursor c = pp_cursor(bytes.data, bytes.len);
    struct field f;
    bool changes[ESCAPE + 1] = {[DUMMY_PREFIX] = true, [EXTRA_SPACES] = true, [ESCAPE] = true};
    while (read_field(&c, &f)) {
        if (f.number == CHARSMAP)
            spec->denormal = f.bytes;
        else if (f.number <= ESCAPE)
            changes[f.number] = f.value != 0;
    }
    if (c.bad)
        return malformed(err);
    const char *what = changes[DUMMY_PREFIX]   ? "puts a space in front of texts (add_dummy_prefix)"
                       : changes[EXTRA_SPACES] ? "takes spaces out of texts (remove_extra_whitespaces)"
                       : changes[ESCAPE]       ? "writes spaces as U+2581 (escape_whitespaces)"
                                               : NULL;
    if (spec->denormal.len && what)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the SentencePiece model's denormalizer %s; pippin applies only a "
                       "denormalizer's table of characters", what);
    return PP_OK;
}

static enum pp_code read_model(struct pp_str bytes, struct tok_spec *spec, struct pp_buf *plain, struct pp_error *err)
{
    struct pp_cursor c = pp_cursor(bytes.data, bytes.len);
    struct field f;
    size_t n = 0;
    enum pp_code code = PP_OK;
    while (read_field(&c, &f))
        n += f.number == PIECES;
    if (c.bad || n == 0)
        return malformed(err);
    if (n > TOK_MAX_VOCAB)
        return pp_fail(err, PP_ERR_FORMAT, "the vocabulary has %zu tokens, which cannot be right", n);
    spec->scores = pp_calloc(n, sizeof *spec->scores);
    if (!spec->scores)
        return pp_fail_nomem(err, "the vocabulary");
    code = tok_spec_resize(spec, n, err);
    c = pp_cursor(bytes.data, bytes.len);
    for (size_t i = 0; !code && read_field(&c, &f);) {
        if (f.number == PIECES)
            code = read_piece(f.bytes, i++, spec, err);
        else if (f.number == TRAINER)
            code = read_trainer(f.bytes, spec, err);
        else if (f.number == NORMALIZER)
            code = read_normalizer(f.bytes, spec, err);
        else if (f.number == DENORMALIZER)
            code = read_denormalizer(f.bytes, spec, err);
    }
    for (size_t i = 0; !code && i < n; i++)
        spec->no_bytes = spec->no_bytes && spec->types[i] != TOK_BYTE;
    const bool changes = spec->prefix.start != TOK_PREFIX_NEVER || spec->squeeze || spec->charsmap.len ||
                         spec->units || spec->suffix || spec->bare_spaces;
    for (size_t i = 0; !code && spec->kind == TOK_SPM && !changes && i < n; i++)
        if (spec->flags[i] & TOK_SPACED)
            code = plain_spaces(&spec->texts[i], plain, err);
    return code;
}

enum pp_code tok_from_sentencepiece(const void *data, size_t n, const char *folder, struct pp_tokenizer **out,
                                    struct pp_error *err)
{
    struct tok_spec spec = {.kind = TOK_SPM, .bos = -1, .eos = -1, .eot = -1, .unk = -1, .add_bos = true,
                            .prefix = {TOK_PREFIX_ALWAYS, TOK_PREFIX_UNLESS_SPACE, TOK_PREFIX_NEVER}};
    struct tok_config cfg = {0};
    struct pp_buf plain = {.data = pp_malloc(n + 1), .cap = n + 1}, names = {0};
    *out = NULL;
    if (!plain.data)
        return pp_fail_nomem(err, "the vocabulary");
    enum pp_code code = read_model((struct pp_str){data, n}, &spec, &plain, err);
    if (!code && folder)
        code = tok_config_read(folder, &cfg, err);
    if (!code)
        code = tok_spm_class(&cfg, &spec, &names, err);
    if (!code)
        code = tok_config_apply(&cfg, &spec, err);
    if (!code)
        code = tok_build(&spec, out, err);
    tok_spec_free(&spec);
    tok_config_free(&cfg);
    pp_buf_free(&plain);
    pp_buf_free(&names);
    return code;
}
