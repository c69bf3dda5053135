/* cmd_lora.c - pippin lora list and info: which adapters exist, and what they change. Training: cmd_lora_train.c. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/adapter_file.h"
#include "engine/base/mem.h"
#include "engine/source.h"
#include "src/adapter_names.h"
#include "src/cmd_common.h"
#include "src/commands.h"

/* --- finding adapters ------------------------------------------------------------------------------------- */

/* Finds the adapters in the model's folder, in the adapters folder, and those of --lora. */
static enum pp_code find_all(const struct pp_options *o, const struct pp_paths *p, struct pp_adapter_paths *f,
                             struct pp_error *err)
{
    enum pp_code code = pp_adapter_paths_find(p, o->model, f, err);
    for (int i = 0; !code && i < o->n_lora; i++)
        code = pp_adapter_paths_add(f, o->lora[i].path, err);
    return code;
}

/* --- describing an adapter -------------------------------------------------------------------------------- */

static int64_t largest_rank(const struct pp_adapter_file *f)
{
    int64_t rank = 0;
    for (size_t i = 0; i < pp_adapter_file_n(f); i++)
        if (pp_adapter_file_at(f, i)->rank > rank)
            rank = pp_adapter_file_at(f, i)->rank;
    return rank;
}

/* The stored type of a target's tensors, which are rarely of different types. */
static const char *stored_type(const struct pp_adapter_target *t)
{
    const struct pp_tensor *parts[] = {&t->a, &t->weight, &t->ia3, &t->bias, &t->magnitude, &t->b_bias,
                                       &t->tokens};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i]->data)
            return pp_type_info(parts[i]->type)->name;
    return "";
}

/* How much an adapter at strength 1 changes logits, and how much the logits with the adapter as it is used in chats
 * (engine.h) differ from those with the stored precision: root mean squares over a few tokens. changed 0: unknown. */
struct effect {
    double changed, off;
};

static void json_target(struct pp_buf *b, const struct pp_adapter_target *t)
{
    pp_cli_json_next(b);
    pp_buf_char(b, '{');
    pp_cli_json_str(b, "tensor", t->name);
    pp_cli_json_int(b, "rank", t->rank);
    pp_cli_json_int(b, "n_in", t->n_in);
    pp_cli_json_int(b, "n_out", t->n_out);
    pp_cli_json_str(b, "type", stored_type(t));
    pp_cli_json_bool(b, "replaces", t->weight.data);
    pp_cli_json_real(b, "scale", (double)t->scale, 6);
    pp_buf_char(b, '}');
}

static void json_adapter(struct pp_buf *b, const char *path, const struct pp_adapter_file *f, bool with_targets,
                         const struct effect *effect)
{
    pp_cli_json_next(b);
    pp_buf_char(b, '{');
    pp_cli_json_str(b, "path", path);
    pp_cli_json_str(b, "name", pp_adapter_file_name(f));
    pp_cli_json_str(b, "arch", pp_adapter_file_arch(f));
    pp_cli_json_str(b, "kind", pp_adapter_file_kind(f));
    pp_cli_json_int(b, "rank", largest_rank(f));
    pp_cli_json_bool(b, "changes_nothing", pp_adapter_file_idle(f));
    if (pp_adapter_file_assumed_scale(f) != 0.0f)
        pp_cli_json_bool(b, "scale_assumed", true);
    pp_cli_json_real(b, "alpha", (double)pp_adapter_file_alpha(f), 3);
    pp_cli_json_count(b, "n_targets", pp_adapter_file_n(f));
    if (pp_adapter_file_base(f))
        pp_cli_json_str(b, "base_model", pp_adapter_file_base(f));
    if (pp_adapter_file_n_non_text(f))
        pp_cli_json_count(b, "n_beside_text", pp_adapter_file_n_non_text(f));
    size_t n;
    const int32_t *invocation = pp_adapter_file_invocation(f, &n);
    if (n) {
        pp_cli_json_name(b, "invocation_tokens");
        for (size_t i = 0; i < n; i++)
            pp_buf_fmt(b, i ? ", %d" : "[%d", invocation[i]);
        pp_buf_char(b, ']');
    }
    if (with_targets) {
        pp_cli_json_name(b, "targets");
        pp_buf_char(b, '[');
        for (size_t i = 0; i < pp_adapter_file_n(f); i++)
            json_target(b, pp_adapter_file_at(f, i));
        pp_buf_char(b, ']');
    }
    if (effect->changed > 0) {
        pp_cli_json_real(b, "logits_changed_by", effect->changed, 6);
        pp_cli_json_real(b, "held_off_by", effect->off, 6);
    }
    pp_buf_char(b, '}');
}

