/* train.h - training adapters. Public header of libpippin.
 *
 * LoRA (arXiv 2106.09685) by back-propagation on the CPU: the model's weights are frozen, in their stored type, and
 * only A and B of the chosen projections are learnt, in F32, by AdamW (arXiv 1711.05101).
 *
 *   struct pp_train_data   examples: tokens, and which of them are learnt. Immutable once read.
 *   struct pp_trainer      a training run: A and B, their moments, and memory for a pass.
 *
 * The result depends on the model, the data and the options, but not on the number of threads, the memory or the
 * kernels: sums have a fixed order. One thread at a time uses a trainer; there is no shared state. */
#ifndef PP_ENGINE_TRAIN_H
#define PP_ENGINE_TRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/cancel.h"
#include "engine/base/error.h"

struct pp_model;

/* --- examples ------------------------------------------------------------------------------------------ */

struct pp_train_data;

struct pp_train_data_options {
    const char *chat_template;  /* Jinja source; NULL: the model's own */
    int64_t max_tokens;         /* of an example */
    int64_t now;                /* the time for templates, as in struct pp_template_input */
};

struct pp_train_data_info {
    size_t n_lines;             /* that are not empty */
    size_t n_conversations;     /* the part of n_lines with "messages" */
    size_t n_examples;
    size_t n_tokens, n_learnt;  /* of all examples */
    size_t longest;             /* tokens of the longest example */
    size_t n_cut;               /* examples longer than max_tokens, which were truncated */
    size_t n_dropped;           /* those that had nothing left to learn then, and were left out */
};

/* Reads a file with one JSON object a line:
 *
 *   {"messages": [{"role": ..., "content": ...}, ...]}   a conversation (with "tools", if the template takes some)
 *   {"text": "..."}                                      a text
 *
 * A conversation is rendered by its chat template; of its tokens, those of the assistant's answers are learnt: from the
 * end of the generation prompt to the token that ends the answer, inclusive. A token that spans both belongs to the
 * answer. If the template renders earlier messages differently later (older answers without their reasoning), each
 * answer becomes an example of its own, as the model will see it. Of a text all tokens are learnt, and one longer than
 * max_tokens becomes several examples.
 *
 * The objects may also span lines, and be elements of one list.
 *
 * The caller owns *out. PP_ERR_FORMAT names the line that is no such object, has no answer, has a control token spelled
 * out in a message, or whose template does not continue the prompt with the answer; PP_ERR_USAGE: the file is empty, or
 * there is no template for its conversations. */
enum pp_code pp_train_data_read(const struct pp_model *m, const char *path, const struct pp_train_data_options *opt,
                                struct pp_train_data **out, struct pp_error *err);
/* The same from memory; name appears in errors. */
enum pp_code pp_train_data_parse(const struct pp_model *m, const char *text, size_t n, const char *name,
                                 const struct pp_train_data_options *opt, struct pp_train_data **out,
                                 struct pp_error *err);
/* Moves a share of the examples, chosen by the seed, to a new set: at least one, and one stays. The caller owns *out.
 * PP_ERR_USAGE: there are fewer than two. */
enum pp_code pp_train_data_split(struct pp_train_data *d, double share, uint64_t seed, struct pp_train_data **out,
                                 struct pp_error *err);
void pp_train_data_free(struct pp_train_data *d); /* NULL is fine */
const struct pp_train_data_info *pp_train_data_info(const struct pp_train_data *d);

/* --- training ------------------------------------------------------------------------------------------ */

enum pp_train_target {
    PP_TRAIN_Q, PP_TRAIN_K, PP_TRAIN_V, PP_TRAIN_O, PP_TRAIN_GATE, PP_TRAIN_UP, PP_TRAIN_DOWN, PP_TRAIN_TARGETS,
};
/* "q", "k", "v", "o", "gate", "up", "down". */
const char *pp_train_target_name(enum pp_train_target t);
/* Parses "q,v", "q_proj v_proj", "all" to a set of 1 << target. PP_ERR_USAGE names the unknown word, and all known. */
enum pp_code pp_train_targets_parse(const char *list, unsigned *targets, struct pp_error *err);

