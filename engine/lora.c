#include "engine/lora.h"

#include <stdio.h>
#include <string.h>

#include "engine/adapter_file.h"
#include "engine/base/mem.h"
#include "engine/hparams.h"
#include "engine/model.h"

const struct pp_lora_target pp_lora_no_target = {0};

int pp_adapter_set_room(const struct pp_adapter_set *set, int linear)
{
    int room = 0;
    for (int i = 0; i < set->n; i++)
        room += pp_low_rank_room(pp_adapter_target_at(set->use[i].adapter, linear)->rank);
    return room;
}

/* A hash of the adapter as it is held, and so of all that rows depend on. */
static struct pp_sha256 adapter_identity(const struct pp_adapter *a)
{
    static const char arithmetic[] = "lora-3";
    struct pp_sha256_stream s;
    pp_sha256_begin(&s);
    pp_sha256_update(&s, arithmetic, sizeof arithmetic);
    for (int i = 0; i < a->n_targets; i++) {
        const struct pp_lora_target *t = &a->targets[i];
        if (!t->rank)
            continue;
        struct pp_hash128 sums[2] = {pp_hash128(t->a_data, t->a_bytes), pp_hash128(t->b_data, t->b_bytes)};
        pp_sha256_update(&s, &i, sizeof i);
        pp_sha256_update(&s, &t->a.type, sizeof t->a.type);
        pp_sha256_update(&s, &t->rank, sizeof t->rank);
        pp_sha256_update(&s, &t->scale, sizeof t->scale);
        pp_sha256_update(&s, &t->b.unit, sizeof t->b.unit);
        pp_sha256_update(&s, sums, sizeof sums);
    }
    pp_lora_hash_kinds(a, &s);
    pp_lora_hash_replaced(a, &s);
    pp_lora_hash_heads(a, &s);
    pp_sha256_update(&s, a->invocation, (size_t)a->n_invocation * sizeof *a->invocation);
    return pp_sha256_end(&s);
}

static enum pp_code take_invocation(struct pp_adapter *a, const struct pp_adapter_file *f, struct pp_error *err)
{
    size_t n;
    const int32_t *tokens = pp_adapter_file_invocation(f, &n);
    if (!n)
        return PP_OK;
    const enum pp_code code = pp_adapter_file_check_invocation(f, a->model->info.n_vocab, a->model->info.name, err);
    if (code)
        return code;
    if (!(a->invocation = pp_malloc(n * sizeof *tokens)))
        return pp_fail_nomem(err, "an adapter's invocation");
    memcpy(a->invocation, tokens, n * sizeof *tokens);
    a->info.invocation = a->invocation;
    a->info.n_invocation = a->n_invocation = (int)n;
    return PP_OK;
}

/* Whether a list of words, separated by blanks, has this one. */
static bool has_word(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = words; (at = strstr(at, word)); at += n)
        if ((at == words || at[-1] == ' ') && (!at[n] || at[n] == ' '))
            return true;
    return false;
}

/* The kinds of projection that are changed, each once: "attn_q attn_v ...". */
static char *describe_targets(const struct pp_adapter_file *f)
{
    struct pp_buf b = {0};
    for (size_t i = 0; i < pp_adapter_file_n(f); i++) {
        char kind[256], name[256]; /* an expert's name becomes that of the whole stack */
        pp_stack_name(pp_adapter_file_at(f, i)->name, name);
        const char *dot = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
        snprintf(kind, sizeof kind, "%s", dot ? dot + 1 : name);
        char *end = strrchr(kind, '.');
        if (end)
            *end = 0;
        if (has_word(pp_buf_cstr(&b), kind))
            continue;
        if (b.len)
            pp_buf_char(&b, ' ');
        pp_buf_str(&b, kind);
    }
    return pp_buf_take(&b);
}

/* An adapter with its name and an empty entry for each matrix that it may change; NULL: out of memory. */
static struct pp_adapter *new_adapter(const struct pp_model *m, const char *path, const struct pp_adapter_file *f)
{
    char name[256];
    struct pp_adapter *a = pp_calloc(1, sizeof *a);
    if (!a)
        return NULL;
    pp_name_of_path(path, name, sizeof name);
    a->model = m;
    a->of_experts = pp_adapter_file_of_experts(f);
    a->n_targets = a->of_experts ? pp_plan_n_targets(&m->plan) : m->plan.n_linears;
    a->targets = pp_calloc((size_t)a->n_targets, sizeof *a->targets);
    a->path = pp_strdup(path);
    a->name = pp_strdup(name);
    a->target_names = describe_targets(f);
    a->base = pp_strdup(pp_adapter_file_base(f) ? pp_adapter_file_base(f) : "");
    if (a->targets && a->path && a->name && a->target_names && a->base)
        return a;
    pp_adapter_free(a);
    return NULL;
}

