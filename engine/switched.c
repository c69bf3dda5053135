/* switched.c - LoRAs inside a model file that tokens of the text switch on for themselves and what follows them:
 * Granite Switch.
 *
 * In the original, an attention head finds the adapter's number: the key of such a token is +gain and its value the
 * number; any other token has -gain and 0. The result is rounded, so that after one such token it is that one's number,
 * after several the mean of theirs, and with a small gain in a long text nothing. The number depends on the tokens
 * alone; so pages of the cache, whose names are made from the tokens, need no key of their own. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/adapter_file_int.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/engine_int.h"
#include "engine/switched.h"

static const char *const halves[] = {".lora_a", ".lora_b"};

/* The adapters, numbered from 1, and the work space of a step. */
struct pp_switched {
    int n;
    struct pp_adapter *adapter[PP_MAX_SWITCHED];
    /* [max_rows] each */
    struct pp_adapter_set *sets;         /* the sets of the step's rows: [n_sets] */
    const struct pp_adapter_set **from;  /* for each set: the row's other adapters that it was made from, */
    int *number;                         /* and the number of the model's own */
    int n_sets;
    struct counted {
        int64_t n, sum;                  /* such tokens up to a row, and the sum of their numbers */
    } *counted;
};

bool pp_is_of_switched(const struct pp_hparams *hp, const char *name)
{
    return hp->switched.n && strncmp(name, "blk.", 4) == 0 &&
           (pp_ends_with(name, halves[0]) || pp_ends_with(name, halves[1]));
}

/* --- the adapters ------------------------------------------------------------------------------------------------- */

/* Adds adapter k's half from tensor t. Files may have a half of zeros before the first adapter's. */
static enum pp_code add_half(struct pp_adapter_file *f, const struct pp_tensor *t, int k, struct pp_error *err)
{
    const struct pp_hparams *hp = f->hp;
    const bool b = pp_ends_with(t->name, halves[1]);
    const size_t stem = strlen(t->name) - strlen(halves[b]);
    char name[PP_HF_NAME];
    if (t->n_dims != 3 || (t->ne[2] != hp->switched.n && t->ne[2] != hp->switched.n + 1) || t->ne[3] != 1)
        return pp_fail(err, PP_ERR_FORMAT, "tensor %s does not have the matrices of %lld adapters", t->name,
                       (long long)hp->switched.n);
    struct pp_tensor one = *t;
    one.n_dims = 2;
    one.ne[2] = 1;
    one.size = t->size / (size_t)t->ne[2];
    one.data = (const uint8_t *)t->data + (size_t)(k + (t->ne[2] > hp->switched.n)) * one.size;
    const int n = snprintf(name, sizeof name, "%.*s.weight", (int)stem, t->name);
    return pp_adapter_add_part(f, name, (size_t)n, b ? PP_PART_B : PP_PART_A, &one, err);
}

/* Makes an adapter file of adapter k. Rows are in the model's order; strengths are in B. */
static enum pp_code file_of(const struct pp_model *m, int k, struct pp_adapter_file **out, struct pp_error *err)
{
    struct pp_adapter_file *f = pp_calloc(1, sizeof *f);
    enum pp_code code = PP_OK;
    *out = f;
    if (!f || !(f->path = pp_strdup(pp_source_path(m->source))))
        return pp_fail_nomem(err, "the model's adapters");
    f->hp = pp_source_hparams(m->source);
    f->arch = pp_arch_by_name(f->hp->arch);
    f->hf_order = f->hp->rope_neox;
    f->alpha = 1;
    code = pp_adapter_reserve(f, pp_source_n_tensors(m->source), err);
    for (size_t i = 0; i < pp_source_n_tensors(m->source) && !code; i++)
        if (pp_is_of_switched(f->hp, pp_source_tensor_at(m->source, i)->name))
            code = add_half(f, pp_source_tensor_at(m->source, i), k, err);
    return code ? code : pp_adapter_check_targets(f, err);
}

static enum pp_code load(struct pp_engine *e, int k, struct pp_error *err)
{
    struct pp_adapter_file *f;
    enum pp_code code = file_of(e->model, k, &f, err);
    if (!code)
        code = pp_adapter_load_file(e->model, f, &e->switched->adapter[k], err);
    if (!code)
        code = pp_source_check(e->model->source, err); /* if another program cut the file off, zeros were read */
    pp_adapter_file_close(f);
    return code;
}

