#include "engine/model.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/text.h"

static char *model_name(const struct pp_source *s)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
    char name[256];
    pp_name_of_path(pp_source_path(s), name, sizeof name);
    return pp_strdup(hp->name[0] ? hp->name : name);
}

static int64_t n_values(const struct pp_tensor *t)
{
    return t ? t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3] : 0;
}

/* Parameters of experts that are not chosen for a token. */
static int64_t params_at_rest(const struct pp_plan *p)
{
    int64_t sum = 0;
    for (int i = 0; i < p->n_experts; i++) {
        const struct pp_experts *x = &p->experts[i];
        const int64_t biases = n_values(x->gate_b) + n_values(x->up_b) + n_values(x->down_b);
        const int64_t gate = x->gate ? n_values(x->gate[0]) : 0;
        const int64_t each = gate + (x->up ? n_values(x->up[0]) : 0) + n_values(x->down[0]) + biases / x->n;
        const int n = pp_experts_matrices(x); /* of shared ones as few work as could be */
        sum += (n > x->n_used ? n - x->n_used : 0) * each;
    }
    return sum;
}

enum pp_code pp_model_open(const char *path, struct pp_model **out, struct pp_error *err)
{
    return pp_model_open_as(path, NULL, NULL, out, err);
}

enum pp_code pp_model_open_as(const char *path, const char *quant, const char *imatrix, struct pp_model **out,
                              struct pp_error *err)
{
    struct pp_error own;
    err = err ? err : &own;
    *out = NULL;
    struct pp_model *m = pp_calloc(1, sizeof *m);
    if (!m)
        return pp_fail_nomem(err, "the model");
    pthread_mutex_init(&m->identity_lock, NULL);
    enum pp_code code = pp_source_open_as(path, quant, imatrix, &m->source, err);
    if (!code)
        code = pp_plan_build(m->source, &m->plan, err);
    if (!code) {
        code = pp_tokenizer_from_source(m->source, &m->tokenizer, err);
        if (code == PP_ERR_NOT_FOUND) { /* runs on ids alone */
            m->tokenizer = NULL;
            code = PP_OK;
        }
    }
    if (!code && !(m->name = model_name(m->source)))
        code = pp_fail_nomem(err, "the model's name");
    if (code) {
        pp_model_close(m);
        return code;
    }
    const struct pp_hparams *hp = pp_source_hparams(m->source);
    m->info = (struct pp_model_info){
        .path = pp_source_path(m->source),
        .name = m->name,
        .arch = hp->arch,
        .type_name = pp_source_type_name(m->source),
        .chat_template = pp_source_chat_template(m->source),
        .tool_template = pp_source_tool_template(m->source),
        .n_params = pp_source_n_params(m->source),
        .n_params_active = pp_source_n_params(m->source) - params_at_rest(&m->plan),
        .n_expert = hp->n_expert,
        .n_expert_used = hp->n_expert ? hp->n_expert_used : 0,
        .bytes = pp_source_bytes(m->source),
        .n_ctx_train = hp->n_ctx_train,
        .n_vocab = hp->n_vocab,
        .n_embd = hp->n_embd,
        .n_layer = hp->n_layer,
        .n_head = hp->n_head,
        .n_head_kv = hp->n_head_kv,
        .head_dim = hp->head_dim,
        .n_ff = hp->n_ff,
        .encoder = m->plan.encoder,
        .pooling = (enum pp_pooling)hp->pooling,
    };
    *out = m;
    return PP_OK;
}

void pp_model_close(struct pp_model *m)
{
    if (!m)
        return;
    pp_plan_free(&m->plan);
    pp_tokenizer_free(m->tokenizer);
    pp_source_close(m->source);
    pthread_mutex_destroy(&m->identity_lock);
    pp_free(m->name);
    pp_free(m);
}

const struct pp_model_info *pp_model_info(const struct pp_model *m)
{
    return &m->info;
}

const struct pp_tokenizer *pp_model_tokenizer(const struct pp_model *m)
{
    return m->tokenizer;
}

