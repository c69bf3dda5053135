/* source_names.c - what tensor names tell: matrices in stacks, layers that predict further tokens, parts that are not
 * computed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/source.h"

static const char of_streams[] = "altup_"; /* how names of the streams' matrices begin */

static bool is_of_stream(const char *name)
{
    return strncmp(name, of_streams, strlen(of_streams)) == 0;
}

const char *pp_expert_number(const char *name)
{
    static const char *const kinds[] = {".attn_v.", ".ffn_gate.", ".ffn_up.", ".ffn_down.", ".ffn_gate_ch.",
                                        ".ffn_up_ch.", ".ffn_down_ch.", "altup_proj.", "altup_unembd_proj.",
                                        ".ple_embd."};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *at = strstr(name, kinds[i]);
        at = at ? at + strlen(kinds[i]) : NULL;
        const size_t digits = at ? strspn(at, "0123456789") : 0;
        if (digits > 0 && (digits == 1 || at[0] != '0') && strcmp(at + digits, ".weight") == 0)
            return at;
    }
    return NULL;
}

/* A part of a folder's table of hashed n-gram embeddings, which GGUF files have in one piece. */
static bool is_of_table(const char *name)
{
    return strstr(name, ".ple_embd.") != NULL;
}

/* An expert that several others share. */
static bool is_of_share(const char *name)
{
    return strstr(name, "_ch.") || strstr(name, "_chexps.");
}

bool pp_stack_is_flat(const char *name)
{
    return is_of_table(name);
}

int64_t pp_stack_size(const struct pp_hparams *hp, const char *name)
{
    if (strstr(name, ".attn_v.") || strstr(name, ".attn_v_exps."))
        return hp->n_value_expert;
    const int64_t share = is_of_share(name) && hp->n_expert_share ? hp->n_expert_share : 1;
    return is_of_stream(name) ? hp->n_stream - 1 : is_of_table(name) ? hp->hashed.parts : hp->n_expert / share;
}

bool pp_is_after_layers(const struct pp_hparams *hp, const char *gguf_name)
{
    const int64_t l = strncmp(gguf_name, "blk.", 4) == 0 ? strtol(gguf_name + 4, NULL, 10) : -1;
    return l >= hp->n_layer && l < hp->n_layer + hp->n_nextn;
}

bool pp_is_unused_first_mix(const struct pp_hparams *hp, const char *gguf_name)
{
    static const char begin[] = "blk.0.time_mix_v";
    const size_t n = sizeof begin - 1;
    return hp->rwkv && strncmp(gguf_name, begin, n) == 0 && gguf_name[n] >= '0' && gguf_name[n] <= '2' &&
           strcmp(gguf_name + n + 1, ".weight") == 0;
}

const char pp_skip_shares[] = "bskcn_tv.weight";

bool pp_is_for_pictures(const struct pp_hparams *hp, const char *gguf_name)
{
    int l, end = 0;
    return strcmp(hp->arch, "cogvlm") == 0 && sscanf(gguf_name, "blk.%4d.vis_%n", &l, &end) == 1 && end > 0;
}

void pp_matrix_name(const char *matrix, char *out, size_t cap)
{
    static const char *const ends[][2] = {{"_chexps.weight[", "_ch"}, {"_exps.weight[", ""}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const char *at = strstr(matrix, ends[i][0]);
        if (!at)
            continue;
        snprintf(out, cap, "%.*s%s.%ld.weight", (int)(at - matrix), matrix, ends[i][1],
                 strtol(at + strlen(ends[i][0]), NULL, 10));
        return;
    }
    snprintf(out, cap, "%s", matrix);
}

void pp_stack_name(const char *matrix, char out[256])
{
    const char *number = pp_expert_number(matrix), *bracket = strchr(matrix, '[');
    if (number && is_of_table(matrix))
        snprintf(out, 256, "per_layer_token_embd.weight");
    else if (number)
        snprintf(out, 256, "%.*s%s.weight", (int)(number - 1 - matrix), matrix, is_of_stream(matrix)  ? ""
                 : is_of_share(matrix) ? "exps"
                                       : "_exps");
    else
        snprintf(out, 256, "%.*s", bracket ? (int)(bracket - matrix) : 255, matrix);
}
