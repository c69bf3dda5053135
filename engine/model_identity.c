/* model_identity.c - SHA-256 over all that a model's results depend on, to which snapshots and adapters are tied; and a
 * cache of it, as it takes a second for each gigabyte. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/gguf.h"
#include "engine/model.h"

/* --- the cache --------------------------------------------------------------------------------------------- */

static void add_id(struct pp_buf *b, const struct pp_file_id *id)
{
    pp_buf_fmt(b, "%llu-%llu-%lld-%lld.%09lld\n", (unsigned long long)id->dev, (unsigned long long)id->ino,
               (long long)id->size, (long long)id->mtime_s, (long long)id->mtime_ns);
}

static void add_stat(struct pp_buf *b, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return;
    const struct pp_file_id id = pp_file_id(&st);
    add_id(b, &id);
}

static void add_folder(struct pp_buf *b, const char *folder)
{
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
}

/* CACHE/identity/HASH: 64 hexadecimal digits and a newline. "": there is no cache. The hash is of the identities of the
 * open files, as the path may lead to others by now, and of the hyperparameters that were read from them. */
static void cache_path(const struct pp_model *m, const char *cache_dir, char *out, size_t cap)
{
    const int n = snprintf(out, cap, "%s/identity/%016llx%016llx", cache_dir, (unsigned long long)m->files.hi,
                           (unsigned long long)m->files.lo);
    if (!m->files_known || n < 0 || (size_t)n >= cap)
        out[0] = 0;
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

/* Hashes a rare number of a layer; `letter` tells which. */
static void hash_of_layer(struct pp_sha256_stream *s, int layer, char letter, float v)
{
    char text[64];
    const int n = snprintf(text, sizeof text, "%c %d %a\n", letter, layer, (double)v);
    if (v != 0.0f)
        pp_sha256_update(s, text, (size_t)n);
}

/* Rare hyperparameters are hashed only where a model has them. */
static void hash_rare(struct pp_sha256_stream *s, const struct pp_hparams *hp)
{
    const struct {
        const char *name;
        double v;
    } rare[] = {
        {"attention scale", (double)hp->attn_scale},
        {"attention cap", (double)hp->attn_softcap},
        {"logit cap", (double)hp->final_softcap},
        {"router cap", (double)hp->router_softcap},
        {"head gates", hp->per_head_gates},
        {"embedding scale", (double)hp->embd_scale},
        {"residual scale", (double)hp->residual_scale},
        {"logit scale", (double)hp->logit_scale},
        {"local rope", (double)hp->rope_base_local},
        {"no truncation", hp->rope_no_truncate},
        {"attention temperature", (double)hp->attn_temperature},
        {"temperature length", (double)hp->attn_temperature_length},
        {"logarithm length", (double)hp->attn_log_length},
        {"dense beside", hp->dense_parallel},
        {"experts share", (double)hp->n_expert_share},
        {"share scale", (double)hp->expert_share_scale},
        {"chunks", hp->chunked},
        {"alibi", (double)hp->alibi},
        {"near blocks", (double)hp->n_local_blocks},
        {"taps of keys", (double)hp->kv_taps},
        {"far blocks", (double)hp->vert_stride},
        {"layers that see all", (double)hp->dense_attn_step},
        {"query bound", (double)hp->qkv_clamp},
        {"expert mixer", (double)hp->expert_mixer_jitter},
        {"shared mean", hp->shared_mean},
        {"mean square", hp->rms_norm},
        {"heads tiled", hp->heads_tiled},
        {"norms behind", hp->norms_after},
        {"silent", (double)hp->suppressed[0].end},
        {"pieces", (double)hp->qkv_pieces},
        {"norms behind parts", hp->post_norms},
        {"difference", hp->differential},
        {"difference as before", hp->lambda_of_previous},
        {"heads of noise", (double)hp->n_noise_head},
        {"powers of gates", hp->polynorm_gates},
        {"scores of keys", hp->key_scores},
        {"convolved heads", hp->convolved_heads},
        {"silent experts", hp->idle_output_zero},
        {"router's rank", (double)hp->router_rank},
        {"mixtures of heads", hp->head_mixture},
        {"value experts", (double)hp->n_value_expert},
        {"used value experts", (double)hp->n_value_expert_used},
        {"binary gates", hp->binary_gates},
        {"scans side by side", (double)hp->n_scan_head},
        {"loops", (double)hp->n_loops},
        {"low cycles", (double)hp->low_cycles},
        {"high cycles", (double)hp->high_cycles},
        {"mixed loops", hp->loops_mixed},
        {"loops without norms", hp->skip_loop_norm},
        {"queries' scale", (double)hp->query_scale},
        {"parallel", hp->parallel},
        {"experts", (double)hp->n_expert},
        {"used experts", (double)hp->n_expert_used},
        {"expert shares", hp->expert_no_renorm},
        {"expert sigmoids", hp->expert_sigmoids},
        {"expert scale", (double)hp->expert_scale},
        {"expert groups", (double)hp->n_expert_group},
        {"used groups", (double)hp->n_expert_group_used},
        {"expert roots", hp->expert_sqrt_softplus},
        {"tables", (double)hp->n_hash_routed_layers},
        {"compressed", hp->compressed},
        {"output groups", (double)hp->o_groups},
        {"groups by largest", hp->expert_group_largest},
        {"latent", (double)hp->kv_lora_rank},
        {"idle experts", (double)hp->n_expert_idle},
        {"latent scale", (double)hp->latent_scale},
        {"local latent", (double)hp->kv_lora_rank_local},
        {"local unrotated", (double)hp->qk_nope_dim_local},
        {"local value size", (double)hp->v_head_dim_local},
        {"query latent", (double)hp->q_lora_rank},
        {"unrotated", (double)hp->qk_nope_dim},
        {"value size", (double)hp->v_head_dim},
        {"taps", (double)hp->conv_taps},
        {"state heads", (double)hp->n_state_head},
        {"state keys", (double)hp->n_state_key_head},
        {"state key size", (double)hp->state_key_dim},
        {"state value size", (double)hp->state_value_dim},
        {"state tiled", hp->state_tiled},
        {"state twice", hp->beta_doubled},
        {"taps' rank", (double)hp->dynamic_conv_rank},
        {"kept layers", (double)hp->attn_res_block},
        {"skipped share", (double)hp->skip_share},
        {"picked positions", (double)hp->index_top_k},
        {"index by halves", hp->index_neox},
        {"norms of sums", hp->post_ln},
        {"picked block", (double)hp->index_block},
        {"local blocks", (double)hp->index_n_local},
        {"pooled keys", hp->index_pooled},
        {"mean of streams", hp->stream_mean},
        {"state groups", (double)hp->state_groups},
        {"state silu", hp->state_silu},
        {"rotated states", hp->state_rotated},
        {"steady states", hp->same_decays},
        {"plain norms", hp->nonparametric_norms},
        {"no last norm", hp->no_output_norm},
        {"two norms", hp->two_norms},
        {"unit output", hp->unit_output},
        {"silent first", (double)hp->suppressed[0].first},
        {"backwards", hp->rope_reversed},
        {"logarithm of YaRN", (double)hp->yarn_log_multiplier},
        {"shared blocks", (double)hp->n_shared_block},
        {"mamba", hp->mamba},
        {"rwkv", hp->rwkv},
        {"kda", hp->kda},
        {"mlstm", hp->mlstm},
        {"gate cap", (double)hp->gate_cap},
        {"rwkv in qwen", hp->rwkv_qwen},
        {"decay bound", (double)hp->decay_bound},
        {"rwkv 4", hp->rwkv4},
        {"filtered", hp->localized_filtering},
        {"rwkv 6", hp->rwkv6},
        {"halved", (double)hp->rescale_every},
        {"state rank", (double)hp->state_rank},
        {"unit states", hp->dt_bc_norms},
        {"states by head", hp->state_by_head},
        {"state epsilon", (double)hp->state_eps},
        {"one part", hp->one_part},
        {"expert width", (double)hp->n_embd_expert},
        {"beside", hp->states_parallel},
        {"states normed", hp->state_norm},
        {"states' mean", hp->states_mean},
        {"start", (double)hp->n_meta_tokens},
        {"local heads", (double)hp->head_dim_local},
        {"value scale", (double)hp->attn_value_scale},
        {"activation", (double)hp->activation},
        {"n-grams", (double)hp->ngram.size},
        {"n-gram splits", (double)hp->ngram.splits},
        {"n-gram rows", (double)hp->ngram.base},
        {"n-gram end", (double)hp->ngram.end},
        {"hashed tokens", (double)hp->hashed.size},
        {"hashes", (double)hp->hashed.heads},
        {"hashed width", (double)hp->hashed.width},
        {"hashed taps", (double)hp->hashed.taps},
        {"hashed layer", (double)hp->hashed.layer},
        {"hashed end", (double)hp->hashed.end},
        {"hash seed", (double)hp->hashed.seed},
        {"hashed rows", (double)hp->hashed.n_rows[0]},
        {"norm groups", (double)hp->norm_groups},
        {"norm rank", (double)hp->norm_rank},
        {"state scale", (double)hp->state_scale},
        {"stream rank", (double)hp->stream_rank},
        {"state sigmoids", hp->state_sigmoids},
        {"streams", (double)hp->n_stream},
        {"hyper", hp->hyper},
        {"stream epsilon", (double)hp->connection.eps},
        {"stream magnitude", (double)hp->connection.write_scale},
        {"written epsilon", (double)hp->connection.write_eps},
        {"stream rounds", (double)hp->connection.sinkhorn_iters},
        {"local rotated", (double)hp->rope_dim_local},
        {"turning", (double)hp->rope_n_pairs},
        {"layers' inputs", (double)hp->n_embd_layer},
        {"vectors", (double)hp->n_embd_out},
        {"keys as values", hp->keys_as_values},
    };
    for (size_t i = 0; i < sizeof rare / sizeof *rare; i++) {
        char text[64];
        int n = snprintf(text, sizeof text, "%s %a\n", rare[i].name, rare[i].v);
        if (rare[i].v != 0)
            pp_sha256_update(s, text, (size_t)n);
    }
}

/* The same for those of layers. */
static void hash_rare_layers(struct pp_sha256_stream *s, const struct pp_hparams *hp)
{
    for (int i = 0; i < PP_N_STREAM_SCALES; i++) {
        hash_of_layer(s, i, 'A', hp->stream_scales[i][0]); /* of a kind of part instead of a layer */
        hash_of_layer(s, i, 'B', hp->stream_scales[i][1]);
    }
    for (int l = 0; l < (int)hp->n_layer; l++) {
        const uint8_t special[4] = {hp->layer[l], (uint8_t)l, (uint8_t)(l >> 8), 'L'};
        if (hp->layer[l])
            pp_sha256_update(s, special, sizeof special);
        hash_of_layer(s, l, 'S', hp->sparsity[l]);
        hash_of_layer(s, l, 'G', hp->gate_bound[l]);
        hash_of_layer(s, l, 'E', hp->expert_bound[l]);
        hash_of_layer(s, l, 'C', (float)hp->compress[l]);
        hash_of_layer(s, l, 'K', (float)hp->skips[l]);
        if (hp->sizes_vary)
            pp_sha256_update(s, &hp->sizes[l], sizeof hp->sizes[l]);
        if (hp->experts_vary)
            hash_of_layer(s, l, 'U', (float)hp->layer_experts[l].n_used);
    }
}

/* Hashes all that results depend on, except tensors. */
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
    if (hp->switched.n) {
        const size_t size = (size_t)hp->switched.n * sizeof *hp->switched.token;
        pp_sha256_update(s, hp->switched.token, size);
        pp_sha256_update(s, hp->switched.read_as, size);
        pp_sha256_update(s, &hp->switched.gain, sizeof hp->switched.gain);
    }
    if (hp->window)
        n += (size_t)snprintf(text + n, sizeof text - n, "window %lld\n", (long long)hp->window);
    if (hp->rope_scaling == PP_ROPE_LONG) /* the factor of cosines and sines depends on it */
        n += (size_t)snprintf(text + n, sizeof text - n, "context %lld\n", (long long)hp->n_ctx_train);
    pp_sha256_update(s, text, n); /* at most 64 + 21 numbers of 24 characters */
    hash_rare(s, hp);
    hash_rare_layers(s, hp);
}