enum pp_code pp_switched_new(struct pp_engine *e, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(e->model->source);
    const size_t rows = (size_t)e->max_rows;
    const struct pp_adapter_set none = {0};
    if (!hp->switched.n)
        return PP_OK;
    struct pp_switched *w = e->switched = pp_calloc(1, sizeof *w);
    if (!w || !(w->sets = pp_calloc(rows, sizeof *w->sets)) || !(w->from = pp_calloc(rows, sizeof *w->from)) ||
        !(w->number = pp_calloc(rows, sizeof *w->number)) || !(w->counted = pp_calloc(rows, sizeof *w->counted)))
        return pp_fail_nomem(err, "the model's adapters");
    for (; w->n < (int)hp->switched.n; w->n++) {
        const enum pp_code code = load(e, w->n, err);
        if (code)
            return code;
    }
    return pp_switched_reserve(e, &none, err);
}

void pp_switched_free(struct pp_engine *e)
{
    struct pp_switched *w = e->switched;
    if (!w)
        return;
    for (int k = 0; k < w->n; k++)
        pp_adapter_free(w->adapter[k]);
    pp_free(w->sets);
    pp_free(w->from);
    pp_free(w->number);
    pp_free(w->counted);
    pp_free(w);
    e->switched = NULL;
}

int pp_switched_extra(const struct pp_engine *e)
{
    return e->switched ? 1 : 0;
}

/* The set and one of the model's own adapters, numbered from 1. */
static void add_own(const struct pp_switched *w, const struct pp_adapter_set *set, int number,
                    struct pp_adapter_set *out)
{
    *out = *set;
    out->gains[out->n] = NULL;
    out->use[out->n++] = (struct pp_adapter_use){w->adapter[number - 1], 1};
}

enum pp_code pp_switched_reserve(struct pp_engine *e, const struct pp_adapter_set *set, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int number = 1; e->switched && number <= e->switched->n && !code; number++) {
        struct pp_adapter_set both;
        add_own(e->switched, set, number, &both);
        code = pp_cpu_reserve(e->cpu, &both, err);
    }
    return code;
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

/* The number of the adapter that a token switches on; 0: none. */
static int number_of(const struct pp_hparams *hp, int32_t token)
{
    for (int k = 0; k < (int)hp->switched.n; k++)
        if (hp->switched.token[k] == token)
            return k + 1;
    return 0;
}

static void count(const struct pp_hparams *hp, int32_t token, struct counted *c)
{
    const int number = number_of(hp, token);
    c->n += number > 0;
    c->sum += number;
}

static struct counted count_sequence(const struct pp_hparams *hp, const struct pp_seq *s)
{
    struct counted c = {0};
    int32_t least = INT32_MAX, most = -1; /* the tokens have neighbouring ids, which other text rarely uses */
    for (int k = 0; k < (int)hp->switched.n; k++) {
        least = hp->switched.token[k] < least ? hp->switched.token[k] : least;
        most = hp->switched.token[k] > most ? hp->switched.token[k] : most;
    }
    for (int64_t i = 0; i < s->len; i++)
        if (s->tokens[i] >= least && s->tokens[i] <= most)
            count(hp, s->tokens[i], &c);
    return c;
}

/* The adapter of a row. n: positions that the row sees, its own included. */
static int switched_on(const struct pp_hparams *hp, const struct counted *c, int64_t n)
{
    const double others = (double)(n - c->n) * exp(-2 * (double)hp->switched.gain);
    const float mean = c->n ? (float)((double)c->sum / ((double)c->n + others)) : 0; /* in float as in the original, for
                                                                                        which halves are ties */
    const int number = (int)rintf(mean);
    return number < (int)hp->switched.n ? number : (int)hp->switched.n;
}

/* The set of a row. Rows share equal sets, as the kernels process neighbours with the same set together. */
static const struct pp_adapter_set *set_for(struct pp_switched *w, const struct pp_adapter_set *set, int number)
{
    int i = 0;
    if (!number)
        return set;
    while (i < w->n_sets && (w->from[i] != set || w->number[i] != number))
        i++;
    if (i == w->n_sets) {
        w->from[i] = set;
        w->number[i] = number;
        add_own(w, set, number, &w->sets[w->n_sets++]);
    }
    return &w->sets[i];
}

void pp_switched_rows(struct pp_engine *e, const int *parents, int n, const struct pp_row *rows)
{
    struct pp_switched *w = e->switched;
    const struct pp_hparams *hp = pp_source_hparams(e->model->source);
    w->n_sets = 0;
    for (int i = 0; i < n; i++) {
        struct pp_batch_row *b = &e->rows[i];
        w->counted[i] = parents[i] >= 0 ? w->counted[parents[i]] : count_sequence(hp, rows[i].seq);
        count(hp, b->token, &w->counted[i]);
        b->adapters = set_for(w, b->adapters, switched_on(hp, &w->counted[i], b->position + 1));
        const int own = number_of(hp, b->token);
        if (own)
            b->token = hp->switched.read_as[own - 1];
    }
}
