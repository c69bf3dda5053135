/* random_adapter.c - LoRA adapters of noise, for measuring what many of them cost. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/bench.h"
#include "engine/gguf.h"
#include "engine/model.h"
#include "engine/random_rows.h"

static bool is_changed(const struct pp_tensor *w, bool all)
{
    return all ? strncmp(w->name, "blk.", 4) == 0 : strstr(w->name, ".attn_q.") || strstr(w->name, ".attn_v.");
}

/* Both halves of a projection's change: A [rank, n_in] and B [n_out, rank]. */
static enum pp_code add_target(struct pp_gguf_writer *w, const struct pp_tensor *t, int rank, struct pp_random *random,
                               float *row, struct pp_error *err)
{
    const int64_t shapes[2][2] = {{t->ne[0], rank}, {rank, t->ne[1]}};
    enum pp_code code = PP_OK;
    for (int half = 0; half < 2 && !code; half++) {
        char name[160];
        snprintf(name, sizeof name, "%s.lora_%c", t->name, half ? 'b' : 'a');
        if (!random)
            pp_gguf_add_tensor(w, name, PP_TYPE_F32, 2, shapes[half]);
        for (int64_t r = 0; random && r < shapes[half][1] && !code; r++) {
            pp_random_row(random, PP_TYPE_F32, shapes[half][0], row);
            code = pp_gguf_write(w, row, (size_t)shapes[half][0] * sizeof *row, err);
        }
    }
    return code;
}

/* Announces all targets; with noise at hand, writes them. */
static enum pp_code walk(struct pp_gguf_writer *w, const struct pp_model *m, int rank, bool all,
                         struct pp_random *random, float *row, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int i = 0; i < m->plan.n_linears && !code; i++)
        if (is_changed(m->plan.linears[i].w, all))
            code = add_target(w, m->plan.linears[i].w, rank, random, row, err);
    return code;
}

enum pp_code pp_random_adapter_write(const struct pp_model *m, int rank, bool all, uint64_t seed, const char *path,
                                     struct pp_error *err)
{
    enum { MOST_RANK = 256 };
    struct pp_gguf_writer *w = NULL;
    int64_t widest = rank;
    if (rank < 1 || rank > MOST_RANK)
        return pp_fail(err, PP_ERR_USAGE, "an adapter's rank is 1 to %d", MOST_RANK);
    for (int i = 0; i < m->plan.n_linears; i++)
        widest = m->plan.linears[i].w->ne[0] > widest ? m->plan.linears[i].w->ne[0] : widest;
    struct pp_random *random = pp_random_new(seed);
    float *row = pp_malloc((size_t)widest * sizeof *row);
    enum pp_code code = random && row ? pp_gguf_writer_new(path, &w, err) : pp_fail_nomem(err, "an adapter");
    if (!code) {
        pp_gguf_add_text(w, "general.architecture", m->info.arch);
        pp_gguf_add_text(w, "general.type", "adapter");
        pp_gguf_add_text(w, "general.name", "random adapter");
        pp_gguf_add_text(w, "adapter.type", "lora");
        pp_gguf_add_f32(w, "adapter.lora.alpha", (float)rank / 8); /* a small change */
        code = walk(w, m, rank, all, NULL, NULL, err);
    }
    if (!code)
        code = pp_gguf_writer_begin(w, err);
    if (!code)
        code = walk(w, m, rank, all, random, row, err);
    if (!code)
        code = pp_gguf_writer_finish(w, err);
    pp_gguf_writer_free(w);
    pp_free(random);
    pp_free(row);
    return code;
}