/* A name from a file, as one line whatever it contains, padded to `least` bytes. */
static void add_name(struct pp_buf *b, const char *name, size_t least)
{
    const size_t begin = b->len;
    pp_cli_name(b, name);
    while (!b->bad && b->len < begin + least)
        pp_buf_char(b, ' ');
}

/* If the targets of all experts in a stack are alike (in rank, scale and parts): returns their number for the first
 * of them, and 0 for the others. 1 for any other target. */
static int experts_alike(const struct pp_adapter_file *f, const struct pp_adapter_target *t)
{
    const char *number = pp_adapter_is_of_experts(t->name) ? pp_expert_number(t->name) : NULL;
    const struct pp_adapter_target *first = NULL;
    int n = 0;
    for (int e = 0; number && e < PP_MAX_EXPERTS; e++) {
        char name[256];
        snprintf(name, sizeof name, "%.*s%d.weight", (int)(number - t->name), t->name, e);
        const struct pp_adapter_target *other = pp_adapter_file_find(f, name);
        if (!other && e > strtol(number, NULL, 10))
            break;
        if (!other)
            continue;
        first = first ? first : other;
        n++;
        if (!other->rank || other->rank != first->rank || other->scale != first->scale || other->magnitude.data ||
            other->bias.data || other->b_bias.data || other->weight.data || other->ia3.data)
            return 1;
    }
    return !number ? 1 : t == first ? n : 0;
}

/* Describes a target in a line; experts with equal ones share a line. */
static void text_target(struct pp_buf *b, const struct pp_adapter_file *f, const struct pp_adapter_target *t)
{
    const int n_experts = experts_alike(f, t);
    char stack[256];
    if (!n_experts)
        return;
    pp_stack_name(t->name, stack);
    pp_buf_str(b, "  ");
    add_name(b, n_experts > 1 ? stack : t->name, 32);
    pp_buf_char(b, ' ');
    if (t->rank)
        pp_buf_fmt(b, "%5lld -> %-5lld rank %-4lld %-5s scale %g", (long long)t->n_in, (long long)t->n_out,
                   (long long)t->rank, stored_type(t), (double)t->scale);
    if (n_experts > 1)
        pp_buf_fmt(b, ", in each of %d experts", n_experts);
    if (t->weight.data && t->weight.n_dims == 1)
        pp_buf_fmt(b, "%lld values %-5s in place of the model's", (long long)t->n_out, stored_type(t));
    else if (t->weight.data)
        pp_buf_fmt(b, "%5lld -> %-5lld %-5s in place of the model's", (long long)t->n_in, (long long)t->n_out,
                   pp_type_info(t->weight.type)->name);
    if (t->magnitude.data)
        pp_buf_str(b, " magnitudes");
    if (t->embedding && t->tied)
        pp_buf_str(b, ", also for the output if it is the same matrix");
    if (t->bias.data || t->b_bias.data)
        pp_buf_str(b, " biases");
    if (t->tokens.data)
        pp_buf_fmt(b, "%lld tokens of %lld values %s", (long long)t->tokens.ne[1], (long long)t->tokens.ne[0],
                   pp_type_info(t->tokens.type)->name);
    if (t->ia3.data)
        pp_buf_fmt(b, "scales of %lld %s %s", (long long)(t->ia3_input ? t->n_in : t->n_out),
                   t->ia3_input ? "inputs" : "outputs", stored_type(t));
    pp_buf_char(b, '\n');
}

