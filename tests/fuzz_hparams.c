/* fuzz_hparams.c - config.json of a published model, edited: hyperparameters read from it are within the limits that
 * the engine relies on, and survive being written as a configuration and read again.
 *
 * The first byte picks a configuration of tests/data/configs.json or, past its end, of configs_made.json (small models
 * of other families); run it from the repository's root. Edits follow, up to the end: a byte for the kind of edit, two
 * bytes that pick a key at any depth of the configuration, and the operands of the edit. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/source.h"
#include "tests/hostile.h"

static const char *const names[] = {"config.json", "model.safetensors", NULL};
static cJSON *published; /* those of both files */

static void free_published(void)
{
    cJSON_Delete(published);
}

static cJSON *read_array(const char *path)
{
    char *text;
    size_t n;
    if (pp_read_file(path, 1 << 20, &text, &n, NULL))
        abort();
    cJSON *array = cJSON_Parse(text);
    if (!cJSON_IsArray(array))
        abort();
    pp_free(text);
    return array;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    published = read_array("tests/data/configs.json");
    cJSON *made = read_array("tests/data/configs_made.json");
    while (made->child)
        cJSON_AddItemToArray(published, cJSON_DetachItemFromArray(made, 0));
    cJSON_Delete(made);
    atexit(free_published);
    hostile_folder(names);
    hostile_file(1, "\x02\0\0\0\0\0\0\0{}", 10); /* a file without weights */
    return 0;
}

static const cJSON *config_at(unsigned i)
{
    return cJSON_GetObjectItem(cJSON_GetArrayItem(published, (int)i % cJSON_GetArraySize(published)), "config");
}

/* Counts *n down over all members at any depth; returns the one at which it reaches 0, and its parent in *parent. */
static cJSON *member_at(cJSON *object, unsigned *n, cJSON **parent)
{
    for (cJSON *v = object->child; v; v = v->next) {
        if (v->string && (*n)-- == 0) {
            *parent = object;
            return v;
        }
        cJSON *inner = member_at(v, n, parent);
        if (inner)
            return inner;
    }
    return NULL;
}

/* NULL: the configuration is empty. */
static cJSON *any_member(cJSON *object, unsigned i, cJSON **parent)
{
    unsigned most = UINT16_MAX;
    if (!member_at(object, &most, parent))
        i %= UINT16_MAX - most ? UINT16_MAX - most : 1;
    return member_at(object, &i, parent);
}

static unsigned hostile_short(struct hostile_input *in)
{
    const unsigned low = hostile_byte(in);
    return low | (unsigned)hostile_byte(in) << 8;
}

