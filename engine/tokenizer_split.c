/* tokenizer_split.c - the regular expressions that cut text into words before byte-level merging.
 *
 * Those of the known rules, and others that match a run of one class of characters, are matched by functions
 * (tokenizer_scan.c, tokenizer_class.c) that do the same faster; PCRE2 handles the rest.
 *
 * Rules have the names of tokenizer.ggml.pre. Their patterns come from the tokenizer.json files of the families, with
 * two changes that llama.cpp makes, too: contractions are case-insensitive in ASCII only, and \s is Unicode's
 * White_Space (PCRE2's \s would add U+180E). */
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

enum {
    MATCH_LIMIT = 2000000,       /* backtracking steps of one match */
    CLOCK_EVERY = 256,           /* matches */
    PATIENCE_S = 10,             /* for one text; plus a second for each megabyte */
    MAX_PATTERN = 1 << 16,
    INVALID_STANDS_FOR = '\x01', /* replaces bytes that are not UTF-8: neither letter, number nor space */
};

#define WS TOK_WHITE_SPACE
#define SPACE "[" WS "]"
#define CONTRACTION "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
#define SPACES_TO_LAST SPACE "+(?![^" WS "])|" SPACE "+"
#define LINES SPACE "*[\\r\\n]+"
#define SYMBOLS " ?[^" WS "\\p{L}\\p{N}]+"
#define GPT2 "'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+|" SYMBOLS "|" SPACES_TO_LAST
#define LLAMA3(digits)                                                                                       \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "|" SYMBOLS "[\\r\\n]*|" LINES "|" SPACES_TO_LAST
#define LETTER_CASED(tail)                                                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" tail         \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" tail
/* Numbers in groups of three digits, counted from their end. */
#define GROUPS(digit, not_before) digit "{1,3}(?=(?:" digit "{3})*(?![" digit not_before "]))"
#define CASED_REST SYMBOLS "[\\r\\n/]*|" LINES "|" SPACES_TO_LAST
#define BLOOM " ?[^(" WS "|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"
#define HAN_HANGUL "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
/* Upper and lower case letters as DeepSeek lists them. */
#define CASED_LETTERS                                                                                        \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}"          \
    "\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}"   \
    "\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}"          \
    "\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"        \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}"        \
    "\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}" \
    "\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}" \
    "\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"         \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}"          \
    "\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}"          \
    "\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}"         \
    "\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}"        \
    "\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"      \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"                   \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"

/* The look-behind changes no match, but prevents trying every part of a long run. */
#define TRAILING_SPACES "(?<!" SPACE ")" SPACE "+$"

const char tok_pattern_gpt2[] = GPT2;
const char tok_pattern_spaced[] = "(?#a space before each)";

const char tok_pattern_length[] = "(?#length)";
const char tok_pattern_scripts[] = "(?#scripts)";

/* Scripts by SentencePiece's grouping: those of Chinese and Japanese count as one, and Inherited and Common are
 * separate: https://github.com/huggingface/tokenizers, src/pre_tokenizers/unicode_scripts. Spaces and characters
 * without a script belong to the script before them; before the first word they belong to none. */
#define SCRIPTS(X)                                                                                          \
    X(Latin) X(Cyrillic) X(Greek) X(Arabic) X(Hebrew) X(Hangul) X(Devanagari) X(Thai) X(Inherited)          \
    X(Bengali) X(Tamil) X(Telugu) X(Adlam) X(Ahom) X(Anatolian_Hieroglyphs) X(Armenian) X(Avestan)          \
    X(Balinese) X(Bamum) X(Bassa_Vah) X(Batak) X(Bhaiksuki) X(Bopomofo) X(Brahmi) X(Braille) X(Buginese)    \
    X(Buhid) X(Canadian_Aboriginal) X(Carian) X(Caucasian_Albanian) X(Chakma) X(Cham) X(Cherokee) X(Coptic) \
    X(Cuneiform) X(Cypriot) X(Deseret) X(Duployan) X(Egyptian_Hieroglyphs) X(Elbasan) X(Ethiopic)           \
    X(Georgian) X(Glagolitic) X(Gothic) X(Grantha) X(Gujarati) X(Gurmukhi) X(Hanunoo) X(Hatran)             \
    X(Imperial_Aramaic) X(Inscriptional_Pahlavi) X(Inscriptional_Parthian) X(Javanese) X(Kaithi) X(Kannada) \
    X(Kayah_Li) X(Kharoshthi) X(Khmer) X(Khojki) X(Khudawadi) X(Lao) X(Lepcha) X(Limbu) X(Linear_A)         \
    X(Linear_B) X(Lisu) X(Lycian) X(Lydian) X(Mahajani) X(Malayalam) X(Mandaic) X(Manichaean) X(Marchen)    \
    X(Meetei_Mayek) X(Mende_Kikakui) X(Meroitic_Cursive) X(Meroitic_Hieroglyphs) X(Miao) X(Modi)            \
    X(Mongolian) X(Mro) X(Multani) X(Myanmar) X(Nabataean) X(New_Tai_Lue) X(Newa) X(Nko) X(Ogham)           \
    X(Ol_Chiki) X(Old_Hungarian) X(Old_Italic) X(Old_North_Arabian) X(Old_Permic) X(Old_Persian)            \
    X(Old_South_Arabian) X(Old_Turkic) X(Oriya) X(Osage) X(Osmanya) X(Pahawh_Hmong) X(Palmyrene)            \
    X(Pau_Cin_Hau) X(Phags_Pa) X(Phoenician) X(Psalter_Pahlavi) X(Rejang) X(Runic) X(Samaritan)             \
    X(Saurashtra) X(Sharada) X(Shavian) X(Siddham) X(SignWriting) X(Sinhala) X(Sora_Sompeng) X(Sundanese)   \
    X(Syloti_Nagri) X(Syriac) X(Tagalog) X(Tagbanwa) X(Tai_Le) X(Tai_Tham) X(Tai_Viet) X(Takri) X(Tangut)   \
    X(Thaana) X(Tibetan) X(Tifinagh) X(Tirhuta) X(Ugaritic) X(Vai) X(Warang_Citi) X(Yi)                     
