#include "engine/arch/arch.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/base/word.h"
#include "engine/gguf.h"

static const struct pp_arch *const families[] = {
    &pp_arch_llama,   &pp_arch_qwen2,   &pp_arch_qwen3,    &pp_arch_qwen3moe,   &pp_arch_gemma,   &pp_arch_gemma2,
    &pp_arch_qwen2moe, &pp_arch_deepseek, &pp_arch_deepseek2, &pp_arch_minicpm3,
    &pp_arch_dots1, &pp_arch_glm4moe, &pp_arch_minimax_m2, &pp_arch_ernie45_moe,
    &pp_arch_bailingmoe2, &pp_arch_hunyuan_moe, &pp_arch_exaone_moe, &pp_arch_afmoe, &pp_arch_bailingmoe,
    &pp_arch_gemma3,  &pp_arch_gemma4,  &pp_arch_gemma3n, &pp_arch_phi2,     &pp_arch_phi3,
    &pp_arch_deci,    &pp_arch_gptoss,  &pp_arch_smollm3, &pp_arch_granite,
    &pp_arch_olmo2,   &pp_arch_cohere2, &pp_arch_stablelm, &pp_arch_starcoder2, &pp_arch_gptneox, &pp_arch_gpt2,
    &pp_arch_bert,    &pp_arch_nomic_bert, &pp_arch_jina_bert, &pp_arch_seed_oss, &pp_arch_ernie45,
    &pp_arch_exaone,  &pp_arch_exaone4, &pp_arch_chatglm,  &pp_arch_glm4,       &pp_arch_command_r,
    &pp_arch_hunyuan_dense, &pp_arch_olmoe, &pp_arch_granitemoe, &pp_arch_olmo, &pp_arch_nemotron, &pp_arch_arcee,
    &pp_arch_orion, &pp_arch_internlm2, &pp_arch_baichuan, &pp_arch_phimoe,
    &pp_arch_falcon, &pp_arch_bloom, &pp_arch_mpt, &pp_arch_apertus, &pp_arch_llama4,
    &pp_arch_xverse, &pp_arch_pangu, &pp_arch_minicpm, &pp_arch_starcoder, &pp_arch_qwen,
    &pp_arch_nemotron_h, &pp_arch_falcon_h1, &pp_arch_mamba2, &pp_arch_mamba, &pp_arch_jamba, &pp_arch_rwkv7,
    &pp_arch_rwkv4, &pp_arch_rwkv6, &pp_arch_rwkv6qwen2, &pp_arch_arwkv7,
    &pp_arch_lfm2, &pp_arch_lfm2moe, &pp_arch_qwen3next, &pp_arch_qwen35, &pp_arch_qwen35moe,
    &pp_arch_granitehybrid, &pp_arch_bitnet, &pp_arch_mistral4, &pp_arch_mimo2, &pp_arch_smallthinker,
    &pp_arch_deepseek32, &pp_arch_glm_dsa, &pp_arch_jais2, &pp_arch_refact, &pp_arch_codeshell, &pp_arch_mellum,
    &pp_arch_gptj, &pp_arch_jais, &pp_arch_maincoder, &pp_arch_hunyuan_vl, &pp_arch_hy_v3, &pp_arch_plm,
    &pp_arch_step35, &pp_arch_laguna, &pp_arch_gemma_embedding, &pp_arch_gemma_embedding2,
    &pp_arch_modern_bert, &pp_arch_eurobert,
    &pp_arch_llama_embed, &pp_arch_openelm, &pp_arch_dbrx, &pp_arch_grok, &pp_arch_arctic,
    &pp_arch_grovemoe, &pp_arch_neobert, &pp_arch_jina_bert_v3, &pp_arch_ernie45_vl, &pp_arch_olmo_hybrid,
    &pp_arch_kimi_linear, &pp_arch_cohere2moe, &pp_arch_plamo, &pp_arch_plamo2, &pp_arch_plamo3,
    &pp_arch_chameleon, &pp_arch_opt, &pp_arch_gptneo, &pp_arch_codegen, &pp_arch_persimmon,
    &pp_arch_xglm, &pp_arch_paddleocr, &pp_arch_deepseek2_ocr, &pp_arch_cogvlm,
    &pp_arch_chameleon, &pp_arch_cwm, &pp_arch_ministral, &pp_arch_vaultgemma,
    &pp_arch_helium, &pp_arch_nanochat, &pp_arch_flex_olmo, &pp_arch_bamba,
    &pp_arch_recurrent_gemma, &pp_arch_minimax, &pp_arch_zamba2,
    &pp_arch_muse_glimmer, &pp_arch_kormo, &pp_arch_hyperclovax, &pp_arch_diffllama, &pp_arch_telechat,
    &pp_arch_yuan, &pp_arch_glm5_next, &pp_arch_qwen4, &pp_arch_k2_horizon,
    &pp_arch_nanbeige, &pp_arch_ouro, &pp_arch_modernbert_decoder, &pp_arch_doge,
    &pp_arch_jetmoe, &pp_arch_zamba, &pp_arch_openai_gpt, &pp_arch_ctrl, &pp_arch_granite_swa, &pp_arch_aria,
    &pp_arch_axk1, &pp_arch_cohere_compass, &pp_arch_longcat_flash, &pp_arch_bailingmoe3, &pp_arch_kimi_k3,
    &pp_arch_deepseek4, &pp_arch_hy_v4, &pp_arch_maple, &pp_arch_minimax_m3, &pp_arch_bailing_linear,
    &pp_arch_bailing_hybrid, &pp_arch_gigachat35, &pp_arch_phi3small, &pp_arch_baichuan_m1, &pp_arch_klear,
    &pp_arch_hrm_text, &pp_arch_xlstm, &pp_arch_motif, &pp_arch_lille, &pp_arch_iquest_loop,
    &pp_arch_biogpt, &pp_arch_zaya, &pp_arch_step3, &pp_arch_molmo, &pp_arch_molmo2, &pp_arch_jina_vlm,
    &pp_arch_olmo_first,
    &pp_arch_phi4flash, &pp_arch_hymba, &pp_arch_minicpm_sala, &pp_arch_solar, &pp_arch_spark,
    &pp_arch_jet_nemotron, &pp_arch_talkie, &pp_arch_dots3note, &pp_arch_granite_switch, &pp_arch_g9v3,
    &pp_arch_agnes,
};

