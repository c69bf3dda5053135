#include "tests/gemma_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/safetensors.h"
#include "tests/gguf_file.h"
#include "tests/random_array.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { MAX_TENSORS = 200 };
static const double EPSILON = 1e-5, BASE = 1e6, LOCAL_BASE = 10000, DEVIATIONS = 0.5;

struct gemma {
    struct gemma_shape s;
    struct array t[MAX_TENSORS];
    int n;
    uint32_t random;
};

struct gemma_shape gemma_shape(void)
{
    return (struct gemma_shape){.n_vocab = 80, .n_embd = 48, .n_layer = 6, .n_head = 4, .n_ff = 64, .window = 9,
                                .wide = 3, .head_dim = 8, .n_head_kv = 2, .wide_head_dim = 16, .wide_n_head_kv = 2,
                                .turning = 2, .n_shared = 2, .double_wide = true, .n_embd_layer = 12, .softcap = 20,
                                .seed = 1};
}

struct gemma_shape gemma_streams(void)
{
    struct gemma_shape s = gemma_shape();
    s.wide_head_dim = s.head_dim;
    s.turning = s.head_dim / 2;
    s.double_wide = false;
    s.n_stream = 4;
    s.laurel_rank = 5;
    s.n_sparse = 2;
    return s;
}

struct gemma_shape gemma_vectors(void)
{
    struct gemma_shape s = gemma_shape();
    s.turning = s.wide_head_dim / 2;
    s.wide_n_head_kv = 1;
    s.n_shared = 0;
    s.double_wide = false;
    s.softcap = 0;
    s.n_embd_out = 72;
    return s;
}

static bool is_wide(const struct gemma_shape *s, int l)
{
    return (l + 1) % s->wide == 0;
}

static bool is_shared(const struct gemma_shape *s, int l)
{
    return l >= s->n_layer - s->n_shared;
}

static int dim_of(const struct gemma_shape *s, int l)
{
    return is_wide(s, l) ? s->wide_head_dim : s->head_dim;
}

static int kv_of(const struct gemma_shape *s, int l)
{
    return is_wide(s, l) ? s->wide_n_head_kv : s->n_head_kv;
}