/* Fills what pp_adapter_info says, once everything is loaded. */
static void describe(struct pp_adapter *a, const struct pp_adapter_file *f)
{
    for (size_t i = 0; i < pp_adapter_file_n(f); i++) {
        const struct pp_adapter_target *t = pp_adapter_file_at(f, i);
        a->info.bytes += t->a.size + t->b.size + t->magnitude.size + t->bias.size + t->b_bias.size + t->ia3.size +
                         t->weight.size + t->tokens.size;
        if (t->rank > a->info.rank)
            a->info.rank = (int)t->rank;
    }
    a->info.n_targets = (int)pp_adapter_file_n(f);
    a->info.alpha = pp_adapter_file_alpha(f);
    a->info.kind = pp_adapter_file_kind(f);
    a->info.assumed_scale = pp_adapter_file_assumed_scale(f);
    pp_lora_note_places(a);
    a->info.idle = !a->acts && (!a->embedding.rank || a->embedding.dora || pp_adapter_file_idle(f));
    a->info.path = a->path;
    a->info.name = a->name;
    a->info.targets = a->target_names;
    a->info.base = a->base;
}

static enum pp_code load_from(const struct pp_model *m, const char *path, const struct pp_adapter_file *f, bool exact,
                              struct pp_adapter **out, struct pp_error *err)
{
    struct pp_adapter *a = new_adapter(m, path, f);
    enum pp_code code = a ? pp_lora_load_targets(a, f, exact, err) : pp_fail_nomem(err, "an adapter");
    if (!code)
        code = take_invocation(a, f, err);
    if (!code)
        code = pp_adapter_file_check(f, err);
    if (code) {
        pp_adapter_free(a);
        return code;
    }
    pp_lora_place_gains(a);
    describe(a, f);
    a->identity = adapter_identity(a);
    *out = a;
    return PP_OK;
}

static enum pp_code load(const struct pp_model *m, const char *path, bool exact, struct pp_adapter **out,
                         struct pp_error *err)
{
    struct pp_adapter_file *f;
    *out = NULL;
    enum pp_code code = pp_source_check_adapters(m->source, err);
    if (!code)
        code = pp_adapter_file_open_for(path, pp_source_hparams(m->source), &f, err);
    if (code)
        return code;
    code = load_from(m, path, f, exact, out, err);
    pp_adapter_file_close(f);
    return code;
}

enum pp_code pp_adapter_load_file(const struct pp_model *m, const struct pp_adapter_file *f, struct pp_adapter **out,
                                  struct pp_error *err)
{
    return load_from(m, pp_source_path(m->source), f, false, out, err);
}

enum pp_code pp_adapter_load(const struct pp_model *m, const char *path, struct pp_adapter **out, struct pp_error *err)
{
    return load(m, path, false, out, err);
}

enum pp_code pp_adapter_load_exact(const struct pp_model *m, const char *path, struct pp_adapter **out,
                                   struct pp_error *err)
{
    return load(m, path, true, out, err);
}

void pp_adapter_free(struct pp_adapter *a)
{
    if (!a)
        return;
    for (int i = 0; a->targets && i < a->n_targets; i++)
        pp_lora_free_kinds(&a->targets[i]);
    pp_lora_arena_free(a);
    pp_lora_free_replaced(a);
    pp_lora_free_heads(a);
    pp_free(a->embedding.a);
    pp_free(a->embedding.b_data);
    pp_free(a->embedding.dora);
    pp_free(a->targets);
    pp_free(a->invocation);
    pp_free(a->path);
    pp_free(a->name);
    pp_free(a->target_names);
    pp_free(a->base);
    pp_free(a);
}

const struct pp_adapter_info *pp_adapter_info(const struct pp_adapter *a)
{
    return &a->info;
}

bool pp_adapter_same(const struct pp_adapter *a, const struct pp_adapter *b)
{
    return a->model == b->model && memcmp(&a->identity, &b->identity, sizeof a->identity) == 0;
}