/* Defaults are given first. */
struct pp_train_options {
    /* -- what is learnt -- */
    int rank;                   /* 16 */
    float alpha;                /* 32: B A is multiplied by alpha / rank */
    bool rslora;                /* by alpha / sqrt(rank) instead (arXiv 2312.03732) */
    unsigned targets;           /* all */
    uint64_t seed;              /* of A's initial values, and of the order of examples */
    /* -- the schedule -- */
    float lr;                   /* 2e-4 */
    float warmup;               /* 0.05: the part of all steps in which the rate rises from 0; then it falls to 0
                                   along a cosine */
    float weight_decay;         /* 0.01 */
    float clip;                 /* 1: the norm that gradients are clipped to; 0: they are not */
    int batch;                  /* 8: examples of a pass */
    int accumulate;             /* 1: passes of a step */
    int epochs;                 /* 3: passes over all examples */
    int64_t steps;              /* 0; else the number of steps, whatever the epochs */
    /* -- none of these changes the result -- */
    int n_threads;              /* 0, the default and the maximum: one per core */
    uint64_t memory;            /* bytes at most; 0: what is free. With less than could be used, activations of some
                                   layers are recomputed in the backward pass (checkpointing) */
    const char *kernels;        /* NULL: the best */
    const char *cache_dir;      /* where the model's identity may be cached; or NULL */
};
struct pp_train_options pp_train_options_default(void); /* those defaults */

struct pp_trainer;

struct pp_train_info {
    uint64_t bytes;             /* of memory besides the model's weights */
    size_t n_params;            /* learnt */
    int64_t n_steps, steps_per_epoch;
    int n_kept, n_layers;       /* n_kept: layers whose activations are kept for the backward pass */
    int n_threads;
};

/* A training run of m on the examples of `data`; both, and validation (or NULL), must outlive *out, which the caller
 * owns. Only the norms and biases are read at this point, not the other weights. PP_ERR_UNSUPPORTED: models of this
 * family cannot be trained; PP_ERR_NOMEM: the run needs more memory than allowed (the text says how much);
 * PP_ERR_USAGE: an option is invalid. */
enum pp_code pp_trainer_new(const struct pp_model *m, const struct pp_train_data *data,
                            const struct pp_train_data *validation, const struct pp_train_options *opt,
                            struct pp_trainer **out, struct pp_error *err);
void pp_trainer_free(struct pp_trainer *t); /* NULL is fine */
const struct pp_train_info *pp_trainer_info(const struct pp_trainer *t);
int64_t pp_trainer_step_number(const struct pp_trainer *t); /* steps done so far */

struct pp_train_step {
    double loss;                /* mean of -log p, in nats, over the step's learnt tokens, before the update */
    double grad_norm;           /* before clipping */
    double lr;
    size_t n_tokens;            /* run through the model */
};

/* One step of AdamW over batch * accumulate examples; *done (or NULL) says what it did. After a failure, cancellation
 * included, weights, moments and step number are as before. PP_ERR_FORMAT: the loss or the gradient is not finite. */
enum pp_code pp_trainer_step(struct pp_trainer *t, const struct pp_cancel *cancel, struct pp_train_step *done,
                             struct pp_error *err);
/* *loss: mean of -log p, in nats, over the learnt tokens of `data` (NULL: the trainer's validation examples). Trains
 * nothing. PP_ERR_USAGE: the examples are longer than those that the trainer was made for; PP_ERR_CANCELLED. */
enum pp_code pp_trainer_validate(struct pp_trainer *t, const struct pp_train_data *data, const struct pp_cancel *cancel,
                                 double *loss, struct pp_error *err);

/* Writes a checkpoint: all that a run needs to continue, in one file (format: pippin-formats(5)), renamed into place
 * once complete. PP_ERR_IO: a full disk, say; an older file at this path stays. */