static int ff_of(const struct gemma_shape *s, int l)
{
    return s->double_wide && is_shared(s, l) ? 2 * s->n_ff : s->n_ff;
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

static void add(struct gemma *g, int l, const char *kind, int64_t matrices, int64_t rows, int64_t cols, float middle,
                float spread)
{
    assert_true(g->n < MAX_TENSORS);
    array_make(&g->t[g->n++], l, kind, matrices, rows, cols, middle, spread, &g->random);
}

static void add_matrix(struct gemma *g, int l, const char *kind, int64_t rows, int64_t cols)
{
    add(g, l, kind, 0, rows, cols, 0, 2 * sqrtf(3.0f / (float)cols));
}

static void add_norm(struct gemma *g, int l, const char *kind, int64_t n)
{
    add(g, l, kind, 0, 0, n, 1, 0.5f);
}

static void add_attention(struct gemma *g, int l)
{
    const struct gemma_shape *s = &g->s;
    const int dim = dim_of(s, l), n_kv = kv_of(s, l) * dim;
    add_norm(g, l, "attn_norm.weight", s->n_embd);
    add_matrix(g, l, "attn_q.weight", s->n_head * dim, s->n_embd);
    add_norm(g, l, "attn_q_norm.weight", dim);
    if (!is_shared(s, l)) {
        add_matrix(g, l, "attn_k.weight", n_kv, s->n_embd);
        add_norm(g, l, "attn_k_norm.weight", dim);
        if (!(s->keys_as_values && is_wide(s, l)))
            add_matrix(g, l, "attn_v.weight", n_kv, s->n_embd);
    }
    add_matrix(g, l, "attn_output.weight", s->n_embd, s->n_head * dim);
    add_norm(g, l, "post_attention_norm.weight", s->n_embd);
}

static void add_experts(struct gemma *g, int l)
{
    const struct gemma_shape *s = &g->s;
    const float of_embd = 2 * sqrtf(3.0f / (float)s->n_embd), of_ff = 2 * sqrtf(3.0f / (float)s->n_ff_expert);
    add_matrix(g, l, "ffn_gate_inp.weight", s->n_expert, s->n_embd);
    add_norm(g, l, "ffn_gate_inp.scale", s->n_embd);
    add(g, l, "ffn_gate_exps.weight", s->n_expert, s->n_ff_expert, s->n_embd, 0, of_embd);
    add(g, l, "ffn_up_exps.weight", s->n_expert, s->n_ff_expert, s->n_embd, 0, of_embd);
    add(g, l, "ffn_down_exps.weight", s->n_expert, s->n_embd, s->n_ff_expert, 0, of_ff);
    add_norm(g, l, "ffn_down_exps.scale", s->n_expert);
    add_norm(g, l, "pre_ffw_norm_2.weight", s->n_embd);
    add_norm(g, l, "post_ffw_norm_1.weight", s->n_embd);
    add_norm(g, l, "post_ffw_norm_2.weight", s->n_embd);
}

/* The tensors of a layer that mixes several streams (Gemma 3n's AltUp). */
static void add_mixing(struct gemma *g, int l)
{
    const int n = g->s.n_stream;
    add_matrix(g, l, "laurel_l.weight", g->s.laurel_rank, g->s.n_embd);
    add_matrix(g, l, "laurel_r.weight", g->s.n_embd, g->s.laurel_rank);
    add_norm(g, l, "laurel_post_norm.weight", g->s.n_embd);
    add(g, l, "altup_router.weight", 0, n, g->s.n_embd, 0, 10);
    add_norm(g, l, "altup_router_norm.weight", g->s.n_embd);
    add(g, l, "altup_predict_coef.weight", 0, n * n, n, 0, 0.3f);
    add(g, l, "altup_correct_coef.weight", 0, n, n, 0, 0.5f);
    add_norm(g, l, "altup_correct_scale.weight", g->s.n_embd);
}

static void add_layer(struct gemma *g, int l)
{
    const struct gemma_shape *s = &g->s;
    add_attention(g, l);
    add_norm(g, l, "ffn_norm.weight", s->n_embd);
    add_matrix(g, l, "ffn_gate.weight", ff_of(s, l), s->n_embd);
    add_matrix(g, l, "ffn_up.weight", ff_of(s, l), s->n_embd);
    add_matrix(g, l, "ffn_down.weight", s->n_embd, ff_of(s, l));
    if (s->n_expert)
        add_experts(g, l);
    add_norm(g, l, "post_ffw_norm.weight", s->n_embd);
    if (s->n_stream)
        add_mixing(g, l);
    else
        add(g, l, "layer_output_scale.weight", 0, 0, 1, 0.8f, 0.1f);
    if (!s->n_embd_layer)
        return;
    add_matrix(g, l, "inp_gate.weight", s->n_embd_layer, s->n_embd);
    add_matrix(g, l, "proj.weight", s->n_embd, s->n_embd_layer);
    add_norm(g, l, "post_norm.weight", s->n_embd);
}

struct gemma *gemma_make(const struct gemma_shape *s)
{
    struct gemma *g = pp_calloc(1, sizeof *g);
    const int own = s->n_layer * s->n_embd_layer, half = s->wide_head_dim / 2;
    assert_non_null(g);
    g->s = *s;
    g->random = s->seed;
    add(g, -1, "token_embd.weight", 0, s->n_vocab, s->n_embd, 0, 0.5f);
    if (own) {
        if (!s->n_embd_out)
            add(g, -1, "per_layer_token_embd.weight", 0, s->n_vocab, own, 0, 0.5f);
        add_matrix(g, -1, "per_layer_model_proj.weight", own, s->n_embd);
        add_norm(g, -1, "per_layer_proj_norm.weight", s->n_embd_layer);
    }
    if (s->n_stream) {
        add(g, -1, "altup_proj.weight", s->n_stream - 1, s->n_embd, s->n_embd, 0, 0.3f);
        add(g, -1, "altup_unembd_proj.weight", s->n_stream - 1, s->n_embd, s->n_embd, 0, 0.3f);
    } else if (!s->n_embd_out) {
        add(g, -1, "rope_freqs.weight", 0, 0, half, 1, 0);
        for (int i = s->turning; i < half; i++)
            g->t[g->n - 1].values[i] = 1e30f;
    }
    for (int l = 0; l < s->n_layer; l++)
        add_layer(g, l);
    add_norm(g, -1, "output_norm.weight", s->n_embd);
    if (s->n_embd_out)
        add_matrix(g, -1, "output.weight", s->n_embd_out, s->n_embd);
    return g;
}

void gemma_free(struct gemma *g)
{
    for (int i = 0; i < g->n; i++)
        pp_free(g->t[i].values);
    pp_free(g);
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

/* Writes a vocabulary of letters, from id 4 on, each preceded by U+2581. */
static void write_letters(struct pp_gguf_writer *w, int n)
{
    static const char *const first[] = {"<unk>", "<s>", "</s>", "\xe2\x96\x81"};
    char names[128][8];
    struct pp_str texts[128];
    float scores[128] = {0};
    int32_t types[128];
    assert_true(n <= 128);
    for (int i = 0; i < n; i++) {
        if (i < 30)
            snprintf(names[i], sizeof names[i], "%c", 'a' + i - 4);
        else
            snprintf(names[i], sizeof names[i], "x%d", i);
        texts[i] = i < 4 ? (struct pp_str){first[i], strlen(first[i])} : (struct pp_str){names[i], strlen(names[i])};
        types[i] = i == 0 ? 2 : i < 3 ? 3 : 1;
    }
    pp_gguf_add_text(w, "tokenizer.ggml.model", "llama");
    pp_gguf_add_str_array(w, "tokenizer.ggml.tokens", texts, (size_t)n);
    pp_gguf_add_f32_array(w, "tokenizer.ggml.scores", scores, (size_t)n);
    pp_gguf_add_i32_array(w, "tokenizer.ggml.token_type", types, (size_t)n);
}

static void write_metadata(struct pp_gguf_writer *w, const struct gemma_shape *s)
{
    const int local = s->n_stream ? 0 : s->head_dim;
    const struct {
        const char *key;
        int v;
    } numbers[] = {
        {"block_count", s->n_layer}, {"context_length", 128}, {"embedding_length", s->n_embd},
        {"attention.head_count", s->n_head}, {"attention.key_length", s->wide_head_dim},
        {"attention.value_length", s->wide_head_dim}, {"rope.dimension_count", s->wide_head_dim},
        {"attention.sliding_window", s->n_embd_out ? 2 * (s->window - 1) : s->window},
        {"attention.shared_kv_layers", s->n_shared},
        {"embedding_length_per_layer_input", s->n_embd_layer}, {"attention.key_length_swa", local},
        {"attention.value_length_swa", local}, {"rope.dimension_count_swa", local},
        {"altup.num_inputs", s->n_stream}, {"expert_count", s->n_expert}, {"expert_used_count", s->n_used},
        {"expert_feed_forward_length", s->n_ff_expert}, {"embedding_length_out", s->n_embd_out},
        {"pooling_type", s->n_embd_out != 0},
    };
    const char *arch = s->n_embd_out ? "gemma-embedding2" : s->n_stream ? "gemma3n" : "gemma4";
    const size_t n_usual = s->n_stream ? 11 : 13; /* the rest: sizes of windowed layers that differ */
    int32_t kv[16], ff[16];
    float sparsity[16];
    bool windows[16];
    char key[96];
    assert_true(s->n_layer <= 16);
    pp_gguf_add_text(w, "general.architecture", arch);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, numbers[i].key);
        if (numbers[i].v || i < n_usual)
            pp_gguf_add_u32(w, key, (uint32_t)numbers[i].v);
    }
    for (int l = 0; l < s->n_layer; l++) {
        kv[l] = kv_of(s, l);
        ff[l] = ff_of(s, l);
        windows[l] = !is_wide(s, l);
        sparsity[l] = l < s->n_sparse ? (float)DEVIATIONS : -INFINITY;
    }
#define KEY(name) (snprintf(key, sizeof key, "%s." name, arch), key)
    pp_gguf_add_i32_array(w, KEY("attention.head_count_kv"), kv, (size_t)s->n_layer);
    pp_gguf_add_i32_array(w, KEY("feed_forward_length"), ff, (size_t)s->n_layer);
    pp_gguf_add_bool_array(w, KEY("attention.sliding_window_pattern"), windows, (size_t)s->n_layer);
    pp_gguf_add_f32(w, KEY("rope.freq_base"), (float)BASE);
    pp_gguf_add_f32(w, KEY("rope.freq_base_swa"), (float)LOCAL_BASE);
    pp_gguf_add_f32(w, KEY("attention.layer_norm_rms_epsilon"), (float)EPSILON);
    if (s->n_stream)
        pp_gguf_add_f32_array(w, KEY("activation_sparsity_scale"), sparsity, (size_t)s->n_layer);
    if (s->softcap != 0.0f)
        pp_gguf_add_f32(w, KEY("final_logit_softcapping"), s->softcap);
#undef KEY
    if (s->n_embd_out)
        write_letters(w, s->n_vocab);
    else
        pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
}