static void text_adapter(struct pp_buf *b, const char *path, const struct pp_adapter_file *f, bool with_targets,
                         const struct effect *effect)
{
    const char *name = pp_adapter_file_name(f);
    add_name(b, *name ? name : "(no name)", 24);
    pp_buf_fmt(b, " %s rank %-4lld alpha %-6g %3zu matrices  ", pp_adapter_file_kind(f), (long long)largest_rank(f),
               (double)pp_adapter_file_alpha(f), pp_adapter_file_n(f));
    add_name(b, path, 0);
    pp_buf_char(b, '\n');
    if (!with_targets)
        return;
    size_t n;
    const int32_t *invocation = pp_adapter_file_invocation(f, &n);
    for (size_t i = 0; i < n; i++)
        pp_buf_fmt(b, i ? " %d" : "active after the last occurrence of these tokens in the prompt: %d", invocation[i]);
    if (n)
        pp_buf_char(b, '\n');
    if (pp_adapter_file_idle(f))
        pp_buf_str(b, "no effect: its matrices or its alpha are all zero, or its IA3 scales all 1\n");
    if (pp_adapter_file_assumed_scale(f) != 0.0f) {
        pp_buf_fmt(b, PP_SCALE_ASSUMED, (double)pp_adapter_file_assumed_scale(f));
        pp_buf_char(b, '\n');
    }
    if (pp_adapter_file_base(f)) {
        pp_buf_str(b, "made for ");
        add_name(b, pp_adapter_file_base(f), 0);
        pp_buf_char(b, '\n');
    }
    if (pp_adapter_file_n_non_text(f))
        pp_buf_fmt(b, "also adapts parts that pippin does not run (vision, audio): %zu tensors ignored\n",
                   pp_adapter_file_n_non_text(f));
    if (effect->changed > 0)
        pp_buf_fmt(b, "changes logits by %.3g; rounding to the in-memory type changes that by %.2f %%\n",
                   effect->changed, 100 * effect->off / effect->changed);
    for (size_t i = 0; i < pp_adapter_file_n(f); i++)
        text_target(b, f, pp_adapter_file_at(f, i));
}

/* Appends the description of an adapter to *b. */
static enum pp_code describe(const struct pp_options *o, const char *path, bool with_targets,
                             const struct effect *effect, struct pp_buf *b, struct pp_error *err)
{
    struct pp_adapter_file *f = NULL;
    enum pp_code code = pp_adapter_file_peek(path, &f, err);
    if (code)
        return code;
    (o->json ? json_adapter : text_adapter)(b, path, f, with_targets, effect);
    pp_adapter_file_close(f);
    return b->bad ? pp_fail_nomem(err, "the list of adapters") : PP_OK;
}

/* Lists what can be described, even if some folder cannot be read. */
static enum pp_code list(const struct pp_options *o, const struct pp_paths *p, struct pp_error *err)
{
    struct pp_adapter_paths f = {.damaged = true};
    struct pp_buf out = {0};
    enum pp_code code = pp_cli_args(o, 0, 0, "", err);
    if (code)
        return code;
    code = find_all(o, p, &f, err);
    if (o->json)
        pp_buf_char(&out, '[');
    for (size_t i = 0; i < f.n; i++) {
        struct pp_error why;
        if (describe(o, f.list[i], false, &(struct effect){0}, &out, &why) == PP_OK)
            continue; /* a damaged file must not hide the others */
        const bool named = strstr(why.text, f.list[i]) != NULL;
        pp_cli_say("%s%s%s", named ? "" : f.list[i], named ? "" : ": ", why.text);
    }
    if (o->json)
        pp_buf_str(&out, "]\n");
    else if (!f.n && !code)
        pp_cli_say("no adapters found next to the model or in %s/adapters; put one there, or give its path with --lora",
                   p->data);
    pp_cli_print(pp_buf_cstr(&out), out.len);
    pp_buf_free(&out);
    pp_adapter_paths_free(&f);
    return code;
}

/* --- the effect on a model -------------------------------------------------------------------------------- */

enum { EFFECT_TOKENS = 16 };

/* Computes logits of a few tokens; a: NULL for the model without adapters. */
static enum pp_code logits_under(struct pp_engine *e, const struct pp_adapter *a, struct pp_cli_rows *to,
                                 const struct pp_cancel *cancel, struct pp_error *err)
{
    int32_t ids[EFFECT_TOKENS];
    struct pp_seq *s = NULL;
    for (int i = 0; i < EFFECT_TOKENS; i++)
        ids[i] = (int32_t)((size_t)(i * 37 + 11) % to->n_vocab);
    enum pp_code code = pp_seq_new(e, &s, err);
    if (!code)
        code = pp_seq_set_adapters(s, &(struct pp_adapter_use){a, 1}, a ? 1 : 0, err);
    if (!code)
        code = pp_cli_feed(e, s, ids, EFFECT_TOKENS, 0, pp_cli_store_row, to, cancel, err);
    pp_seq_free(s);
    return code;
}