enum pp_code pp_trainer_save(const struct pp_trainer *t, const char *path, struct pp_error *err);
/* Restores a checkpoint; the run then continues bit for bit as if it had not stopped. PP_ERR_MISMATCH names what
 * differs: the model, the data, the options or the validation examples; PP_ERR_FORMAT: the file is damaged or no
 * checkpoint; PP_ERR_UNSUPPORTED: another version of pippin wrote it; PP_ERR_NOT_FOUND. After a failure only
 * pp_trainer_free may be called. */
enum pp_code pp_trainer_load(struct pp_trainer *t, const char *path, struct pp_error *err);

/* Write the adapter as it is now, as PEFT's adapter_config.json and adapter_model.safetensors in a folder (made if
 * need be), or as a GGUF adapter. Files are renamed into place once complete. PP_ERR_UNSUPPORTED: the format has no
 * name for one of this family's projections. */
enum pp_code pp_trainer_write_peft(const struct pp_trainer *t, const char *folder, struct pp_error *err);
enum pp_code pp_trainer_write_gguf(const struct pp_trainer *t, const char *path, struct pp_error *err);

/* --- a whole training ---------------------------------------------------------------------------------- */

struct pp_train_progress {
    int64_t step, n_steps;      /* steps done; steps in all */
    int64_t first_step;         /* steps already done in the checkpoint resumed from; 0 in a new run */
    struct pp_train_step last;  /* of step > first_step */
    double validation;          /* the latest validation loss; NAN: none yet */
    bool validated;             /* it was computed after this very step */
    size_t n_tokens;            /* of all steps since the start or the resumption */
    double seconds;             /* time spent on them */
    const char *unsaved;        /* why a checkpoint has just failed (it is retried later); or NULL */
};
typedef void pp_train_report(void *user, const struct pp_train_progress *p);

struct pp_train_run {
    const char *folder;         /* where everything is written; made if need be */
    bool resume;                /* continue from the folder's checkpoint; without it, finding one is PP_ERR_USAGE */
    int64_t eval_every;         /* steps between validations; 0: ten in the run. A checkpoint is written as often */
    pp_train_report *report;    /* called after every step, validation and failed checkpoint; or NULL */
    /* Called when the adapter cannot be written: true to retry (a user may have freed disk space), false to give up.
     * Or NULL: give up. */
    bool (*again)(void *user, const char *why);
    void *user;
    const struct pp_cancel *cancel;
};

struct pp_train_result {
    int64_t steps;              /* done in all, earlier runs included */
    double first_loss, last_loss;         /* of the first and the last step; NAN: not known */
    double first_validation, validation;  /* before the training and at its end; NAN: there were no examples */
    size_t n_tokens;            /* since the start or the resumption */
    double seconds;
};

/* Whether a run may begin in the folder, or resume there: the checks that pp_train makes before its first step, for
 * callers who want to know before they parse the examples. PP_ERR_USAGE, PP_ERR_IO. */
enum pp_code pp_train_check(const char *folder, bool resume, struct pp_error *err);
/* Runs all steps, with validation and checkpoints; then writes both adapters to the folder (PEFT's files, and NAME.gguf
 * with the folder's name) and removes the checkpoint. *result (or NULL) is set after a failure too.
 * PP_ERR_USAGE: the folder holds an adapter already, which is never overwritten, or a model.
 * PP_ERR_IO: there is no room for checkpoints, which is found out before the first step; or the adapter cannot be
 * written: then a checkpoint of the last step is, in space that was reserved for it.
 * PP_ERR_BUSY: another run has the folder. PP_ERR_CANCELLED: it stopped and wrote a checkpoint to resume from.
 * PP_ERR_FORMAT: the loss is no longer finite; the last checkpoint stays. */
enum pp_code pp_train(struct pp_trainer *t, const struct pp_train_run *run, struct pp_train_result *result,
                      struct pp_error *err);
/* The checkpoint's name in such a folder. */
extern const char pp_train_checkpoint[];

#endif