const char *gemma_write(const struct gemma *g)
{
    struct pp_tensor tensors[MAX_TENSORS];
    const char *path = fresh_path("gemma.gguf");
    struct pp_gguf_writer *w = gguf_file_begin(path);
    write_metadata(w, &g->s);
    for (int i = 0; i < g->n; i++)
        tensors[i] = array_tensor(&g->t[i]);
    gguf_file_end(w, tensors, (size_t)g->n);
    return path;
}

/* --- the folder --------------------------------------------------------------------------------------------------- */

static void hf_name(const char *gguf, char *out, size_t size)
{
    static const struct {
        const char *gguf, *hf;
    } names[] = {
        {"attn_norm.weight", "input_layernorm.weight"}, {"attn_q.weight", "self_attn.q_proj.weight"},
        {"attn_k.weight", "self_attn.k_proj.weight"}, {"attn_v.weight", "self_attn.v_proj.weight"},
        {"attn_output.weight", "self_attn.o_proj.weight"}, {"attn_q_norm.weight", "self_attn.q_norm.weight"},
        {"attn_k_norm.weight", "self_attn.k_norm.weight"},
        {"post_attention_norm.weight", "post_attention_layernorm.weight"},
        {"ffn_norm.weight", "pre_feedforward_layernorm.weight"}, {"ffn_gate.weight", "mlp.gate_proj.weight"},
        {"ffn_up.weight", "mlp.up_proj.weight"}, {"ffn_down.weight", "mlp.down_proj.weight"},
        {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"}, {"layer_output_scale.weight", "layer_scalar"},
        {"inp_gate.weight", "ple_block.per_layer_input_gate.weight"},
        {"proj.weight", "ple_block.per_layer_projection.weight"},
        {"post_norm.weight", "ple_block.post_per_layer_input_norm.weight"},
        {"token_embd.weight", "embed_tokens.weight"},
        {"output_norm.weight", "norm.weight"}, {"output.weight", "embedding_projection.weight"},
        {"per_layer_model_proj.weight", "ple.per_layer_model_projection.weight"},
        {"per_layer_proj_norm.weight", "ple.per_layer_projection_norm.weight"},
    };
    int l = -1, at = 0;
    size_t i = 0;
    if (sscanf(gguf, "blk.%d.%n", &l, &at) != 1)
        at = 0;
    while (i < sizeof names / sizeof *names && strcmp(names[i].gguf, gguf + at) != 0)
        i++;
    assert_true(i < sizeof names / sizeof *names);
    if (l >= 0)
        snprintf(out, size, "language_model.layers.%d.%s", l, names[i].hf);
    else
        snprintf(out, size, "language_model.%s", names[i].hf);
}

static void write_config(const struct gemma_shape *s, const char *dir)
{
    struct pp_buf b = {0};
    struct pp_error err;
    char path[512];
    pp_buf_fmt(&b, "{\"architectures\": [\"EmbeddingGemma2Model\"], \"model_type\": \"embedding_gemma2\","
               "\"vision_config\": {\"model_type\": \"gemma4_vision\"}, \"text_config\": {"
               "\"model_type\": \"embedding_gemma2_text\", \"vocab_size\": %d, \"hidden_size\": %d,"
               "\"intermediate_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d,"
               "\"num_key_value_heads\": %d, \"head_dim\": %d, \"hidden_size_per_layer_input\": %d,"
               "\"embedding_dim\": %d, \"sliding_window\": %d, \"max_position_embeddings\": 128,"
               "\"rms_norm_eps\": %g, \"hidden_activation\": \"gelu_pytorch_tanh\","
               "\"use_bidirectional_attention\": \"all\", \"layer_types\": [",
               s->n_vocab, s->n_embd, s->n_ff, s->n_layer, s->n_head, s->n_head_kv, s->head_dim, s->n_embd_layer,
               s->n_embd_out, s->window - 1, EPSILON);
    for (int l = 0; l < s->n_layer; l++)
        pp_buf_fmt(&b, "%s\"%s_attention\"", l ? ", " : "", is_wide(s, l) ? "full" : "sliding");
    pp_buf_str(&b, "], \"per_layer_config\": {");
    for (int l = 0, n = 0; l < s->n_layer; l++)
        if (is_wide(s, l))
            pp_buf_fmt(&b, "%s\"%02d\": {\"head_dim\": %d, \"num_key_value_heads\": %d}", n++ ? ", " : "", l,
                       s->wide_head_dim, s->wide_n_head_kv);
    pp_buf_fmt(&b, "}, \"rope_parameters\": {\"full_attention\": {\"rope_theta\": %g, \"rope_type\": \"default\"},"
               "\"sliding_attention\": {\"rope_theta\": %g, \"rope_type\": \"default\"}}}}", BASE, LOCAL_BASE);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, b.data, b.len, 0600, &err), err);
    pp_buf_free(&b);
}

