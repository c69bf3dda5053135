#include "ui/highlight.h"

#include <stdbool.h>
#include <string.h>

#include "engine/base/word.h"

enum {
    BLOCKS = 1,   /* comments between slash and asterisk */
    TRIPLE = 2,   /* texts of several lines in three quotes */
    BACKTICK = 4, /* and in backticks */
    CHARS = 8,    /* single quotes are for one character, or a lifetime begins with one */
    DIRECTIVES = 16, /* lines that begin with # are for a preprocessor */
    NO_CASE = 32,
    DIFF = 64,    /* of a line its first character counts */
};

struct pp_code_language {
    const char *names;    /* in lower case; all lists are separated by spaces */
    const char *comments; /* what begins a comment up to the end of the line */
    unsigned traits;
    const char *keywords;
};

static const struct pp_code_language languages[] = {
    {"c h cpp c++ cc cxx hpp cuda glsl objc arduino", "//", BLOCKS | CHARS | DIRECTIVES,
     "alignas alignof auto bool break case catch char class concept const constexpr continue default delete do double "
     "else enum explicit extern false final float for friend goto if inline int int8_t int16_t int32_t int64_t long "
     "mutable namespace new noexcept nullptr NULL operator override private protected public register requires "
     "restrict return short signed size_t sizeof static static_assert struct switch template this throw true try "
     "typedef typename uint8_t uint16_t uint32_t uint64_t union unsigned using virtual void volatile while"},
    {"java c# cs csharp kotlin kt swift dart scala groovy", "//", BLOCKS | TRIPLE,
     "abstract actor as async await base bool boolean break byte case catch char class const continue data def default "
     "defer do double else enum extends extension false final finally float for foreach fun func get guard if "
     "implements import in init int interface internal is let long namespace new nil null object override package "
     "private protected protocol public record return sealed self set short static string struct super switch this "
     "throw throws trait true try typeof using val var virtual void when where while yield"},
    {"javascript js jsx typescript ts tsx mjs", "//", BLOCKS | BACKTICK,
     "abstract any as async await boolean break case catch class const continue debugger default delete do else enum "
     "export extends false finally for from function get if implements import in instanceof interface keyof let new "
     "null number of private protected public readonly return set static string super switch this throw true try type "
     "typeof undefined var void while with yield"},
    {"go golang", "//", BLOCKS | BACKTICK | CHARS,
     "any bool break byte case chan const continue default defer else error fallthrough false float64 for func go goto "
     "if import int int64 interface iota map nil package range return rune select string struct switch true type uint "
     "var"},
    {"rust rs zig", "//", BLOCKS | CHARS,
     "as async await bool box break char comptime const continue crate defer dyn else enum extern f32 f64 false fn for "
     "i32 i64 if impl in let loop match mod move mut pub ref return self Self static str struct super trait true try "
     "type u8 u32 u64 unsafe use usize var where while"},
    {"python py python3 mojo", "#", TRIPLE,
     "and as assert async await break case class continue def del elif else except False finally for from global if "
     "import in is lambda match None nonlocal not or pass raise return self True try while with yield"},
    {"ruby rb elixir ex julia jl crystal perl pl r", "#", 0,
     "and begin break case class def defmodule defp do else elsif elseif end ensure false fn for foreach function if "
     "import in let local module my next nil not or our print puts require rescue return self struct sub then true "
     "unless until use using when while yield TRUE FALSE NULL"},
    {"sh bash zsh fish shell console", "#", 0,
     "break case continue declare do done elif else end esac eval exec exit export fi for function if in local "
     "readonly return select set shift source then trap unset until while"},
    {"sql sqlite mysql postgresql postgres psql plsql", "--", BLOCKS | NO_CASE,
     "add all alter and as asc begin between by case cast check column commit constraint create cross database default "
     "delete desc distinct drop else end exists explain false foreign from full group having if in index inner insert "
     "into is join key left like limit not null offset on or order outer primary references returning right rollback "
     "select set table then transaction true union unique update using values view when where with"},
    {"lua haskell hs elm ada", "--", 0,
     "and break case class data deriving do else elseif end false for function goto if import in instance let local "
     "module newtype nil not of or repeat return then true type until where while"},
    {"php", "// #", BLOCKS,
     "abstract array as break case catch class const continue default do echo else elseif extends false final finally "
     "fn for foreach function global if implements include instanceof interface match namespace new null private "
     "protected public readonly require return self static switch this throw trait true try use var while yield"},
    {"css scss less", "", BLOCKS, ""},
    {"json jsonc json5 jsonl", "//", 0, "true false null"},
    {"yaml yml toml ini conf properties dockerfile docker make makefile cmake nix nginx terraform hcl", "#", 0,
     "true false null yes no ADD ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM LABEL RUN USER VOLUME WORKDIR"},
    {"diff patch", "", DIFF, ""},
};

static bool in_list(const char *list, const char *word, size_t n, bool any_case)
{
    for (const char *at = list; *at;) {
        const size_t len = strcspn(at, " ");
        if (len == n && (any_case ? pp_ncasecmp(at, word, n) == 0 : memcmp(at, word, n) == 0))
            return true;
        at += len + strspn(at + len, " ");
    }
    return false;
}

struct pp_code_block pp_code_begin(const char *label, size_t n)
{
    size_t len = 0;
    while (len < n && !strchr(" \t{,:", label[len]))
        len++;
    for (size_t i = 0; len && i < sizeof languages / sizeof *languages; i++)
        if (in_list(languages[i].names, label, len, true))
            return (struct pp_code_block){&languages[i], 0};
    return (struct pp_code_block){0};
}