const struct pp_arch *pp_arch_at(size_t i)
{
    return i < sizeof families / sizeof *families ? families[i] : NULL;
}

static bool is_called(const struct pp_arch *a, const char *name)
{
    for (const char *const *other = a->other_names; other && *other; other++)
        if (strcmp(*other, name) == 0)
            return true;
    return strcmp(a->name, name) == 0;
}

const struct pp_arch *pp_arch_by_name(const char *name)
{
    const struct pp_arch *a;
    for (size_t i = 0; (a = pp_arch_at(i)); i++)
        if (is_called(a, name))
            return a;
    return NULL;
}

const char *pp_arch_file_name(const struct pp_hparams *hp)
{
    const struct pp_arch *a = pp_arch_by_name(hp->arch);
    return a->file_name                                       ? a->file_name
           : hp->attn_temperature != 0.0f && a->tempered_name ? a->tempered_name
           : hp->n_expert && a->mixture_name                 ? a->mixture_name
                                                             : a->name;
}

const char pp_family_key[] = "pippin.family";

const struct pp_arch *pp_arch_of_file(const struct pp_gguf *g, const char *architecture)
{
    const struct pp_arch *a;
    for (size_t i = 0; (a = pp_arch_at(i)); i++)
        if (a->file_name && strcmp(a->file_name, architecture) == 0 && pp_gguf_string_is(g, pp_family_key, a->name))
            return a;
    return pp_arch_by_name(architecture);
}

const struct pp_arch *pp_arch_by_class(const char *hf_class)
{
    const struct pp_arch *a;
    for (size_t i = 0; (a = pp_arch_at(i)); i++)
        for (const char *const *c = a->hf_classes; *c; c++)
            if (strcmp(*c, hf_class) == 0)
                return a;
    return NULL;
}

bool pp_arch_is_kind(const cJSON *config, const char *model_type, const char *hf_class)
{
    const cJSON *type = pp_json_member(config, "model_type");
    const cJSON *first = cJSON_GetArrayItem(pp_json_member(config, "architectures"), 0);
    if (cJSON_IsString(type))
        return strcmp(type->valuestring, model_type) == 0;
    return cJSON_IsString(first) && hf_class && strcmp(first->valuestring, hf_class) == 0;
}

void pp_arch_list(struct pp_buf *out)
{
    const struct pp_arch *a;
    for (size_t i = 0; (a = pp_arch_at(i)); i++)
        if (pp_arch_by_name(a->name) == a) /* not a variant of a family with the same name */
            pp_buf_fmt(out, "%s%s", i ? ", " : "", a->name);
}