#define HAN_KANA "\\p{sc:Han}\\p{sc:Hiragana}\\p{sc:Katakana}\\x{30FC}"
#define SCRIPT_CLASS(name) "\\p{sc:" #name "}"
#define SCRIPT_WORD(name) "|\\p{sc:" #name "}(?:\\p{sc:" #name "}|(?&any))*+"
#define COMMON "(?![ \\x{30FC}])\\p{sc:Common}"
static const char script_words[] =
    "(?#others removed)(?(DEFINE)(?<any>[ ]|[^" HAN_KANA "\\p{sc:Common}" SCRIPTS(SCRIPT_CLASS) "]))(?:"
    COMMON "(?:" COMMON "|(?&any))*+|[" HAN_KANA "](?:[" HAN_KANA "]|(?&any))*+" SCRIPTS(SCRIPT_WORD) ")";

static const char *const gpt2[] = {GPT2, NULL};
static const char *const digits_gpt2[] = {"\\p{N}", GPT2, NULL};
static const char *const llama3[] = {LLAMA3("\\p{N}{1,3}"), NULL};
static const char *const qwen2[] = {LLAMA3("\\p{N}"), NULL};
static const char *const seed_coder[] = {
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" SYMBOLS "|" LINES "|" SPACES_TO_LAST, NULL};
static const char *const falcon[] = {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]", NULL};
static const char *const plain[] = {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]", NULL};
static const char *const tekken[] = {LETTER_CASED("") "|\\p{N}|" CASED_REST, NULL};
static const char *const gpt4o[] = {LETTER_CASED("(?:" CONTRACTION ")?") "|\\p{N}{1,3}|" CASED_REST, NULL};
static const char *const bloom[] = {BLOOM, NULL};
static const char *const viking[] = {BLOOM, "\\p{N}", NULL};
static const char *const deepseek_llm[] = {
    "[\\r\\n]",
    SPACE "?[" CASED_LETTERS "]+",
    SPACE "?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
    TRAILING_SPACES,
    HAN_HANGUL,
    "\\p{N}+",
    NULL,
};
static const char *const deepseek_coder[] = {
    "[\\r\\n]", SPACE "?\\p{L}+", SPACE "?\\p{P}+", HAN_HANGUL, "\\p{N}", NULL,
};
static const char *const deepseek_v3[] = {
    "\\p{N}{1,3}",
    "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES "|" SPACES_TO_LAST,
    NULL,
};

#define DEEPSEEK_WORDS                                                                                       \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
static const char *const spark[] = {
    "\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
    DEEPSEEK_WORDS "| ?[\\p{P}\\p{S}]+|[\\r\\n]|" SPACES_TO_LAST, "\\p{N}", NULL,
};
static const char *const afmoe[] = {
    GROUPS("\\p{N}", ""),
    "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{f900}-\\x{faff}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}"
    "\\x{ff65}-\\x{ff9f}\\x{2f00}-\\x{2fdf}\\x{e40}-\\x{e7f}\\x{e80}-\\x{eff}\\x{1780}-\\x{17ff}\\x{1000}-\\x{109f}"
    "\\x{aa60}-\\x{aa7f}\\x{a9e0}-\\x{a9ff}\\x{ac00}-\\x{d7af}\\x{1100}-\\x{11ff}]+",
    DEEPSEEK_WORDS "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES "|" SPACES_TO_LAST,
    NULL,
};
static const char *const superbpe[] = {"\\p{N}+", GROUPS("\\p{N}", ""), NULL};
/* Groups of three decimal digits, up to where a word ends. Fractions and superscripts are not such digits, and end a
 * group. */
static const char *const tiny_aya[] = {
    GROUPS("\\p{Nd}", "\\p{Nl}\\p{L}\\p{M}\\p{Pc}"),
    LETTER_CASED("(?:" CONTRACTION ")?") "|\\p{N}{1,3}|" CASED_REST,
    NULL,
};
static const char *const youtu[] = {
    "[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+",
    "[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{2014}\\x{ff1a}\\x{ff1b}\\x{ff0c}\\x{3001}-\\x{303f}"
    "\\x{fe30}-\\x{fe4f}]+",
    "[\\x{3105}-\\x{312f}]+",
    "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
    LETTER_CASED("(?:" CONTRACTION ")?") "|\\p{N}|" CASED_REST,
    NULL,
};
/* Kimi's: Han is separate, and words are like GPT-4o's, but without Han. */
#define HAN                                                                                                  \
    "\\x{2e80}-\\x{2e99}\\x{2e9b}-\\x{2ef3}\\x{2f00}-\\x{2fd5}\\x{3005}\\x{3007}\\x{3021}-\\x{3029}"              \
    "\\x{3038}-\\x{303b}\\x{3400}-\\x{4dbf}\\x{4e00}-\\x{9fff}\\x{f900}-\\x{fa6d}\\x{fa70}-\\x{fad9}"             \
    "\\x{16fe2}\\x{16fe3}\\x{16ff0}\\x{16ff1}\\x{20000}-\\x{2a6df}\\x{2a700}-\\x{2b739}\\x{2b740}-\\x{2b81d}"     \
    "\\x{2b820}-\\x{2cea1}\\x{2ceb0}-\\x{2ebe0}\\x{2ebf0}-\\x{2ee5d}\\x{2f800}-\\x{2fa1d}\\x{30000}-\\x{3134a}"   \
    "\\x{31350}-\\x{323af}"
#define KIMI_UPPER "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}" HAN "]"
#define KIMI_LOWER "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}" HAN "]"
static const char *const kimi_k2[] = {
    "[" HAN "]+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+(?:" CONTRACTION ")?"
    "|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER "*(?:" CONTRACTION ")?"
    "|\\p{N}{1,3}|" SYMBOLS "[\\r\\n]*|" LINES "|" SPACES_TO_LAST, NULL};
static const char *const qwen35[] = {
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES
    "|" SPACES_TO_LAST, NULL};
static const char *const k2_horizon[] = { /* words include joiners */
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}\\x{200c}\\x{200d}]+|\\p{N}{1,3}|" SYMBOLS "[\\r\\n]*|" LINES
    "|" SPACES_TO_LAST, NULL};