const char *gemma_write_folder(const struct gemma *g)
{
    static char names[MAX_TENSORS + 1][96];
    struct pp_tensor tensors[MAX_TENSORS + 1];
    const char *dir = fresh_path("gemma-folder");
    char path[512];
    struct pp_error err;
    assert_int_equal(mkdir(dir, 0700), 0);
    for (int i = 0; i < g->n; i++) {
        tensors[i] = array_tensor(&g->t[i]);
        hf_name(g->t[i].name, names[i], sizeof names[i]);
        tensors[i].name = names[i];
    }
    tensors[g->n] = tensors[0]; /* stands for a tensor of the vision tower */
    tensors[g->n].name = "vision_tower.patch_embedder.input_proj.weight";
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, tensors, (size_t)g->n + 1, &err), err);
    write_config(&g->s, dir);
    return dir;
}

/* --- formulas ----------------------------------------------------------------------------------------------------- */

static const struct array *find(const struct gemma *g, int l, const char *kind)
{
    const int i = small_find(g->t[0].name, sizeof g->t[0], g->n, l, kind, "");
    if (i < 0)
        fail_msg("there is no %s", kind);
    return &g->t[i];
}

/* y = W x, where W is matrix `which` of a stack. */
static void linear(const struct gemma *g, int l, const char *kind, int which, const double *x, double *y)
{
    const struct array *w = find(g, l, kind);
    for (int64_t o = 0; o < w->rows; o++)
        y[o] = small_dot(w->values + (which * w->rows + o) * w->cols, x, w->cols);
}