/* --- names --------------------------------------------------------------------------------------------- */

enum { MAX_LAYER_DIGITS = 4 };

/* The digits that stand for {}, in the order of the name. */
struct holes {
    const char *at[2];
    size_t len[2];
    int n;
    char room[16]; /* for a layer's number that was converted */
};

/* Takes a number from *name. */
static bool take_number(const char **name, struct holes *h)
{
    size_t digits = strspn(*name, "0123456789");
    bool leading_zero = digits > 1 && (*name)[0] == '0'; /* would be a second name for the same layer */
    if (h->n == 2 || digits == 0 || digits > MAX_LAYER_DIGITS || leading_zero)
        return false;
    h->at[h->n] = *name;
    h->len[h->n++] = digits;
    *name += digits;
    return true;
}

/* Matches name against "before{}between{}after"; on success *rest is what follows. */
static bool match(const char *pattern, const char *name, struct holes *holes, const char **rest)
{
    holes->n = 0;
    while (*pattern) {
        if (pattern[0] == '{' && pattern[1] == '}') {
            if (!take_number(&name, holes))
                return false;
            pattern += 2;
        } else if (*pattern++ != *name++) {
            return false;
        }
    }
    *rest = name;
    return true;
}

/* Appends a pattern with its holes filled in. */
static void fill_in(const char *pattern, const struct holes *h, struct pp_buf *out)
{
    const char *hole;
    for (int i = 0; (hole = strstr(pattern, "{}")) && i < h->n; i++, pattern = hole + 2) {
        pp_buf_add(out, pattern, (size_t)(hole - pattern));
        pp_buf_add(out, h->at[i], h->len[i]);
    }
    pp_buf_str(out, pattern);
}

static long layer_of(const struct holes *h)
{
    return h->n ? strtol(h->at[0], NULL, 10) : 0;
}

static void set_layer(struct holes *h, long l)
{
    h->len[0] = (size_t)snprintf(h->room, sizeof h->room, "%ld", l);
    h->at[0] = h->room;
}

/* Converts a folder's layer number into ours: where the folder has two stacks, or counts two of our layers as one. */
static void to_our_layer(const struct pp_arch_name *n, const struct pp_hparams *hp, struct holes *h)
{
    if (n->stack == PP_STACK_HIGH)
        set_layer(h, layer_of(h) + (long)hp->n_layer / 2);
    if (n->half)
        set_layer(h, 2 * layer_of(h) + n->half - 1);
}

/* The other way round. False: the line is for the other stack or half. */
static bool to_folders_layer(const struct pp_arch_name *n, const struct pp_hparams *hp, struct holes *h)
{
    const long l = layer_of(h), n_low = hp ? (long)hp->n_layer / 2 : 0;
    if (n->stack && hp && (l >= n_low) != (n->stack == PP_STACK_HIGH))
        return false;
    if (n->stack == PP_STACK_HIGH)
        set_layer(h, l - n_low);
    if (n->half && l % 2 != n->half - 1)
        return false;
    if (n->half)
        set_layer(h, l / 2);
    return true;
}

static bool is_suffix(const char *s)
{
    return strcmp(s, ".weight") == 0 || strcmp(s, ".bias") == 0;
}

/* Whether the layer has a projection in place of attention. */
static bool is_projection_only(const struct pp_hparams *hp, int64_t l)
{
    return hp->parts_missing && l < hp->n_layer && pp_layer_shape(hp, l).n_head_kv == 0;
}

/* Whether a line for some kinds of layers applies to the layer in the first hole. hp NULL: not known, so it may. */
static bool is_of_layer(const struct pp_arch_name *n, const struct pp_hparams *hp, const struct holes *h)
{
    const int64_t l = hp ? layer_of(h) : 0;
    if (!hp)
        return true;
    return (!n->projection_only || is_projection_only(hp, l)) &&
           (!n->recurrent || (l < hp->n_layer && hp->layer[l] & PP_LAYER_RECURRENT)) &&
           (!n->shared_block || (l < hp->n_layer && hp->layer[l] & PP_LAYER_SHARING));
}

/* The first line of a table that matches the folder's name. Lines of stacks need hp, as their layers' numbers depend on
 * n_layer. */