static const char *const minicpm5[] = {"\\p{N}{1,3}", LLAMA3("\\p{N}+"), NULL};
static const char *const ufakzeka[] = {
    "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" SYMBOLS "[\\r\\n]*|" LINES "|" SPACES_TO_LAST, NULL};
#define SPACES_OF(n) SPACE "{" n "}(?![^" WS "])|"
static const char *const jais2[] = {
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" SYMBOLS "[\\r\\n]*|" LINES "|"
    SPACES_OF("512") SPACES_OF("256") SPACES_OF("128") SPACES_OF("64") SPACES_OF("32") SPACES_OF("16") SPACES_OF("8")
    SPACES_OF("4") SPACES_OF("1,2") SPACE, NULL};
static const char *const exaone_moe[] = {
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*+(?: \\p{L}\\p{M}*+)*+)++|\\p{N}|" SYMBOLS "[\\r\\n/]?|"
    SPACE "*[\\r\\n]|" SPACES_TO_LAST, NULL};
/* Without sentinels and placeholders for images, which are control tokens. */
static const char *const chameleon[] = {
    "[\\t\\n]|    |  ", "\\p{N}", "[\\p{P}!-/:-@\\[-`{-~]", GPT2, NULL};
static const char *const laguna[] = {"[\\n]+", LLAMA3("\\p{N}"), NULL};

static const struct tok_rule rules[] = {
    {"llama-bpe", llama3, true, true},
    {"qwen2", qwen2, false, false},
    {"gpt-2", gpt2, false, false},
    {"falcon", falcon, false, false},
    {"deepseek-llm", deepseek_llm, false, false},
    {"default", plain, false, false},
    {"llama3", llama3, true, true},
    {"llama-v3", llama3, true, true},
    {"falcon3", llama3, true, true},
    {"pixtral", llama3, true, true},
    {"falcon-h1", llama3, true, true},
    {"midm-2.0", llama3, true, true},
    {"lfm2", llama3, true, true},
    {"dbrx", llama3, false, false},
    {"smaug-bpe", llama3, false, false},
    {"chatglm-bpe", llama3, false, false},
    {"glm4", llama3, false, false},
    {"stablelm2", qwen2, false, false},
    {"seed-coder", seed_coder, false, false},
    {"deepseek-r1-qwen", qwen2, false, false},
    {"hunyuan", qwen2, false, false},
    {"megrez", qwen2, false, false},
    {"grok-2", qwen2, false, false},
    {"phi-2", gpt2, false, false},
    {"roberta-bpe", gpt2, false, false},
    {"jina-v1-en", gpt2, false, false},
    {"jina-v2-code", gpt2, false, false},
    {"mpt", gpt2, false, false},
    {"olmo", gpt2, false, false},
    {"jais", gpt2, false, false},
    {"trillion", gpt2, false, false},
    {"gigachat", gpt2, false, false},
    {"jina-es", gpt2, false, false},
    {"jina-de", gpt2, false, false},
    {"jina-v2-es", gpt2, false, false},
    {"jina-v2-de", gpt2, false, false},
    {"exaone4", gpt2, false, false},
    {"mellum", gpt2, false, false},
    {"a.x-4.0", gpt2, false, false},
    {"starcoder", digits_gpt2, false, false},
    {"refact", digits_gpt2, false, false},
    {"command-r", digits_gpt2, false, false},
    {"smollm", digits_gpt2, false, false},
    {"codeshell", digits_gpt2, false, false},
    {"exaone", digits_gpt2, false, false},
    {"minerva-7b", digits_gpt2, false, false},
    {"bloom", bloom, false, false},
    {"poro-chat", bloom, false, false},
    {"gpt3-finnish", bloom, false, false},
    {"viking", viking, false, false},
    {"tekken", tekken, true, false},
    {"gpt-4o", gpt4o, false, false},
    {"llama4", gpt4o, false, false},
    {"minimax-m2", gpt4o, false, false},
    {"bailingmoe", qwen2, false, false},
    {"bailingmoe2", qwen2, false, false},
    {"llada-moe", qwen2, false, false},
    {"deepseek-coder", deepseek_coder, false, false},
    {"deepseek-v3", deepseek_v3, false, false},
    {"hunyuan-dense", deepseek_v3, false, false},
    {"hy_v4", deepseek_v3, false, false},
    {"joyai-llm", deepseek_v3, false, false},
    {"spark2_5", spark, false, false},
    {"afmoe", afmoe, false, false},
    {"superbpe", superbpe, false, false},
    {"tiny_aya", tiny_aya, false, false},
    {"cohere2moe", tiny_aya, false, false},
    {"youtu", youtu, true, false},
    {"kimi-k2", kimi_k2, false, false},
    {"qwen35", qwen35, false, false},
    {"kormo", qwen2, false, false},
    {"f2llmv2", qwen2, false, false},
    {"solar-open", qwen2, false, false},
    {"minicpm5", minicpm5, true, false},
    {"ufakzeka", ufakzeka, false, false},
    {"jais-2", jais2, false, false},
    {"jina-v5-nano", llama3, true, true},
    {"exaone-moe", exaone_moe, false, false},
    {"k2-horizon", k2_horizon, false, false},
    {"chameleon", chameleon, false, true},
    {"laguna", laguna, false, false},
    {"granite-docling", gpt2, false, false},
    {"modern-bert", gpt2, false, false},
    {"mellum2", digits_gpt2, false, false},
    {"kanana2", gpt4o, false, false},
    {"talkie", gpt4o, false, false},
    {"granite-embed-multi-97m", gpt4o, true, false},
};