enum pp_code pp_model_check_writes(const struct pp_model *m, struct pp_error *err)
{
    if (!m->plan.encoder)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED,
                   "%s is an encoder (%s): it makes vectors of texts (pippin embed -m ...), but writes none, so one "
                   "cannot talk with it; choose another model", m->info.path, m->info.arch);
}

/* --- identity ---------------------------------------------------------------------------------------------- */

static void add_stat(struct pp_buf *b, const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0)
        pp_buf_fmt(b, "%llu-%llu-%lld-%lld.%09ld\n", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino,
                   (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
}

/* What the file system says of the model's files; a changed file has another name in the cache. "" if it cannot be
 * told. */
static void stat_key(const struct pp_model *m, struct pp_buf *b)
{
    const char *folder = pp_source_folder(m->source);
    for (int i = 0; i < pp_source_n_files(m->source); i++)
        add_stat(b, pp_gguf_path(pp_source_file(m->source, i)));
    if (!folder)
        return;
    struct dirent **names;
    int n = scandir(folder, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[4096];
        if (names[i]->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
            add_stat(b, path);
        }
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    if (pp_source_quant(m->source))
        pp_buf_str(b, pp_source_quant(m->source));
    if (pp_source_imatrix(m->source))
        add_stat(b, pp_source_imatrix(m->source));
}

/* CACHE/identity/HASH: 64 hexadecimal digits and a newline. "" if there is no such place. */
static void cache_path(const struct pp_model *m, const char *cache_dir, char *out, size_t cap)
{
    struct pp_buf key = {0};
    stat_key(m, &key);
    out[0] = 0;
    if (!key.bad && key.len) {
        struct pp_hash128 h = pp_hash128(key.data, key.len);
        int n = snprintf(out, cap, "%s/identity/%016llx%016llx", cache_dir, (unsigned long long)h.hi,
                         (unsigned long long)h.lo);
        if (n < 0 || (size_t)n >= cap)
            out[0] = 0;
    }
    pp_buf_free(&key);
}

static bool read_cached(const char *path, struct pp_sha256 *id)
{
    char *text;
    size_t n;
    if (pp_read_file(path, 256, &text, &n, NULL) != PP_OK)
        return false;
    bool good = n == 65 && text[64] == '\n';
    for (int i = 0; good && i < 32; i++) {
        unsigned byte;
        char pair[3] = {text[2 * i], text[2 * i + 1], 0};
        good = strspn(pair, "0123456789abcdef") == 2 && sscanf(pair, "%2x", &byte) == 1;
        if (good)
            id->bytes[i] = (uint8_t)byte;
    }
    pp_free(text);
    return good;
}

/* A number of a layer that few models have; which one, by `letter`. */
static void hash_of_layer(struct pp_sha256_stream *s, int layer, char letter, float v)
{
    char text[64];
    const int n = snprintf(text, sizeof text, "%c %d %a\n", letter, layer, (double)v);
    if (v != 0.0f)
        pp_sha256_update(s, text, (size_t)n);
}

/* What many models do not have stays out of the hash there. */
static void hash_rare(struct pp_sha256_stream *s, const struct pp_hparams *hp)
{
    const struct {
        const char *name;
        double v;
    } rare[] = {
        {"attention scale", (double)hp->attn_scale},     {"attention cap", (double)hp->attn_softcap},
        {"logit cap", (double)hp->final_softcap},        {"router cap", (double)hp->router_softcap},
        {"head gates", hp->head_gates},                  {"embedding scale", (double)hp->embd_scale},
        {"residual scale", (double)hp->residual_scale},  {"logit scale", (double)hp->logit_scale},
        {"local rope", (double)hp->rope_base_local},     {"no truncation", hp->rope_no_truncate},
        {"attention temperature", (double)hp->attn_temperature},
        {"temperature length", (double)hp->attn_temperature_length},
        {"logarithm length", (double)hp->attn_log_length}, {"dense beside", hp->dense_beside},
        {"experts share", (double)hp->n_expert_share}, {"share scale", (double)hp->expert_share_scale},
        {"chunks", hp->chunked}, {"alibi", (double)hp->alibi}, {"near blocks", (double)hp->n_near},
        {"taps of keys", (double)hp->kv_taps},
        {"far blocks", (double)hp->far_step}, {"layers that see all", (double)hp->near_step},
        {"query bound", (double)hp->qkv_clamp},          {"expert mixer", (double)hp->expert_mixer},
        {"shared mean", hp->shared_mean}, {"mean square", hp->mean_square},
        {"heads tiled", hp->heads_tiled}, {"norms behind", hp->norms_behind},
        {"silent", (double)hp->silent[0].end},              {"pieces", (double)hp->qkv_pieces},
        {"norms behind parts", hp->post_norms}, {"difference", hp->differential},
        {"scores of keys", hp->key_scores}, {"convolved heads", hp->convolved_heads},
        {"silent experts", hp->idle_silent}, {"router's rank", (double)hp->router_rank},
        {"mixtures of heads", hp->head_mixture}, {"scans side by side", (double)hp->n_scan_head},
        {"loops", (double)hp->n_loops},                  {"loops without norms", hp->loops_unnormed},
        {"queries' scale", (double)hp->query_scale},
        {"parallel", hp->parallel},                      {"experts", (double)hp->n_expert},
        {"used experts", (double)hp->n_expert_used},     {"expert shares", hp->expert_shares},
        {"expert sigmoids", hp->expert_sigmoids},        {"expert scale", (double)hp->expert_scale},
        {"expert groups", (double)hp->n_expert_group},   {"used groups", (double)hp->n_expert_group_used},
        {"expert roots", hp->expert_roots},              {"tables", (double)hp->n_table_layer},
        {"compressed", hp->compressed},                  {"output groups", (double)hp->o_groups},
        {"groups by largest", hp->expert_group_largest}, {"latent", (double)hp->kv_lora_rank},
        {"idle experts", (double)hp->n_expert_idle},     {"latent scale", (double)hp->latent_scale},
        {"query latent", (double)hp->q_lora_rank},       {"unrotated", (double)hp->qk_nope_dim},
        {"value size", (double)hp->v_head_dim},          {"taps", (double)hp->conv_taps},
        {"state heads", (double)hp->n_state_head},       {"state keys", (double)hp->n_state_key_head},
        {"state key size", (double)hp->state_key_dim},   {"state value size", (double)hp->state_value_dim},
        {"state tiled", hp->state_tiled},                {"state twice", hp->state_twice},
        {"kept layers", (double)hp->bank_step},          {"picked positions", (double)hp->index_top_k},
        {"index by halves", hp->index_halves},           {"norms of sums", hp->norms_of_sums},
        {"picked block", (double)hp->index_block},       {"local blocks", (double)hp->index_local},
        {"pooled keys", hp->index_pooled},               {"mean of streams", hp->stream_mean},
        {"state groups", (double)hp->state_groups},      {"state silu", hp->state_silu},
        {"rotated states", hp->state_rotated},
        {"plain norms", hp->plain_norms},                {"no last norm", hp->no_output_norm},
        {"two norms", hp->two_norms},                    {"unit output", hp->unit_output},
        {"silent first", (double)hp->silent[0].first},           {"backwards", hp->rope_backwards},
        {"logarithm of YaRN", (double)hp->yarn_log_multiplier}, {"shared blocks", (double)hp->n_shared_block},
        {"mamba", hp->mamba},
        {"rwkv", hp->rwkv},                              {"kda", hp->kda},
        {"rwkv in qwen", hp->rwkv_qwen},                 {"decay bound", (double)hp->decay_bound},
        {"rwkv 4", hp->rwkv4},                           {"filtered", hp->filtered},
        {"rwkv 6", hp->rwkv6},                           {"halved", (double)hp->halved_every},
        {"state rank", (double)hp->state_rank},          {"unit states", hp->state_unit},
        {"states by head", hp->state_by_head},
        {"state epsilon", (double)hp->state_eps},
        {"one part", hp->one_part},                      {"expert width", (double)hp->n_embd_expert},
        {"beside", hp->states_beside},                   {"states normed", hp->state_norm},
        {"local heads", (double)hp->head_dim_local},     {"value scale", (double)hp->attn_value_scale},
        {"activation", (double)hp->activation},
        {"n-grams", (double)hp->ngram.size},             {"n-gram splits", (double)hp->ngram.splits},
        {"n-gram rows", (double)hp->ngram.base},         {"n-gram end", (double)hp->ngram.end},
        {"hashed tokens", (double)hp->hashed.size},      {"hashes", (double)hp->hashed.heads},
        {"hashed width", (double)hp->hashed.width},      {"hashed taps", (double)hp->hashed.taps},
        {"hashed layer", (double)hp->hashed.layer},      {"hashed end", (double)hp->hashed.end},
        {"hash seed", (double)hp->hashed.seed},          {"hashed rows", (double)hp->hashed.n_rows[0]},
        {"norm groups", (double)hp->norm_groups},        {"norm rank", (double)hp->norm_rank},
        {"state scale", (double)hp->state_scale},
        {"stream rank", (double)hp->stream_rank},        {"state sigmoids", hp->state_sigmoids},
        {"streams", (double)hp->n_stream},               {"hyper", hp->hyper},
        {"stream epsilon", (double)hp->connection.least}, {"stream magnitude", (double)hp->connection.most},
        {"written epsilon", (double)hp->connection.write_least}, {"stream rounds", (double)hp->connection.rounds},
        {"local rotated", (double)hp->rope_dim_local},  {"turning", (double)hp->rope_turning},
        {"layers' inputs", (double)hp->n_embd_layer},   {"keys as values", hp->keys_as_values},
    };
    for (size_t i = 0; i < sizeof rare / sizeof *rare; i++) {
        char text[64];
        int n = snprintf(text, sizeof text, "%s %a\n", rare[i].name, rare[i].v);
        if (rare[i].v != 0)
            pp_sha256_update(s, text, (size_t)n);
    }
    for (int i = 0; i < PP_N_STREAM_SCALES; i++)
        if (hp->stream_scales[i][0] != 0.0f || hp->stream_scales[i][1] != 0.0f)
            pp_sha256_update(s, hp->stream_scales[i], sizeof hp->stream_scales[i]);
    for (int l = 0; l < (int)hp->n_layer; l++) {
        const uint8_t special[4] = {hp->layer[l], (uint8_t)l, (uint8_t)(l >> 8), 'L'};
        if (hp->layer[l])
            pp_sha256_update(s, special, sizeof special);
        hash_of_layer(s, l, 'S', hp->sparsity[l]);
        hash_of_layer(s, l, 'G', hp->gate_bound[l]);
        hash_of_layer(s, l, 'E', hp->expert_bound[l]);
        hash_of_layer(s, l, 'C', (float)hp->compress[l]);
        if (hp->uneven)
            pp_sha256_update(s, &hp->sizes[l], sizeof hp->sizes[l]);
    }
}

/* Everything that results depend on and that is no tensor. */
static void hash_hparams(struct pp_sha256_stream *s, const struct pp_hparams *hp)
{
    const int64_t whole[] = {hp->n_vocab, hp->n_embd, hp->n_layer, hp->n_head, hp->n_head_kv, hp->head_dim, hp->n_ff};
    char text[1024];
    size_t n = (size_t)snprintf(text, sizeof text, "%s", hp->arch);
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, " %lld", (long long)whole[i]);
    n += (size_t)snprintf(text + n, sizeof text - n, " %a %a %lld %d %d %a %a %a %lld %a %a %a\n", (double)hp->norm_eps,
                          (double)hp->rope_base, (long long)hp->rope_dim, hp->rope_neox, hp->rope_scaling,
                          (double)hp->rope_factor, (double)hp->rope_low_freq, (double)hp->rope_high_freq,
                          (long long)hp->rope_orig_ctx, (double)hp->rope_attn_factor, (double)hp->rope_beta_fast,
                          (double)hp->rope_beta_slow);
    if (hp->window)
        n += (size_t)snprintf(text + n, sizeof text - n, "window %lld\n", (long long)hp->window);
    pp_sha256_update(s, text, n); /* at most 64 + 20 numbers of 24 characters */
    hash_rare(s, hp);
}

static struct pp_sha256 hash_model(const struct pp_source *source)
{
    struct pp_sha256_stream s;
    pp_sha256_begin(&s);
    hash_hparams(&s, pp_source_hparams(source));
    for (size_t i = 0; i < pp_source_n_tensors(source); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(source, i);
        pp_sha256_update(&s, t->name, strlen(t->name) + 1);
        pp_sha256_update(&s, &t->type, sizeof t->type);
        pp_sha256_update(&s, t->ne, sizeof t->ne);
        pp_sha256_update(&s, t->data, t->size);
    }
    return pp_sha256_end(&s);
}

/* Only a cache: failing to write it costs time, no more. */
static void write_cached(const char *cache_dir, const char *path, const struct pp_sha256 *id)
{
    char text[66], folder[1024];
    pp_sha256_hex(id, text);
    text[64] = '\n';
    snprintf(folder, sizeof folder, "%s/identity", cache_dir); /* shorter than path, which fitted */
    mkdir(cache_dir, 0700);
    mkdir(folder, 0700);
    pp_write_file(path, text, 65, 0600, NULL);
}

enum pp_code pp_model_identity(const struct pp_model *model, const char *cache_dir, struct pp_sha256 *out,
                               struct pp_error *err)
{
    struct pp_model *m = (struct pp_model *)(uintptr_t)model; /* only the memo below changes, under its lock */
    char path[1024] = "";
    enum pp_code code = PP_OK;
    pthread_mutex_lock(&m->identity_lock);
    if (!m->identity_known) {
        if (cache_dir)
            cache_path(m, cache_dir, path, sizeof path);
        if (!path[0] || !read_cached(path, &m->identity)) {
            code = pp_source_fill(m->source, NULL, &(struct pp_fill_options){0}, err);
            if (!code) {
                m->identity = hash_model(m->source);
                code = pp_source_check(m->source, err);
            }
            if (!code && path[0])
                write_cached(cache_dir, path, &m->identity);
        }
        m->identity_known = code == PP_OK;
    }
    *out = m->identity;
    pthread_mutex_unlock(&m->identity_lock);
    return code;
}

bool pp_model_file_key(const struct pp_model *m, struct pp_hash128 *key)
{
    const int n = pp_source_n_files(m->source);
    struct pp_buf ids = {0};
    bool known = n > 0;
    for (int i = 0; i < n; i++) {
        const struct pp_file_id *id = pp_gguf_file_id(pp_source_file(m->source, i));
        known = known && id->ino;
        pp_buf_add(&ids, (const char *)id, sizeof *id);
    }
    known = known && !ids.bad;
    if (known)
        *key = pp_hash128(ids.data, ids.len);
    pp_buf_free(&ids);
    return known;
}

/* Whether the paths still lead to the files that were opened: the cached identity is looked up by path. */
static bool is_same_file(const struct pp_model *m)
{
    const int n = pp_source_n_files(m->source);
    for (int i = 0; i < n; i++) {
        const struct pp_gguf *g = pp_source_file(m->source, i);
        struct stat st;
        if (stat(pp_gguf_path(g), &st) != 0)
            return false;
        const struct pp_file_id now = pp_file_id(&st);
        if (memcmp(&now, pp_gguf_file_id(g), sizeof now) != 0)
            return false;
    }
    return n > 0;
}

bool pp_model_identity_known(const struct pp_model *model, const char *cache_dir, struct pp_sha256 *out)
{
    struct pp_model *m = (struct pp_model *)(uintptr_t)model; /* only the memo changes, under its lock */
    char path[1024] = "";
    if (pthread_mutex_trylock(&m->identity_lock) != 0)
        return false; /* somebody is finding it just now */
    if (!m->identity_known && is_same_file(m)) {
        cache_path(m, cache_dir, path, sizeof path);
        m->identity_known = path[0] && read_cached(path, &m->identity);
    }
    bool known = m->identity_known;
    *out = m->identity;
    pthread_mutex_unlock(&m->identity_lock);
    return known;
}