static const struct pp_arch_name *find_name(const struct pp_arch_name *table, const struct pp_hparams *hp,
                                            const char *hf, struct holes *holes, const char **rest)
{
    for (const struct pp_arch_name *n = table; n && n->hf; n++)
        if (!n->hashed && (!n->stack || hp) && (!n->dense || (hp && !hp->n_expert)) && match(n->hf, hf, holes, rest) &&
            (n->whole ? **rest == 0 : is_suffix(*rest)) &&
            ((!n->recurrent && !n->shared_block) || is_of_layer(n, hp, holes)))
            return n;
    return NULL;
}

bool pp_name_begins(const char *s, const char *begin)
{
    return strncmp(s, begin, strlen(begin)) == 0;
}

/* The line of the family's tables for a name in a folder, after any prefix of a multimodal model is removed. *name
 * keeps the changed name, which the holes point into. */
static const struct pp_arch_name *find_entry(const struct pp_arch *a, const struct pp_hparams *hp, const char *hf,
                                             struct pp_buf *name, struct holes *holes, const char **rest)
{
    for (const char *const *p = a->parts ? a->parts->prefixes : NULL; p && *p; p += 2)
        if (pp_name_begins(hf, p[0])) {
            pp_buf_fmt(name, "%s%s", p[1], hf + strlen(p[0]));
            hf = pp_buf_cstr(name);
            break;
        }
    if (!name->len && !name->bad && pp_wrapped_name(hf, name))
        hf = pp_buf_cstr(name);
    if (name->bad)
        return NULL;
    const struct pp_arch_name *entry = find_name(a->names, hp, hf, holes, rest);
    if (!entry)
        entry = find_name(a->more_names, hp, hf, holes, rest);
    if (entry || pp_name_begins(hf, "model."))
        return entry;
    struct pp_buf whole = {0}; /* a model saved without its output lacks the prefix "model." */
    pp_buf_fmt(&whole, "model.%s", hf);
    pp_buf_clear(name);
    pp_buf_add(name, whole.data, whole.len);
    name->bad |= whole.bad;
    pp_buf_free(&whole);
    if (!(entry = find_name(a->names, hp, pp_buf_cstr(name), holes, rest)))
        entry = find_name(a->more_names, hp, pp_buf_cstr(name), holes, rest);
    return entry;
}

static bool is_of_other_part(const struct pp_arch *a, const char *hf)
{
    for (const char *const *p = a->parts ? a->parts->others : NULL; p && *p; p++)
        if (pp_name_begins(hf, *p))
            return true;
    return false;
}

enum pp_name_match pp_arch_translate(const struct pp_arch *a, const struct pp_hparams *hp, const char *hf,
                                     const struct pp_arch_name **entry, struct pp_buf *gguf, struct pp_buf *second)
{
    struct holes holes;
    struct pp_buf name = {0};
    const char *rest;
    pp_buf_clear(gguf);
    pp_buf_clear(second);
    if ((*entry = find_entry(a, hp, hf, &name, &holes, &rest))) {
        to_our_layer(*entry, hp, &holes);
        fill_in((*entry)->gguf, &holes, gguf);
        pp_buf_str(gguf, rest);
        if ((*entry)->second)
            fill_in((*entry)->second, &holes, second);
        gguf->bad |= name.bad;
        pp_buf_free(&name);
        return PP_NAME_FOUND;
    }
    gguf->bad |= name.bad; /* out of memory is not the same as not found */
    pp_buf_free(&name);
    if (is_of_other_part(a, hf))
        return PP_NAME_IGNORED;
    for (const char *const *end = a->ignored; *end; end++)
        if (pp_ends_with(hf, *end))
            return PP_NAME_IGNORED;
    return PP_NAME_UNKNOWN;
}

enum pp_name_match pp_arch_gguf_name(const struct pp_arch *a, const char *hf, struct pp_buf *gguf,
                                     enum pp_row_order *rows)
{
    const struct pp_arch_name *entry;
    struct pp_buf second = {0};
    enum pp_name_match found = pp_arch_translate(a, NULL, hf, &entry, gguf, &second);
    gguf->bad |= second.bad;
    pp_buf_free(&second);
    if (found == PP_NAME_FOUND && rows)
        *rows = entry->rows;
    return found;
}

