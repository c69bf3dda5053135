#include "tests/changed_folder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/engine.h"
#include "engine/safetensors.h"
#include "tests/passes.h"
#include "tests/small_model.h"
#include "tests/support.h"

bool changed_ends(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

const char changed_config[] = "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6}";

float *changed_by_lora(struct folder *f, const struct pp_tensor *w)
{
    const int64_t n_in = w->ne[0], n_out = w->ne[1];
    char name[160];
    const int stem = (int)(strlen(w->name) - strlen(".weight"));
    snprintf(name, sizeof name, "base_model.model.%.*s.lora_A.weight", stem, w->name);
    const float *a = folder_add(f, name, CHANGED_RANK, n_in, 0, 0.2f);
    snprintf(name, sizeof name, "base_model.model.%.*s.lora_B.weight", stem, w->name);
    const float *b = folder_add(f, name, n_out, CHANGED_RANK, 0, 0.2f);
    float *out = pp_malloc(w->size);
    assert_int_equal(w->type, PP_TYPE_F32);
    memcpy(out, w->data, w->size);
    for (int64_t o = 0; o < n_out; o++)
        for (int64_t i = 0; i < n_in; i++)
            for (int k = 0; k < CHANGED_RANK; k++)
                out[o * n_in + i] += CHANGED_ALPHA / CHANGED_RANK * b[o * CHANGED_RANK + k] * a[k * n_in + i];
    return out;
}

const char *changed_folder(const char *model, const char *const *names, changed_fn *change, struct folder *f)
{
    enum { MOST = 96 };
    struct pp_tensor tensors[MOST];
    float *changed[MOST];
    struct pp_safetensors *s;
    struct pp_error err;
    char path[512];
    int n_changed = 0;
    const char *to = fresh_path("merged");
    assert_int_equal(mkdir(to, 0700), 0);
    folder_copy_config(model, to);
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    assert_ok(pp_safetensors_open(path, &s, &err), err);
    const size_t n = pp_safetensors_n(s);
    assert_true(n <= MOST);
    for (size_t i = 0; i < n; i++) {
        tensors[i] = *pp_safetensors_at(s, i);
        for (const char *const *m = names; *m; m++)
            if (changed_ends(tensors[i].name, *m))
                tensors[i].data = changed[n_changed++] = change(f, &tensors[i]);
    }
    assert_true(n_changed > 0);
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    assert_ok(pp_safetensors_write(path, tensors, n, &err), err);
    for (int i = 0; i < n_changed; i++)
        pp_free(changed[i]);
    pp_safetensors_close(s);
    return to;
}

float *changed_logits_under(const char *model, const struct changed_on *on, int n_on, int n_vocab)
{
    enum { MOST = 4 };
    struct running r = run_small(model, NULL);
    struct pp_adapter_use uses[MOST] = {{NULL, 0}};
    struct pp_error err;
    int32_t ids[SMALL_TEXT];
    float *out = pp_calloc((size_t)(SMALL_TEXT * n_vocab), sizeof *out);
    small_text(ids, n_vocab);
    for (int i = 0; i < n_on; i++) {
        struct pp_adapter *a;
        assert_ok(pp_adapter_load_exact(r.m, on[i].path, &a, &err), err);
        uses[i] = (struct pp_adapter_use){a, on[i].strength};
    }
    assert_ok(pp_seq_set_adapters(r.s, uses, n_on, &err), err);
    run_in_passes(r.e, r.s, ids, SMALL_TEXT, 7, out);
    pp_seq_free(r.s);
    r.s = NULL;
    for (int i = 0; i < n_on; i++)
        pp_adapter_free((struct pp_adapter *)(uintptr_t)uses[i].adapter);
    stop_small(&r);
    return out;
}

float *changed_logits_at(const char *model, const char *adapter, float strength, int n_vocab)
{
    return changed_logits_under(model, &(struct changed_on){adapter, strength}, adapter ? 1 : 0, n_vocab);
}

float *changed_logits(const char *model, const char *adapter, int n_vocab)
{
    return changed_logits_at(model, adapter, 1, n_vocab);
}

double changed_off(const float *a, const float *b, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]) / fmax(1, fabs((double)b[i])));
    return most;
}