static double distance(const struct pp_cli_rows *a, const struct pp_cli_rows *b)
{
    const size_t n = EFFECT_TOKENS * a->n_vocab;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((double)a->values[i] - (double)b->values[i]) * ((double)a->values[i] - (double)b->values[i]);
    return sqrt(sum / (double)n);
}

static enum pp_code find_effect(const struct pp_options *o, const struct pp_model *m, const struct pp_adapter *held,
                                const char *path, struct effect *effect, const struct pp_cancel *cancel,
                                struct pp_error *err)
{
    struct pp_engine_options opt = pp_cli_engine_options(o);
    struct pp_adapter *stored = NULL;
    struct pp_engine *e = NULL;
    struct pp_cli_rows rows[3];
    const struct pp_adapter *under[3] = {NULL, held, NULL};
    const size_t n_vocab = (size_t)pp_model_info(m)->n_vocab;
    opt.kv_type = PP_KV_F32;
    opt.n_ctx = 2 * EFFECT_TOKENS;
    enum pp_code code = pp_adapter_load_exact(m, path, &stored, err);
    under[2] = stored;
    if (!code)
        code = pp_engine_new(m, &opt, NULL, NULL, &e, err);
    for (int i = 0; i < 3; i++) {
        rows[i] = (struct pp_cli_rows){pp_calloc(EFFECT_TOKENS * n_vocab, sizeof(float)), n_vocab};
        if (!code)
            code = rows[i].values ? logits_under(e, under[i], &rows[i], cancel, err) : pp_fail_nomem(err, "logits");
    }
    if (!code)
        *effect = (struct effect){distance(&rows[2], &rows[0]), distance(&rows[1], &rows[2])};
    for (int i = 0; i < 3; i++)
        pp_free(rows[i].values);
    pp_engine_free(e);
    pp_adapter_free(stored);
    return code;
}

/* With -m, also checks the adapter with that model. The effect of an adapter that must be invoked is not measured,
 * as it would be none for these tokens. */
static enum pp_code check_fit(const struct pp_options *o, const struct pp_paths *p, const char *path,
                              struct effect *effect, const struct pp_cancel *cancel, struct pp_error *err)
{
    char model_path[1024];
    struct pp_model *m = NULL;
    struct pp_adapter *a = NULL;
    enum pp_code code = pp_cli_model_path(o, p, model_path, sizeof model_path, err);
    if (!code)
        code = pp_model_open(model_path, &m, err);
    if (!code)
        code = pp_adapter_load(m, path, &a, err);
    if (a && pp_adapter_info(a)->idle)
        pp_cli_say("%s has no effect on this model", path);
    else if (a && !pp_adapter_info(a)->n_invocation)
        code = find_effect(o, m, a, path, effect, cancel, err);
    if (a)
        pp_adapter_free(a);
    pp_model_close(m);
    return code;
}

static enum pp_code info(const struct pp_options *o, const struct pp_paths *p, const struct pp_cancel *cancel,
                         struct pp_error *err)
{
    struct pp_buf out = {0};
    enum pp_code code = pp_cli_args(o, 1, PP_MAX_POSITIONAL, "PATH...", err);
    for (int i = 0; !code && i < o->n_args; i++) {
        char found[PATH_MAX];
        struct effect effect = {0};
        struct pp_error why = {0};
        const char *path = pp_resolve_adapter(p, o->model, o->args[i], found, sizeof found) ? found : o->args[i];
        if ((code = pp_adapter_check(p, o->model, path, err)))
            break;
        const enum pp_code fits = o->model[0] ? check_fit(o, p, path, &effect, cancel, &why) : PP_OK;
        code = describe(o, path, true, &effect, &out, err);
        if (o->json)
            pp_buf_char(&out, '\n');
        if (!code && fits) {
            code = fits;
            *err = why;
        }
    }
    pp_cli_print(pp_buf_cstr(&out), out.len);
    pp_buf_free(&out);
    return code;
}

int pp_cmd_lora(const struct pp_options *o, const struct pp_paths *p)
{
    struct pp_error err = {0};
    enum pp_code code;
    const struct pp_cancel *cancel = pp_cli_begin();
    if (!o->subcommand || strcmp(o->subcommand, "list") == 0)
        code = list(o, p, &err);
    else if (strcmp(o->subcommand, "info") == 0)
        code = info(o, p, cancel, &err);
    else /* "train": option parsing accepts no other word */
        code = pp_cmd_lora_train(o, p, cancel, &err);
    return pp_cli_end(code, &err);
}