/* The line of a family's tables for a GGUF name; *rest: what follows the pattern. */
static const struct pp_arch_name *find_gguf(const struct pp_arch *a, const struct pp_hparams *hp,
                                            const char *gguf_name, struct holes *holes, const char **rest)
{
    const struct pp_arch_name *const tables[] = {a->names, a->more_names};
    for (int i = 0; i < 2; i++)
        for (const struct pp_arch_name *n = tables[i]; n && n->hf; n++)
            if (!n->read_only && match(n->gguf, gguf_name, holes, rest) &&
                (n->whole ? **rest == 0 : is_suffix(*rest)) && is_of_layer(n, hp, holes) &&
                to_folders_layer(n, hp, holes))
                return n;
    return NULL;
}

enum pp_row_order pp_arch_rows(const struct pp_arch *a, const char *gguf_name)
{
    struct holes holes;
    const char *rest;
    const struct pp_arch_name *n = find_gguf(a, NULL, gguf_name, &holes, &rest);
    return n ? n->rows : PP_ROWS_SAME;
}

enum pp_hf_form pp_arch_form(const struct pp_arch *a, const char *gguf_name)
{
    struct holes holes;
    const char *rest;
    const struct pp_arch_name *n = find_gguf(a, NULL, gguf_name, &holes, &rest);
    return n ? n->form : PP_HF_SAME;
}

/* The line of a table for a GGUF name, `second` names included, among MLX's lines or the others. */
static const struct pp_arch_name *find_line(const struct pp_arch_name *table, const struct pp_hparams *hp,
                                            const char *gguf_name, bool mlx, struct holes *holes, const char **rest)
{
    for (const struct pp_arch_name *n = table; n && n->hf; n++) {
        if (n->mlx != mlx || n->read_only || (n->two_norms && !hp->two_norms) || (n->dense && hp->n_expert))
            continue;
        if (match(n->gguf, gguf_name, holes, rest) && (n->whole ? **rest == 0 : is_suffix(*rest)) &&
            is_of_layer(n, hp, holes) && to_folders_layer(n, hp, holes))
            return n;
        if (n->second && match(n->second, gguf_name, holes, rest) && **rest == 0 && to_folders_layer(n, hp, holes))
            return n;
    }
    return NULL;
}

const struct pp_arch_name *pp_arch_hf_name(const struct pp_arch *a, const struct pp_hparams *hp, const char *gguf_name,
                                           bool mlx, struct pp_buf *name)
{
    struct holes holes;
    const char *rest;
    const struct pp_arch_name *n = mlx ? find_line(a->names, hp, gguf_name, true, &holes, &rest) : NULL;
    if (mlx && !n)
        n = find_line(a->more_names, hp, gguf_name, true, &holes, &rest);
    if (!n && !(n = find_line(a->names, hp, gguf_name, false, &holes, &rest)))
        n = find_line(a->more_names, hp, gguf_name, false, &holes, &rest);
    if (n && n->not_mlx && mlx)
        n = NULL;
    pp_buf_clear(name);
    if (n && n->hashed) {
        holes.n = 1;
        set_layer(&holes, (long)hp->hashed.layer);
    }
    if (n) {
        fill_in(n->hf, &holes, name);
        pp_buf_str(name, n->whole ? "" : rest);
    }
    return n;
}

bool pp_arch_hf_module(const struct pp_arch *a, const struct pp_hparams *hp, const char *gguf_name,
                       struct pp_buf *module)
{
    static const char weight[] = ".weight";
    struct holes holes;
    const char *rest;
    const struct pp_arch_name *n = find_gguf(a, hp, gguf_name, &holes, &rest);
    pp_buf_clear(module);
    if (!n || (!n->whole && strcmp(rest, weight) != 0) || (n->whole && !pp_ends_with(n->hf, weight)))
        return false;
    fill_in(n->hf, &holes, module);
    if (n->whole && !module->bad)
        module->data[module->len -= sizeof weight - 1] = 0;
    return true;
}

bool pp_arch_other_pairs(const struct pp_hparams *hp)
{
    const struct pp_arch *a = pp_arch_by_name(hp->arch);
    return a && a->hf_pairs && hp->rope_neox;
}

/* Within a head Hugging Face rotates pairs (i, i + head_dim / 2), which GGUF's llama has side by side. */
int64_t pp_hf_row(int64_t gguf_row, int64_t head_dim)
{
    int64_t head = gguf_row / head_dim, in = gguf_row % head_dim;
    return head * head_dim + in % 2 * (head_dim / 2) + in / 2;
}

int64_t pp_gguf_row(int64_t hf_row, int64_t head_dim)
{
    int64_t head = hf_row / head_dim, in = hf_row % head_dim;
    return head * head_dim + in % (head_dim / 2) * 2 + in / (head_dim / 2);
}