static bool begins(const char *s, size_t n, const char *with)
{
    const size_t len = strlen(with);
    return n >= len && memcmp(s, with, len) == 0;
}

/* The end of what is open, after its closing mark; with 0 in *open, if it is in this line. */
static size_t close_at(const char *s, size_t at, size_t n, char *open)
{
    const char mark[] = {*open, *open == '*' ? '/' : *open, *open, 0};
    const char *end = *open == '`' ? "`" : *open == '*' ? "*/" : mark;
    for (; at < n; at++) {
        if (begins(s + at, n - at, end)) {
            *open = 0;
            return at + strlen(end);
        }
        at += s[at] == '\\' && *open != '*';
    }
    return n;
}

/* The length of a text in quotes that ends in this line; 0: it does not. */
static size_t quoted(const char *s, size_t n, bool one_char)
{
    size_t at = 1, chars = 0;
    for (; at < n && s[at] != s[0]; at++, chars++) {
        at += s[at] == '\\';
        while (at + 1 < n && ((unsigned char)s[at + 1] & 0xC0) == 0x80)
            at++;
    }
    return at < n && (!one_char || chars == 1 || (s[1] == '\\' && chars < 8)) ? at + 1 : 0;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Not the apostrophe of a word; a prefix, as in Python, has at most two letters. */
static bool may_open(const char *line, size_t at)
{
    return at < 3 || !is_letter(line[at - 1]) || !is_letter(line[at - 2]) || !is_letter(line[at - 3]);
}

/* A comment to the end of the line begins here. One that begins with # stands at its beginning or after a blank, unlike
 * $# in a shell. */
static bool comments(const struct pp_code_language *l, const char *line, size_t at, size_t n)
{
    for (const char *mark = l->comments; *mark;) {
        const size_t len = strcspn(mark, " ");
        if (n - at >= len && memcmp(line + at, mark, len) == 0 &&
            (*mark != '#' || at == 0 || strchr(" \t;(", line[at - 1])))
            return true;
        mark += len + strspn(mark + len, " ");
    }
    return false;
}

/* The first mark of something that may extend over several lines; 0: there is none here. */
static char opens(const struct pp_code_language *l, const char *s, size_t n)
{
    if (l->traits & BLOCKS && begins(s, n, "/*"))
        return '*';
    if (l->traits & TRIPLE && (begins(s, n, "\"\"\"") || begins(s, n, "'''")))
        return s[0];
    return l->traits & BACKTICK && s[0] == '`' ? '`' : 0;
}

static size_t of_diff(const char *line, size_t n, pp_style *style)
{
    *style = begins(line, n, "@@")   ? PP_SLOT_CODE_COMMENT
             : begins(line, n, "+") ? PP_SLOT_CODE_STRING
             : begins(line, n, "-") ? PP_SLOT_CODE_KEYWORD
                                    : PP_SLOT_CODE_BLOCK;
    return n;
}

/* A word or a number. */
static size_t of_word(const struct pp_code_language *l, const char *s, size_t n, pp_style *style)
{
    size_t len = 1;
    const bool number = is_digit(s[0]);
    while (len < n && (is_letter(s[len]) || is_digit(s[len]) || (number && s[len] == '.')))
        len++;
    if (number)
        *style = PP_SLOT_CODE_NUMBER;
    else if (in_list(l->keywords, s, len, l->traits & NO_CASE))
        *style = PP_SLOT_CODE_KEYWORD;
    return len;
}

static bool only_blanks(const char *s, size_t n)
{
    while (n && strchr(" \t", s[n - 1]))
        n--;
    return n == 0;
}

size_t pp_code_piece(struct pp_code_block *c, const char *line, size_t at, size_t n, pp_style *style)
{
    const struct pp_code_language *l = c->language;
    const char *s = line + at;
    const size_t left = n - at;
    size_t len;
    *style = PP_SLOT_CODE_BLOCK;
    if (!l)
        return left;
    if (l->traits & DIFF)
        return of_diff(line, n, style);
    const char open = c->open ? c->open : opens(l, s, left);
    if (open) {
        const size_t skip = c->open ? 0 : open == '*' ? 2 : open == '`' ? 1 : 3;
        c->open = open;
        *style = open == '*' ? PP_SLOT_CODE_COMMENT : PP_SLOT_CODE_STRING;
        return close_at(s, skip, left, &c->open);
    }
    if (comments(l, line, at, n)) {
        *style = PP_SLOT_CODE_COMMENT;
        return left;
    }
    if ((s[0] == '"' || s[0] == '\'') && may_open(line, at) &&
        (len = quoted(s, left, s[0] == '\'' && l->traits & CHARS))) {
        *style = PP_SLOT_CODE_STRING;
        return len;
    }
    if (s[0] == '#' && l->traits & DIRECTIVES && only_blanks(line, at)) {
        *style = PP_SLOT_CODE_KEYWORD;
        for (len = 1; len < left && s[len] == ' ';)
            len++;
        while (len < left && is_letter(s[len]))
            len++;
        return len;
    }
    if (is_letter(s[0]) || is_digit(s[0]))
        return of_word(l, s, left, style);
    for (len = 1; len < left && strchr(" \t()[]{}<>=+,;", s[len]);)
        len++;
    return len;
}