/* RMSNorm; kind NULL: without weights */
static void norm(const struct gemma *g, int l, const char *kind, int n, const double *x, double *y)
{
    const struct array *w = kind ? find(g, l, kind) : NULL;
    double square = 0;
    for (int i = 0; i < n; i++)
        square += x[i] * x[i] / n;
    for (int i = 0; i < n; i++)
        y[i] = x[i] / sqrt(square + EPSILON) * (w ? (double)w->values[i] : 1);
}

static double gelu(double x)
{
    return x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x))) / 2;
}

/* RoPE of the pairs (i, i + dim / 2). In layers with full attention only the first pairs are rotated, with frequencies
 * base^(-2 i / dim). */
static void rotate(const struct gemma_shape *s, int l, int position, double *head)
{
    const int dim = dim_of(s, l), turning = is_wide(s, l) ? s->turning : dim / 2;
    for (int i = 0; i < turning; i++) {
        const double angle = position * pow(is_wide(s, l) ? BASE : LOCAL_BASE, -2.0 * i / dim);
        const double a = head[i], b = head[i + dim / 2];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + dim / 2] = b * cos(angle) + a * sin(angle);
    }
}

/* Gemma 3n's sparse activations: x = max(x - mean - DEVIATIONS * deviation, 0). */
static void sparsen(double *x, int n)
{
    double mean = 0, square = 0;
    for (int i = 0; i < n; i++)
        mean += x[i] / n;
    for (int i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean) / n;
    for (int i = 0; i < n; i++)
        x[i] = fmax(x[i] - mean - DEVIATIONS * sqrt(square), 0);
}

static void feed_forward(const struct gemma *g, int l, const char *end, int which, int n, const double *in, double *out)
{
    double *gate = doubles(2 * n), *up = gate + n;
    char kind[48];
    snprintf(kind, sizeof kind, "ffn_gate%s.weight", end);
    linear(g, l, kind, which, in, gate);
    snprintf(kind, sizeof kind, "ffn_up%s.weight", end);
    linear(g, l, kind, which, in, up);
    if (l < g->s.n_sparse)
        sparsen(gate, n);
    for (int i = 0; i < n; i++)
        up[i] *= gelu(gate[i]);
    snprintf(kind, sizeof kind, "ffn_down%s.weight", end);
    linear(g, l, kind, which, up, out);
    pp_free(gate);
}

/* The router reads the input after a norm of its own, divided by the square root of the width. */
static void mixture(const struct gemma *g, int l, const double *x, double *out)
{
    const struct gemma_shape *s = &g->s;
    double in[64], p[16], one[64], used = 0;
    bool taken[16] = {false};
    int chosen[8];
    assert_true(s->n_embd <= 64 && s->n_expert <= 16 && s->n_used <= 8);
    norm(g, l, "ffn_gate_inp.scale", s->n_embd, x, in);
    for (int i = 0; i < s->n_embd; i++)
        in[i] /= sqrt(s->n_embd);
    linear(g, l, "ffn_gate_inp.weight", 0, in, p);
    for (int e = 0; e < s->n_expert; e++)
        p[e] = exp(p[e]);
    for (int i = 0; i < s->n_used; i++) {
        chosen[i] = -1;
        for (int e = 0; e < s->n_expert; e++)
            if (!taken[e] && (chosen[i] < 0 || p[e] > p[chosen[i]]))
                chosen[i] = e;
        taken[chosen[i]] = true;
        used += p[chosen[i]];
    }
    norm(g, l, "pre_ffw_norm_2.weight", s->n_embd, x, in);
    memset(out, 0, (size_t)s->n_embd * sizeof *out);
    for (int i = 0; i < s->n_used; i++) {
        const double scale = (double)find(g, l, "ffn_down_exps.scale")->values[chosen[i]];
        feed_forward(g, l, "_exps", chosen[i], s->n_ff_expert, in, one);
        for (int j = 0; j < s->n_embd; j++)
            out[j] += one[j] * p[chosen[i]] / used * scale;
    }
}