static void edit(cJSON *config, struct hostile_input *in)
{
    enum { PUT, REMOVE, BORROW, RENAME, SCALE, KINDS };
    const unsigned kind = hostile_byte(in) % KINDS, which = hostile_short(in);
    cJSON *parent, *other_parent, *v = any_member(config, which, &parent), *new = NULL;
    size_t n;
    if (!v)
        return;
    if (kind == PUT) {
        const char *text = (const char *)hostile_piece(in, &n);
        new = text ? cJSON_ParseWithLength(text, n) : NULL;
    } else if (kind == BORROW) { /* adds a key of another model */
        cJSON *other = (cJSON *)(uintptr_t)config_at(hostile_byte(in)); /* which is not changed */
        const cJSON *from = any_member(other, hostile_short(in), &other_parent);
        if (from && !cJSON_GetObjectItemCaseSensitive(parent, from->string))
            cJSON_AddItemToObject(parent, from->string, cJSON_Duplicate(from, true));
        return;
    } else if (kind == RENAME) { /* the same value under another key as well */
        const cJSON *to = any_member(config, hostile_short(in), &other_parent);
        if (to != v && !cJSON_IsObject(to))
            cJSON_ReplaceItemInObjectCaseSensitive(other_parent, to->string, cJSON_Duplicate(v, true));
        return;
    } else if (kind == SCALE) {
        new = cJSON_CreateNumber(cJSON_IsNumber(v) ? ldexp(v->valuedouble, (int8_t)hostile_byte(in)) : 1);
    }
    if (new)
        cJSON_ReplaceItemInObjectCaseSensitive(parent, v->string, new);
    else
        cJSON_DetachItemViaPointer(parent, v), cJSON_Delete(v);
}

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check(const struct pp_hparams *hp)
{
    require(hp->n_layer >= 1 && hp->n_layer <= PP_MAX_LAYERS && hp->n_vocab >= 1 && hp->n_embd >= 1 && hp->n_ff >= 1);
    require(hp->n_head_kv >= 1 && hp->n_head_kv <= hp->n_head && hp->head_dim >= 1 && hp->n_ctx_train >= 1);
    for (int64_t l = 0; l < hp->n_layer; l++) { /* the loop above checks the largest sizes, which some layers may not
                                                   reach */
        const struct pp_layer_shape shape = pp_layer_shape(hp, l);
        require(!shape.n_head_kv || shape.n_head % shape.n_head_kv == 0);
    }
    require(hp->window >= 0 && hp->conv_taps >= 0 && hp->rope_dim >= 0 && hp->rope_dim <= hp->head_dim);
    require(hp->n_expert >= 0 && hp->n_expert <= PP_MAX_EXPERTS);
    if (hp->n_expert)
        require(hp->n_expert_used >= 1 && hp->n_expert_used <= hp->n_expert);
    if (hp->n_expert)
        require(hp->n_expert_used <= PP_MAX_EXPERTS_USED);
    if (hp->n_expert && hp->n_expert_group > 1)
        require(hp->n_expert % hp->n_expert_group == 0 && hp->n_expert_group_used <= hp->n_expert_group);
    require(hp->norm_eps > 0 && isfinite(hp->norm_eps) && isfinite(hp->attn_scale) && isfinite(hp->embd_scale));
    require(hp->kv_lora_rank >= 0 && hp->q_lora_rank >= 0 && hp->qk_nope_dim >= 0 && hp->v_head_dim >= 0);
    if (hp->index_top_k)
        require(hp->index_top_k > 0 && hp->index_dim >= hp->rope_dim && hp->n_index_head >= 1 &&
                (hp->q_lora_rank > 0 || hp->index_block > 0) && !(hp->layer[0] & PP_LAYER_PICKED_BEFORE));
    if (hp->compressed) {
        require(hp->q_lora_rank > 0 && hp->o_groups > 0 && hp->n_head % hp->o_groups == 0 && hp->o_rank > 0);
        require(hp->n_head_kv == 1 && hp->window > 0 && hp->n_hash_routed_layers >= 0 &&
                hp->n_hash_routed_layers <= hp->n_layer);
    }
    for (int64_t l = 0; hp->compressed && l < hp->n_layer; l++)
        require(hp->compress[l] >= 0 && (hp->compress[l] & (hp->compress[l] - 1)) == 0 &&
                (hp->compress[l] != PP_COMPRESS_PICKED || hp->index_top_k > 0));
    if (hp->index_top_k && hp->index_block)
        require(hp->index_top_k % hp->index_block == 0 && (hp->index_block & (hp->index_block - 1)) == 0 &&
                hp->index_n_local >= 1 && hp->index_n_local <= hp->index_top_k / hp->index_block &&
                hp->n_index_head == hp->n_head_kv);
    require(memchr(hp->name, 0, sizeof hp->name) && memchr(hp->arch, 0, sizeof hp->arch));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hostile_input in = {data, size};
    struct pp_source *s;
    struct pp_error err;
    cJSON *config = cJSON_Duplicate(config_at(hostile_byte(&in)), true);
    for (int i = 0; in.size && i < 64; i++)
        edit(config, &in);
    char *text = cJSON_PrintUnformatted(config);
    cJSON_Delete(config);
    require(text != NULL);
    hostile_file(0, text, strlen(text));
    cJSON_free(text);
    if (pp_source_open(hostile_folder(names), &s, &err) == PP_OK)
        check(pp_source_hparams(s));
    pp_source_close(s);
    return 0;
}