/* How tokenizer.json files write a rule, where that differs from our patterns. */
#define JSON_LLAMA3(digits)                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                     \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define JSON_CASED_REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define JSON_KIMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define JSON_KIMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define JSON_KIMI                                                                                            \
    "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" JSON_KIMI_UPPER "*" JSON_KIMI_LOWER "+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"  \
    "|[^\\r\\n\\p{L}\\p{N}]?" JSON_KIMI_UPPER "+" JSON_KIMI_LOWER "*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"             \
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define JSON_K2_HORIZON(joiner, other)                                                                       \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}|\\p{M}|" joiner "|" other ")+|\\p{N}{1,3}"     \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const struct {
    const char *rule;
    const char *patterns[TOK_MAX_PATTERNS];
} spellings[] = {
    {"llama-bpe", {JSON_LLAMA3("\\p{N}{1,3}")}},
    {"qwen2", {JSON_LLAMA3("\\p{N}")}},
    {"bailingmoe2", {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*"
                     "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {"seed-coder",
     {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+"
      "|\\s+(?!\\S)|\\s+"}},
    {"gpt-2", {GPT2}},
    {"gpt-2", {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"}},
    {"tekken", {LETTER_CASED("") "|\\p{N}" JSON_CASED_REST}},
    {"gpt-4o", {LETTER_CASED("(?i:'s|'t|'re|'ve|'m|'ll|'d)?") "|\\p{N}{1,3}" JSON_CASED_REST}},
    {"deepseek-v3",
     {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
      "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}},
    {"qwen35", {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {"exaone-moe", {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}"
                    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {"k2-horizon", {JSON_K2_HORIZON("\u200c", "\u200d")}},
    {"k2-horizon", {JSON_K2_HORIZON("\\u200C", "\\u200D")}},
    {"kimi-k2", {JSON_KIMI}},
    {"superbpe", {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}},
    {"tiny_aya", {"\\d{1,3}(?=(?:\\d{3})*\\b)",
                  LETTER_CASED("(?i:'s|'t|'re|'ve|'m|'ll|'d)?") "|\\p{N}{1,3}" JSON_CASED_REST}},
    {"starcoder", {"\\p{N}", GPT2}},
    {"falcon", {"[\\p{P}$+<=>^~|`]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

const struct tok_rule *tok_rule_by_name(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (strlen(rules[i].name) == n && memcmp(rules[i].name, name, n) == 0)
            return &rules[i];
    return NULL;
}

static bool same_patterns(const char *const *a, const struct pp_str *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!a[i] || strlen(a[i]) != b[i].len || memcmp(a[i], b[i].data, b[i].len) != 0)
            return false;
    return !a[n];
}

const struct tok_rule *tok_rule_by_patterns(const struct pp_str *patterns, size_t n)
{
    for (size_t i = 0; n < TOK_MAX_PATTERNS && i < sizeof spellings / sizeof *spellings; i++)
        if (same_patterns(spellings[i].patterns, patterns, n))
            return tok_rule_by_name(spellings[i].rule, strlen(spellings[i].rule));
    return NULL;
}

const char *const *tok_rule_spelling(const char *name)
{
    const struct tok_rule *rule = tok_rule_by_name(name, strlen(name));
    for (size_t i = 0; rule && i < sizeof spellings / sizeof *spellings; i++)
        if (tok_rule_by_name(spellings[i].rule, strlen(spellings[i].rule))->patterns == rule->patterns)
            return spellings[i].patterns;
    return NULL;
}

void tok_rule_names(struct pp_buf *out)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        pp_buf_fmt(out, "%s%s", i ? ", " : "", rules[i].name);
}

/* --- patterns ------------------------------------------------------------------------------------------ */

/* What becomes of matches or, if inverted, of the text between them. */
enum behavior { ISOLATED, REMOVED, CONTIGUOUS, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, N_BEHAVIORS };
static const struct {
    const char *name, *comment[2]; /* [inverted] */
} behaviors[N_BEHAVIORS] = {
    [ISOLATED] = {"Isolated", {"", ""}},
    [REMOVED] = {"Removed", {"(?#removed)", "(?#others removed)"}},
    [CONTIGUOUS] = {"Contiguous", {"(?#contiguous)", "(?#contiguous)"}},
    [MERGED_WITH_PREVIOUS] = {"MergedWithPrevious", {"(?#to previous)", "(?#others to previous)"}},
    [MERGED_WITH_NEXT] = {"MergedWithNext", {"(?#to next)", "(?#others to next)"}},
};

const char *tok_behavior(const char *behavior, bool invert)
{
    for (int i = 0; i < N_BEHAVIORS; i++)
        if (strcmp(behavior, behaviors[i].name) == 0)
            return behaviors[i].comment[invert];
    return NULL;
}

static enum behavior behavior_of(const struct pp_str *pattern, bool *inverted)
{
    for (int i = ISOLATED + 1; i < N_BEHAVIORS; i++)
        for (int invert = 0; invert < 2; invert++) {
            const size_t n = strlen(behaviors[i].comment[invert]);
            if (pattern->len >= n && memcmp(pattern->data, behaviors[i].comment[invert], n) == 0) {
                *inverted = invert;
                return (enum behavior)i;
            }
        }
    return ISOLATED;
}

const char *tok_behavior_of(const char *pattern, bool *inverted, const char **rest)
{
    const struct pp_str text = {pattern, strlen(pattern)};
    *inverted = false;
    const enum behavior b = behavior_of(&text, inverted);
    *rest = pattern + strlen(behaviors[b].comment[*inverted]);
    return behaviors[b].name;
}

/* One pattern, in the first of these forms that applies. */
struct level {
    enum behavior behavior;
    bool inverted;
    tok_scan_fn scan;
    bool spaced;            /* no pattern: a space is put before pieces that begin with another character */
    bool total;             /* it matches at every place */
    bool trailing;          /* tok_trailing_spaces() */
    bool groups;            /* numbers in groups of three */
    bool apart;             /* only those that no word follows */
    size_t length;          /* pieces of this many characters; 0: another form */
    struct tok_runs *runs;
    pcre2_code *code;
};

struct tok_splitter {
    size_t n;
    struct level levels[TOK_MAX_PATTERNS];
    pcre2_match_context *limits;
};

struct tok_split_state {
    pcre2_match_data *found[TOK_MAX_PATTERNS]; /* NULL where there is no expression */
    struct pp_buf valid; /* a copy of text that is not UTF-8, with the same length */
    unsigned matches;    /* since the clock was last read */
    uint64_t deadline_ns;
};

/* Patterns for which there are functions. */
static const struct {
    const char *const *pattern;
    tok_scan_fn scan;
    bool total;
} scans[] = {
    {&gpt2[0], tok_scan_gpt2, true},     {&llama3[0], tok_scan_llama3, true}, {&qwen2[0], tok_scan_qwen2, true},
    {&tekken[0], tok_scan_tekken, true}, {&gpt4o[0], tok_scan_gpt4o, true},   {&seed_coder[0], tok_scan_seed, true},
    {&deepseek_v3[2], tok_scan_deepseek_v3, false}, {&spark[2], tok_scan_spark, false},
    {&qwen35[0], tok_scan_qwen35, true},     {&minicpm5[1], tok_scan_minicpm5, true},
    {&ufakzeka[0], tok_scan_ufakzeka, true}, {&jais2[0], tok_scan_jais2, true},
    {&exaone_moe[0], tok_scan_exaone_moe, true}, {&youtu[4], tok_scan_youtu, true},
    {&kimi_k2[0], tok_scan_kimi, true},      {&k2_horizon[0], tok_scan_k2_horizon, true},
    {&chameleon[0], tok_scan_chameleon, false},
};

static bool is_pattern(const struct pp_str *p, const char *text)
{
    return strlen(text) == p->len && memcmp(text, p->data, p->len) == 0;
}

bool tok_pattern_is_total(const char *pattern)
{
    for (size_t i = 0; i < sizeof scans / sizeof *scans; i++)
        if (scans[i].total && strcmp(*scans[i].pattern, pattern) == 0)
            return true;
    return false;
}

static enum pp_code compile(const struct pp_str *pattern, pcre2_code **code, struct pp_error *err)
{
    int problem;
    PCRE2_SIZE at;
    if (pattern->len > MAX_PATTERN)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a split pattern of the tokenizer has %zu bytes, which is too long",
                       pattern->len);
    *code = pcre2_compile((PCRE2_SPTR)pattern->data, pattern->len, PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY |
                          PCRE2_NEVER_BACKSLASH_C, &problem, &at, NULL);
    if (!*code) {
        PCRE2_UCHAR why[160];
        pcre2_get_error_message(problem, why, sizeof why);
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a split pattern of the tokenizer cannot be used: %s at offset %zu",
                       (const char *)why, at);
    }
    pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); /* without JIT, matching interprets */
    return PP_OK;
}

/* The number after tok_pattern_length; 0: another pattern. */
static size_t length_of(const struct pp_str *pattern)
{
    const size_t skip = strlen(tok_pattern_length);
    size_t n = 0;
    if (pattern->len <= skip || memcmp(pattern->data, tok_pattern_length, skip) != 0)
        return 0;
    for (size_t i = skip; i < pattern->len; i++) {
        if (pattern->data[i] < '0' || pattern->data[i] > '9')
            return 0;
        n = n * 10 + (size_t)(pattern->data[i] - '0');
        if (n > TOK_MAX_LENGTH)
            return 0;
    }
    return n;
}

static enum pp_code make_level(const struct pp_str *pattern, bool expressions, struct level *l, struct pp_error *err)
{
    const struct pp_str scripts = {script_words, sizeof script_words - 1};
    if (is_pattern(pattern, tok_pattern_scripts))
        pattern = &scripts;
    l->behavior = behavior_of(pattern, &l->inverted);
    if ((l->spaced = is_pattern(pattern, tok_pattern_spaced)) || (l->length = length_of(pattern)))
        return PP_OK;
    for (size_t i = 0; !expressions && i < sizeof scans / sizeof *scans; i++)
        if (is_pattern(pattern, *scans[i].pattern))
            l->scan = scans[i].scan, l->total = scans[i].total;
    l->trailing = !expressions && is_pattern(pattern, TRAILING_SPACES);
    l->apart = !expressions && is_pattern(pattern, tiny_aya[0]);
    l->groups = l->apart || (!expressions && is_pattern(pattern, afmoe[0]));
    enum pp_code code = PP_OK;
    const bool known = l->scan || l->trailing || l->groups;
    if (!expressions && !known)
        code = tok_runs_new(*pattern, &l->runs, err);
    if (!code && !known && !l->runs)
        code = compile(pattern, &l->code, err);
    return code;
}

static enum pp_code new_splitter(const struct pp_str *patterns, size_t n, bool expressions, struct tok_splitter **out,
                                 struct pp_error *err)
{
    struct tok_splitter *s = pp_calloc(1, sizeof *s);
    *out = NULL;
    if (!s || !(s->limits = pcre2_match_context_create(NULL))) {
        pp_free(s);
        return pp_fail_nomem(err, "the split patterns");
    }
    pcre2_set_match_limit(s->limits, MATCH_LIMIT);
    for (size_t i = 0; i < n; i++) {
        enum pp_code code = make_level(&patterns[i], expressions, &s->levels[i], err);
        if (code) {
            tok_splitter_free(s);
            return code;
        }
        s->n++;
    }
    *out = s;
    return PP_OK;
}

enum pp_code tok_splitter_new(const struct pp_str *patterns, size_t n, struct tok_splitter **out, struct pp_error *err)
{
    return new_splitter(patterns, n, false, out, err);
}

enum pp_code tok_splitter_new_plain(const struct pp_str *patterns, size_t n, struct tok_splitter **out,
                                    struct pp_error *err)
{
    return new_splitter(patterns, n, true, out, err);
}

void tok_splitter_free(struct tok_splitter *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        tok_runs_free(s->levels[i].runs);
        pcre2_code_free(s->levels[i].code);
    }
    pcre2_match_context_free(s->limits);
    pp_free(s);
}

bool tok_splitter_copies(const struct tok_splitter *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->levels[i].spaced)
            return true;
    return false;
}

size_t tok_splitter_expressions(const struct tok_splitter *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += s->levels[i].code != NULL;
    return n;
}

struct tok_split_state *tok_split_state_new(const struct tok_splitter *s, size_t n)
{
    struct tok_split_state *st = pp_calloc(1, sizeof *st);
    if (!st)
        return NULL;
    st->deadline_ns = pp_now_ns() + (PATIENCE_S + (uint64_t)n / 1000000) * 1000000000u;
    for (size_t i = 0; i < s->n; i++) {
        if (s->levels[i].code && !(st->found[i] = pcre2_match_data_create(1, NULL))) {
            tok_split_state_free(st);
            return NULL;
        }
    }
    return st;
}

void tok_split_state_free(struct tok_split_state *st)
{
    if (!st)
        return;
    for (size_t i = 0; i < TOK_MAX_PATTERNS; i++)
        pcre2_match_data_free(st->found[i]);
    pp_buf_free(&st->valid);
    pp_free(st);
}

/* --- matching ------------------------------------------------------------------------------------------ */

/* Constant while one text is split. */
struct splitting {
    const struct tok_splitter *s;
    struct tok_split_state *st;
    const char *valid, *text; /* at the same offset: `valid` is made of valid UTF-8, for expressions */
    bool on;                  /* the text continues another one: no space is put before its first piece */
    tok_word_fn fn;
    void *ctx;
    struct pp_error *err;
};

/* A match at piece[begin, end); no match: both are the piece's length. */
struct match {
    size_t begin, end;
};

/* A time limit, since patterns can be made slow on purpose. */
static bool in_time(struct tok_split_state *st)
{
    if (++st->matches < CLOCK_EVERY)
        return true;
    st->matches = 0;
    return pp_now_ns() < st->deadline_ns;
}

/* The next match at or after `from`. It may be empty, but not where the text is cut already. */
static enum pp_code match_expression(const struct splitting *sp, size_t level, const char *piece, size_t n, size_t from,
                                     struct match *m)
{
    const pcre2_code *code = sp->s->levels[level].code;
    pcre2_match_data *found = sp->st->found[level];
    for (size_t at = from; at < n;) {
        const uint32_t options = PCRE2_NO_UTF_CHECK;
        int rc = pcre2_match(code, (PCRE2_SPTR)piece, n, at, options, found, sp->s->limits);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(code, (PCRE2_SPTR)piece, n, at, options | PCRE2_NO_JIT, found, sp->s->limits);
        if (rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT)
            return pp_fail_nomem(sp->err, "splitting the text into words");
        if ((rc < 0 && rc != PCRE2_ERROR_NOMATCH) || !in_time(sp->st))
            return pp_fail(sp->err, PP_ERR_UNSUPPORTED, "a split pattern of this tokenizer takes too long on this "
                           "text");
        if (rc < 0)
            return PP_OK;
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(found);
        if (v[0] < at || v[1] < v[0] || v[1] > n)
            return pp_fail(sp->err, PP_ERR_UNSUPPORTED, "a split pattern of this tokenizer moves backwards");
        if (v[1] > from) {
            *m = (struct match){v[0], v[1]};
            return PP_OK;
        }
        int32_t c;
        at += pp_utf8_decode(piece + at, n - at, &c);
    }
    return PP_OK;
}

static const char *find_scan(tok_scan_fn scan, const char *p, const char *end, const char **stop)
{
    for (size_t width; p < end; p += width) {
        int32_t c;
        const size_t n = scan(p, end);
        *stop = p + n;
        if (n)
            return p;
        width = pp_utf8_decode(p, (size_t)(end - p), &c);
    }
    return NULL;
}

/* The next match of a pattern at or after `from`; n, n: there is none. An empty match only cuts the text. */
static enum pp_code next_match(const struct splitting *sp, size_t level, const char *piece, size_t n, size_t from,
                               struct match *m)
{
    const struct level *l = &sp->s->levels[level];
    const char *end = piece + n, *stop = end, *begin;
    *m = (struct match){n, n};
    if (l->code)
        return match_expression(sp, level, piece, n, from, m);
    if (l->scan)
        begin = find_scan(l->scan, piece + from, end, &stop);
    else if (l->runs)
        begin = tok_runs_find(l->runs, piece + from, end, &stop);
    else
        begin = tok_trailing_spaces(piece + from, end);
    if (begin)
        *m = (struct match){(size_t)(begin - piece), (size_t)(stop - piece)};
    return PP_OK;
}

/* Splits by the last pattern if it matches at every place, so that no place is visited twice. */
static enum pp_code split_words(const struct splitting *sp, tok_scan_fn scan, const char *piece, size_t n)
{
    const char *const end = piece + n;
    enum pp_code code = PP_OK;
    for (size_t width; piece < end && !code && (width = scan(piece, end)) > 0; piece += width)
        code = sp->fn(sp->ctx, sp->text + (piece - sp->valid), width, sp->err);
    return code;
}

/* The same for Jais 2. */
static enum pp_code split_halving(const struct splitting *sp, const char *piece, size_t n)
{
    const char *const end = piece + n;
    bool halved = false;
    enum pp_code code = PP_OK;
    for (size_t width; piece < end && !code; piece += width) {
        width = halved ? tok_scan_jais2_spaces(piece, end) : tok_scan_jais2(piece, end);
        halved = tok_scan_is_halved(piece, width);
        code = sp->fn(sp->ctx, sp->text + (piece - sp->valid), width, sp->err);
    }
    return code;
}

static enum pp_code split_piece(const struct splitting *sp, size_t level, const char *piece, size_t n);

/* Cuts numbers into groups of three digits from their end; the text between them is kept. */
static enum pp_code split_groups(const struct splitting *sp, size_t level, const char *piece, size_t n)
{
    const char *const end = piece + n, *stop = piece, *number;
    enum pp_code code = PP_OK;
    for (size_t digits; !code && (number = tok_number_find(stop, end, sp->s->levels[level].apart, &stop, &digits));) {
        if (number > piece)
            code = split_piece(sp, level + 1, piece, (size_t)(number - piece));
        for (size_t width; digits > 0 && !code; number += width) {
            const size_t group = digits % 3 ? digits % 3 : 3;
            width = tok_number_part(number, end, group);
            code = split_piece(sp, level + 1, number, width);
            digits -= group;
        }
        piece = stop;
    }
    return code || piece == end ? code : split_piece(sp, level + 1, piece, (size_t)(end - piece));
}

static enum pp_code split_lengths(const struct splitting *sp, size_t level, const char *piece, size_t n)
{
    enum pp_code code = PP_OK;
    int32_t c;
    for (size_t width; n && !code; piece += width, n -= width) {
        width = 0;
        for (size_t i = sp->s->levels[level].length; i && width < n; i--)
            width += pp_utf8_decode(piece + width, n - width, &c);
        code = split_piece(sp, level + 1, piece, width);
    }
    return code;
}

/* The last part, which may still grow, for behaviours that join parts. */
struct part {
    size_t begin, end; /* equal: there is none */
    bool match;        /* a match, or what counts as one */
};

static enum pp_code end_part(const struct splitting *sp, size_t level, const char *piece, struct part *p)
{
    const bool kept = p->end > p->begin && !(sp->s->levels[level].behavior == REMOVED && p->match);
    const enum pp_code code = kept ? split_piece(sp, level + 1, piece + p->begin, p->end - p->begin) : PP_OK;
    p->begin = p->end;
    return code;
}

/* Adds the next part of a piece, joining it with the last one if they belong together. */
static enum pp_code add_part(const struct splitting *sp, size_t level, const char *piece, struct part *last,
                             struct part next)
{
    const enum behavior b = sp->s->levels[level].behavior;
    const bool any = last->end > last->begin;
    enum pp_code code = PP_OK;
    if (next.end == next.begin)
        return PP_OK;
    if (any && b == CONTIGUOUS && last->match == next.match) {
        last->end = next.end;
    } else if (any && b == MERGED_WITH_PREVIOUS && next.match && !last->match) {
        *last = (struct part){last->begin, next.end, true};
    } else if (any && b == MERGED_WITH_NEXT && last->match && !next.match) {
        *last = (struct part){last->begin, next.end, false};
    } else {
        code = end_part(sp, level, piece, last);
        *last = next;
    }
    return code;
}

static enum pp_code split_behaving(const struct splitting *sp, size_t level, const char *piece, size_t n)
{
    const bool inverted = sp->s->levels[level].inverted;
    struct part last = {0};
    for (size_t pos = 0; pos < n;) {
        struct match m;
        enum pp_code code = next_match(sp, level, piece, n, pos, &m);
        if (!code)
            code = add_part(sp, level, piece, &last, (struct part){pos, m.begin, inverted});
        if (!code)
            code = m.end > m.begin ? add_part(sp, level, piece, &last, (struct part){m.begin, m.end, !inverted})
                                   : end_part(sp, level, piece, &last);
        if (code)
            return code;
        pos = m.end;
    }
    return end_part(sp, level, piece, &last);
}

/* Passes on a piece with a space before it, in a buffer of its own. */
static enum pp_code split_spaced(const struct splitting *sp, size_t level, const char *piece, size_t n)
{
    if (*piece == ' ' || (sp->on && piece == sp->valid))
        return split_piece(sp, level + 1, piece, n);
    const char *const texts[] = {piece, sp->text + (piece - sp->valid)};
    char *copy = pp_malloc(2 * (n + 1));
    if (!copy)
        return pp_fail_nomem(sp->err, "a copy of the text");
    for (int i = 0; i < 2; i++) {
        copy[(size_t)i * (n + 1)] = ' ';
        memcpy(copy + (size_t)i * (n + 1) + 1, texts[i], n);
    }
    struct splitting spaced = *sp;
    spaced.valid = copy;
    spaced.text = copy + n + 1;
    spaced.on = false;
    const enum pp_code code = split_piece(&spaced, level + 1, copy, n + 1);
    pp_free(copy);
    return code;
}

/* Cuts a piece by the pattern of its level into matches and the text between; these are the pieces of the next
 * level. */
static enum pp_code split_piece(const struct splitting *sp, size_t level, const char *piece, size_t n)
{
    if (level == sp->s->n)
        return sp->fn(sp->ctx, sp->text + (piece - sp->valid), n, sp->err);
    if (sp->s->levels[level].spaced)
        return split_spaced(sp, level, piece, n);
    if (level + 1 == sp->s->n && sp->s->levels[level].scan == tok_scan_jais2)
        return split_halving(sp, piece, n);
    if (level + 1 == sp->s->n && sp->s->levels[level].total)
        return split_words(sp, sp->s->levels[level].scan, piece, n);
    if (sp->s->levels[level].length)
        return split_lengths(sp, level, piece, n);
    if (sp->s->levels[level].groups)
        return split_groups(sp, level, piece, n);
    if (sp->s->levels[level].behavior != ISOLATED)
        return split_behaving(sp, level, piece, n);
    for (size_t pos = 0; pos < n;) {
        struct match m;
        enum pp_code code = next_match(sp, level, piece, n, pos, &m);
        if (!code && m.begin > pos)
            code = split_piece(sp, level + 1, piece + pos, m.begin - pos);
        if (!code && m.end > m.begin)
            code = split_piece(sp, level + 1, piece + m.begin, m.end - m.begin);
        if (code)
            return code;
        pos = m.end;
    }
    return PP_OK;
}

static bool make_valid(struct pp_buf *valid, const char *text, size_t n)
{
    pp_buf_clear(valid);
    for (size_t i = 0; i < n;) {
        int32_t c;
        size_t len = pp_utf8_decode(text + i, n - i, &c);
        if (c < 0)
            pp_buf_char(valid, INVALID_STANDS_FOR);
        else
            pp_buf_add(valid, text + i, len);
        i += len;
    }
    return !valid->bad;
}

enum pp_code tok_split(const struct tok_splitter *s, struct tok_split_state *st, const char *text, size_t n,
                       bool on, tok_word_fn fn, void *ctx, struct pp_error *err)
{
    struct splitting sp = {.s = s, .st = st, .valid = text, .text = text, .on = on, .fn = fn, .ctx = ctx, .err = err};
    if (n == 0)
        return PP_OK;
    if (tok_splitter_expressions(s) > 0 && !pp_utf8_valid(text, n)) {
        if (!make_valid(&st->valid, text, n))
            return pp_fail_nomem(err, "a copy of the text");
        sp.valid = st->valid.data;
    }
    return split_piece(&sp, 0, sp.valid, n);
}