/* Keys and values of all positions. */
struct cache {
    double *k, *v;
    int n;
};

/* The range of positions that a position sees in layer l. */
static void seen(const struct gemma_shape *s, int l, int n, int position, int *first, int *last)
{
    *first = is_wide(s, l) || position < s->window ? 0 : position - s->window + 1;
    *last = !s->n_embd_out ? position : is_wide(s, l) || position + s->window > n ? n - 1 : position + s->window - 1;
}

static void make_keys(const struct gemma *g, int l, const struct cache *c, int position, const double *in)
{
    const struct gemma_shape *s = &g->s;
    const int dim = dim_of(s, l), n_heads = kv_of(s, l), n_kv = n_heads * dim;
    double *k = c->k + position * n_kv, *v = c->v + position * n_kv;
    linear(g, l, "attn_k.weight", 0, in, k);
    linear(g, l, s->keys_as_values && is_wide(s, l) ? "attn_k.weight" : "attn_v.weight", 0, in, v);
    for (int h = 0; h < n_heads; h++) {
        norm(g, l, "attn_k_norm.weight", dim, k + h * dim, k + h * dim);
        rotate(s, l, position, k + h * dim);
        norm(g, l, NULL, dim, v + h * dim, v + h * dim);
    }
}

static void attention(const struct gemma *g, int l, const struct cache *c, int position, const double *in, double *out)
{
    const struct gemma_shape *s = &g->s;
    const int dim = dim_of(s, l), n_heads = kv_of(s, l), n_kv = n_heads * dim, group = s->n_head / n_heads;
    double *q = doubles(2 * s->n_head * dim), *att = q + s->n_head * dim;
    int first, last;
    seen(s, l, c->n, position, &first, &last);
    linear(g, l, "attn_q.weight", 0, in, q);
    if (!is_shared(s, l))
        make_keys(g, l, c, position, in);
    for (int h = 0; h < s->n_head; h++) {
        norm(g, l, "attn_q_norm.weight", dim, q + h * dim, q + h * dim);
        rotate(s, l, position, q + h * dim);
        attend_query(q + h * dim, c->k + h / group * dim, c->v + h / group * dim, first, last, dim, n_kv, 1, 0,
                     att + h * dim);
    }
    linear(g, l, "attn_output.weight", 0, att, out);
    pp_free(q);
}

static void add_normalised(const struct gemma *g, int l, const char *kind, double *delta, double *x)
{
    norm(g, l, kind, g->s.n_embd, delta, delta);
    for (int i = 0; i < g->s.n_embd; i++)
        x[i] += delta[i];
}

/* One layer at one position. own: the layer's per-layer input. */
static void layer(const struct gemma *g, int l, const struct cache *c, int position, const double *own, double *x)
{
    const struct gemma_shape *s = &g->s;
    const int n = s->n_embd;
    double in[64], delta[64], beside[64], gate[64];
    assert_true(n <= 64 && s->n_embd_layer <= 64);
    norm(g, l, "attn_norm.weight", n, x, in);
    attention(g, l, c, position, in, delta);
    add_normalised(g, l, "post_attention_norm.weight", delta, x);
    norm(g, l, "ffn_norm.weight", n, x, in);
    feed_forward(g, l, "", 0, ff_of(s, l), in, delta);
    if (s->n_expert) {
        norm(g, l, "post_ffw_norm_1.weight", n, delta, delta);
        mixture(g, l, x, beside);
        norm(g, l, "post_ffw_norm_2.weight", n, beside, beside);
        for (int i = 0; i < n; i++)
            delta[i] += beside[i];
    }
    add_normalised(g, l, "post_ffw_norm.weight", delta, x);
    if (s->n_embd_layer) {
        linear(g, l, "inp_gate.weight", 0, x, gate);
        for (int i = 0; i < s->n_embd_layer; i++)
            gate[i] = gelu(gate[i]) * own[i];
        linear(g, l, "proj.weight", 0, gate, delta);
        add_normalised(g, l, "post_norm.weight", delta, x);
    }
    for (int i = 0; i < n; i++)
        x[i] *= (double)find(g, l, "layer_output_scale.weight")->values[0];
}