/* Included because another version of pippin may read other numbers from the same files, and must not take over this
 * version's identity. */
static void add_hparams(struct pp_buf *b, const struct pp_hparams *hp)
{
    struct pp_sha256_stream s;
    char hex[65];
    pp_sha256_begin(&s);
    hash_hparams(&s, hp);
    const struct pp_sha256 hash = pp_sha256_end(&s);
    pp_sha256_hex(&hash, hex);
    pp_buf_str(b, hex);
}

void pp_model_note_files(struct pp_model *m)
{
    struct pp_buf b = {0};
    const char *folder = pp_source_folder(m->source);
    for (int i = 0; i < pp_source_n_files(m->source); i++)
        if (pp_gguf_file_id(pp_source_file(m->source, i))->ino)
            add_id(&b, pp_gguf_file_id(pp_source_file(m->source, i)));
    if (folder) {
        add_folder(&b, folder);
        if (pp_source_quant(m->source))
            pp_buf_str(&b, pp_source_quant(m->source));
        if (pp_source_imatrix(m->source))
            add_stat(&b, pp_source_imatrix(m->source));
    }
    m->files_known = b.len > 0;
    add_hparams(&b, pp_source_hparams(m->source));
    m->files_known = m->files_known && !b.bad;
    if (m->files_known)
        m->files = pp_hash128(b.data, b.len);
    pp_buf_free(&b);
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

/* If a cache file cannot be written, that costs time, no more. */
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

bool pp_model_identity_known(const struct pp_model *model, const char *cache_dir, struct pp_sha256 *out)
{
    struct pp_model *m = (struct pp_model *)(uintptr_t)model; /* only the memo changes, under its lock */
    char path[1024] = "";
    if (pthread_mutex_trylock(&m->identity_lock) != 0)
        return false; /* somebody is finding it just now */
    if (!m->identity_known && cache_dir) {
        cache_path(m, cache_dir, path, sizeof path);
        m->identity_known = path[0] && read_cached(path, &m->identity);
    }
    bool known = m->identity_known;
    *out = m->identity;
    pthread_mutex_unlock(&m->identity_lock);
    return known;
}
