#include "engine/state_order.h"

#include <string.h>

#include "engine/base/word.h"

static bool attention_order(const struct pp_hparams *hp, const char *gguf_name, struct pp_state_order *order)
{
    const bool columns = pp_ends_with(gguf_name, ".attn_output.weight");
    if (hp->n_head_kv < 2 || hp->n_head_kv == hp->n_head || (!columns && !pp_ends_with(gguf_name, ".attn_q.weight")))
        return false;
    *order = (struct pp_state_order){.size = hp->head_dim, .n_keys = hp->n_head_kv, .share = hp->n_head / hp->n_head_kv,
                                     .columns = columns, .tiled = !hp->heads_tiled, .to_gguf = hp->heads_tiled};
    return true;
}

bool pp_state_order(const struct pp_hparams *hp, const char *gguf_name, struct pp_state_order *order)
{
    static const struct {
        const char *kind;
        bool mixed;        /* preceded by queries and keys */
        bool numbers;      /* a single row for each head */
        bool columns;
    } kinds[] = {
        {".attn_qkv.weight", true, false, false}, {".ssm_conv1d.weight", true, false, false},
        {".attn_gate.weight", false, false, false}, {".ssm_out.weight", false, false, true},
        {".ssm_beta.weight", false, true, false}, {".ssm_alpha.weight", false, true, false},
        {".ssm_a", false, true, false}, {".ssm_dt.bias", false, true, false},
    };
    if (strcmp(hp->arch, "plamo") == 0)
        return attention_order(hp, gguf_name, order);
    if ((strncmp(hp->arch, "qwen35", 6) != 0 && strcmp(hp->arch, "qwen4exp") != 0) || !hp->n_state_key_head ||
        hp->n_state_key_head == hp->n_state_head || hp->n_state_key_head == 1)
        return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!pp_ends_with(gguf_name, kinds[i].kind))
            continue;
        *order = (struct pp_state_order){
            .first = kinds[i].mixed ? 2 * hp->n_state_key_head * hp->state_key_dim : 0,
            .size = kinds[i].numbers ? 1 : hp->state_value_dim, .n_keys = hp->n_state_key_head,
            .share = hp->n_state_head / hp->n_state_key_head, .columns = kinds[i].columns, .tiled = !hp->state_tiled,
            .to_gguf = !hp->state_tiled};
        return true;
    }
    return false;
}

int64_t pp_state_order_rows(const struct pp_state_order *o)
{
    return o->first + o->size * o->n_keys * o->share;
}

int64_t pp_state_row(const struct pp_state_order *o, int64_t r)
{
    if (r < o->first)
        return r;
    const int64_t head = (r - o->first) / o->size, in = (r - o->first) % o->size;
    const int64_t ours = o->tiled ? head % o->n_keys * o->share + head / o->n_keys
                                  : head % o->share * o->n_keys + head / o->share;
    return o->first + ours * o->size + in;
}

bool pp_state_rows(const struct pp_state_order *o, int64_t n, bool ours, int32_t *rows)
{
    if (n != pp_state_order_rows(o))
        return false;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = pp_state_row(o, i);
        rows[ours ? at : i] = (int32_t)(ours ? i : at);
    }
    return true;
}

void pp_state_columns(const struct pp_state_order *o, float *rows, int64_t n, int64_t n_cols, float *room)
{
    for (int64_t r = 0; r < n; r++, rows += n_cols) {
        memcpy(room, rows, (size_t)n_cols * sizeof *room);
        for (int64_t c = 0; c < n_cols; c++)
            rows[c] = room[pp_state_row(o, c)];
    }
}

const struct pp_by_keys pp_by_keys[PP_BY_KEYS] = {
    {".ssm_in.weight", {".attn_qkv.weight", ".attn_gate.weight"}, {PP_KEYS_QKV, PP_KEYS_GATES}},
    {".ssm_ba.weight", {".ssm_beta.weight", ".ssm_alpha.weight"}, {PP_KEYS_BETA, PP_KEYS_DECAYS}},
};

int64_t pp_key_part_rows(const struct pp_hparams *hp, enum pp_key_part part)
{
    const int64_t keys = hp->n_state_key_head * hp->state_key_dim, values = hp->n_state_head * hp->state_value_dim;
    return part == PP_KEYS_QKV ? 2 * keys + values : part == PP_KEYS_GATES ? values : hp->n_state_head;
}

int64_t pp_key_part_row(const struct pp_hparams *hp, enum pp_key_part part, int64_t r)
{
    const int64_t n = hp->n_state_key_head, share = hp->n_state_head / n, key = hp->state_key_dim;
    const int64_t value = share * hp->state_value_dim;
    const bool numbers = part == PP_KEYS_BETA || part == PP_KEYS_DECAYS;
    int64_t each = numbers ? share : value, before = part == PP_KEYS_DECAYS ? share : 0;
    if (part == PP_KEYS_GATES)
        before = 2 * key + value;
    if (part == PP_KEYS_QKV && r < 2 * n * key) { /* queries of all keys come first, then the keys */
        before = r / (n * key) * key;
        each = key;
        r %= n * key;
    } else if (part == PP_KEYS_QKV) {
        before = 2 * key;
        r -= 2 * n * key;
    }
    return r / each * 2 * (numbers ? share : key + value) + before + r % each;
}