/* The per-layer inputs [n_layer][n_embd_layer] of a token whose embedding is x. */
static void own_inputs(const struct gemma *g, int token, const double *x, double *own)
{
    const struct gemma_shape *s = &g->s;
    const int n = s->n_embd_layer, all = s->n_layer * n;
    const struct array *table = s->n_embd_out ? NULL : find(g, -1, "per_layer_token_embd.weight");
    linear(g, -1, "per_layer_model_proj.weight", 0, x, own);
    for (int i = 0; i < all; i++)
        own[i] /= sqrt(s->n_embd);
    for (int l = 0; l < s->n_layer; l++)
        norm(g, -1, "per_layer_proj_norm.weight", n, own + l * n, own + l * n);
    for (int i = 0; table && i < all; i++)
        own[i] = (own[i] + sqrt(n) * (double)table->values[(int64_t)token * all + i]) / sqrt(2);
}

/* The layer whose keys and values layer l reads: the last layer of its kind (windowed or full) that has its own. */
static int source_of(const struct gemma_shape *s, int l)
{
    int from = is_shared(s, l) ? s->n_layer - s->n_shared - 1 : l;
    while (is_wide(s, from) != is_wide(s, l))
        from--;
    return from;
}

/* --- several streams ---------------------------------------------------------------------------------------------- */

enum { MOST_STREAMS = 4, WIDTH = 64 };

/* AltUp's coefficients: a matrix times tanh(W norm(x)). */
static void coefficients(const struct gemma *g, int l, const double *x, const char *kind, double *out)
{
    double in[WIDTH], modalities[MOST_STREAMS];
    norm(g, l, "altup_router_norm.weight", g->s.n_embd, x, in);
    for (int i = 0; i < g->s.n_embd; i++)
        in[i] /= g->s.n_embd;
    linear(g, l, "altup_router.weight", 0, in, modalities);
    for (int i = 0; i < g->s.n_stream; i++)
        modalities[i] = tanh(modalities[i]);
    linear(g, l, kind, 0, modalities, out);
}

static void stream_layer(const struct gemma *g, int l, const struct cache *c, int position, const double *own,
                         double (*x)[WIDTH])
{
    const int n = g->s.n_embd, n_stream = g->s.n_stream;
    double p[MOST_STREAMS][WIDTH], k[MOST_STREAMS * MOST_STREAMS], in[WIDTH], laurel[WIDTH], low[WIDTH], delta[WIDTH];
    double y[WIDTH], gate[WIDTH];
    coefficients(g, l, x[0], "altup_predict_coef.weight", k);
    for (int j = 0; j < n_stream; j++)
        for (int i = 0; i < n; i++) {
            p[j][i] = x[j][i];
            for (int m = 0; m < n_stream; m++)
                p[j][i] += k[j * n_stream + m] * x[m][i];
        }
    norm(g, l, "attn_norm.weight", n, p[0], in);
    linear(g, l, "laurel_l.weight", 0, in, low);
    linear(g, l, "laurel_r.weight", 0, low, laurel);
    norm(g, l, "laurel_post_norm.weight", n, laurel, laurel);
    attention(g, l, c, position, in, delta);
    norm(g, l, "post_attention_norm.weight", n, delta, delta);
    for (int i = 0; i < n; i++)
        y[i] = (p[0][i] + delta[i] + laurel[i] + in[i]) / sqrt(2);
    norm(g, l, "ffn_norm.weight", n, y, in);
    feed_forward(g, l, "", 0, ff_of(&g->s, l), in, delta);
    add_normalised(g, l, "post_ffw_norm.weight", delta, y);
    coefficients(g, l, y, "altup_correct_coef.weight", k);
    for (int i = 0; i < n; i++)
        in[i] = y[i] - p[0][i];
    for (int j = 0; j < n_stream; j++)
        for (int i = 0; i < n; i++)
            x[j][i] = p[j][i] + (1 + k[j]) * in[i];
    for (int i = 0; i < n; i++)
        y[i] = x[0][i] * (double)find(g, l, "altup_correct_scale.weight")->values[i];
    linear(g, l, "inp_gate.weight", 0, y, gate);
    for (int i = 0; i < g->s.n_embd_layer; i++)
        gate[i] = gelu(gate[i]) * own[i];
    linear(g, l, "proj.weight", 0, gate, delta);
    for (int j = 1; j < n_stream; j++) {
        memcpy(in, delta, sizeof in);
        add_normalised(g, l, "post_norm.weight", in, x[j]);
    }
}

/* Scales y to the length of x. */
static void match(const double *x, int n, double *y)
{
    double of_x = 0, of_y = 0;
    for (int i = 0; i < n; i++) {
        of_x += x[i] * x[i] / n;
        of_y += y[i] * y[i] / n;
    }
    for (int i = 0; i < n; i++)
        y[i] *= sqrt(of_x / of_y);
}

/* Runs all layers over the streams made from the embedding x; leaves in x the mean of the streams, before the last
 * norm. */
static void all_streams(const struct gemma *g, const struct cache *caches, int position, const double *own, double *x)
{
    const struct gemma_shape *s = &g->s;
    double streams[MOST_STREAMS][WIDTH], y[WIDTH];
    assert_true(s->n_stream <= MOST_STREAMS && s->n_embd <= WIDTH && s->n_embd_layer <= WIDTH);
    memcpy(streams[0], x, (size_t)s->n_embd * sizeof *x);
    for (int j = 1; j < s->n_stream; j++) {
        linear(g, -1, "altup_proj.weight", j - 1, x, streams[j]);
        match(x, s->n_embd, streams[j]);
    }
    for (int l = 0; l < s->n_layer; l++)
        stream_layer(g, l, &caches[source_of(s, l)], position, own + l * s->n_embd_layer, streams);
    memcpy(x, streams[0], (size_t)s->n_embd * sizeof *x);
    for (int j = 1; j < s->n_stream; j++) {
        linear(g, -1, "altup_unembd_proj.weight", j - 1, streams[j], y);
        match(streams[0], s->n_embd, y);
        for (int i = 0; i < s->n_embd; i++)
            x[i] += y[i];
    }
    for (int i = 0; i < s->n_embd; i++)
        x[i] /= s->n_stream;
}

/* Bidirectional attention: in each layer the keys of all rows are computed before any row's attention. */
static void compute_vectors(const struct gemma *g, const struct cache *caches, const int32_t *ids, int n,
                            double *vectors)
{
    const struct gemma_shape *s = &g->s;
    const struct array *embd = find(g, -1, "token_embd.weight");
    const int width = s->n_embd, own_size = s->n_layer * s->n_embd_layer;
    double *x = doubles((int64_t)n * width), *own = doubles((int64_t)n * own_size), *in = doubles(width);
    for (int i = 0; i < n * width; i++)
        x[i] = sqrt(width) * (double)embd->values[ids[i / width] * width + i % width];
    for (int r = 0; r < n; r++)
        own_inputs(g, ids[r], x + r * width, own + r * own_size);
    for (int l = 0; l < s->n_layer; l++) {
        for (int r = 0; r < n; r++) {
            norm(g, l, "attn_norm.weight", width, x + r * width, in);
            make_keys(g, l, &caches[l], r, in);
        }
        for (int r = 0; r < n; r++)
            layer(g, l, &caches[l], r, own + r * own_size + l * s->n_embd_layer, x + r * width);
    }
    for (int r = 0; r < n; r++) {
        norm(g, -1, "output_norm.weight", width, x + r * width, in);
        linear(g, -1, "output.weight", 0, in, vectors + (int64_t)r * s->n_embd_out);
    }
    pp_free(x);
    pp_free(own);
    pp_free(in);
}

void gemma_compute(const struct gemma *g, const int32_t *ids, int n, double *logits)
{
    const struct gemma_shape *s = &g->s;
    const struct array *embd = find(g, -1, "token_embd.weight");
    const int own_size = s->n_layer * s->n_embd_layer + 1;
    struct cache caches[16];
    double *x = doubles(s->n_embd), *own = doubles(own_size);
    for (int l = 0; l < s->n_layer; l++)
        caches[l] = (struct cache){doubles(n * kv_of(s, l) * dim_of(s, l)), doubles(n * kv_of(s, l) * dim_of(s, l)), n};
    if (s->n_embd_out)
        compute_vectors(g, caches, ids, n, logits);
    for (int r = 0; r < n && !s->n_embd_out; r++) {
        double *out = logits + (int64_t)r * s->n_vocab;
        for (int i = 0; i < s->n_embd; i++)
            x[i] = sqrt(s->n_embd) * (double)embd->values[ids[r] * s->n_embd + i];
        if (s->n_embd_layer)
            own_inputs(g, ids[r], x, own);
        if (s->n_stream)
            all_streams(g, caches, r, own, x);
        for (int l = 0; l < s->n_layer && !s->n_stream; l++)
            layer(g, l, &caches[source_of(s, l)], r, own + l * s->n_embd_layer, x);
        norm(g, -1, "output_norm.weight", s->n_embd, x, x);
        linear(g, -1, "token_embd.weight", 0, x, out);
        for (int t = 0; s->softcap != 0.0f && t < s->n_vocab; t++)
            out[t] = (double)s->softcap * tanh(out[t] / (double)s->softcap);
    }
    for (int l = 0; l < s->n_layer; l++) {
        pp_free(caches[l].k);
        pp_free(caches[l].v);
    }
    pp_free(x);
    pp_free(own);
}
