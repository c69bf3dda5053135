/* train.h - training adapters. Public header of libpippin.
 *
 * LoRA (arXiv 2106.09685) by back-propagation on the CPU: the model's weights stay as they are, in their stored type,
 * and only the A and B of the projections chosen are learnt, in F32, by AdamW (arXiv 1711.05101).
 *
 *   struct pp_train_data   examples: tokens, and which of them are to be learnt. Immutable once read.
 *   struct pp_trainer      a training under way: A and B, their moments, and memory for a pass.
 *
 * What comes out depends on the model, the data and the options, but on neither the number of threads nor the memory
 * nor the kernels: sums have one order. One thread at a time uses a trainer; nothing here is shared. */
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
    int64_t now;                /* what templates take for the time, seconds since the epoch */
};

struct pp_train_data_info {
    size_t n_lines;             /* that held something */
    size_t n_conversations;     /* of those, which the chat template wrote */
    size_t n_examples;
    size_t n_tokens, n_learnt;  /* of all examples */
    size_t longest;             /* tokens of the longest example */
    size_t n_cut;               /* examples that were longer than max_tokens and lost their end */
    size_t n_dropped;           /* that had nothing left to learn after that, and were left out */
};

/* Reads a file with one JSON object a line:
 *
 *   {"messages": [{"role": ..., "content": ...}, ...]}   a conversation (with "tools", if the template takes some)
 *   {"text": "..."}                                      a text
 *
 * A conversation becomes the tokens that its chat template makes of it; learnt are those of the assistant's answers:
 * from where the generation prompt ends to the token that ends the answer, inclusive. Where the two meet in one token,
 * that one belongs to the answer. A template that changes what it showed before (older answers without their thinking)
 * gives one example for each answer, as the model will meet it. Of a text all tokens are learnt, and one longer than
 * max_tokens becomes several examples.
 *
 * PP_ERR_FORMAT names the line that is no such object, has no answer, holds a control token spelled out in a message,
 * or whose template does not put the answer behind its prompt; PP_ERR_USAGE: there is nothing in the file, or
 * no template for its conversations. */
enum pp_code pp_train_data_read(const struct pp_model *m, const char *path, const struct pp_train_data_options *opt,
                                struct pp_train_data **out, struct pp_error *err);
/* The same from memory; name appears in errors. */
enum pp_code pp_train_data_parse(const struct pp_model *m, const char *text, size_t n, const char *name,
                                 const struct pp_train_data_options *opt, struct pp_train_data **out,
                                 struct pp_error *err);
/* Moves a share of the examples, chosen by the seed, to a set of their own: at least one, and one stays.
 * PP_ERR_USAGE: there are fewer than two. */
enum pp_code pp_train_data_split(struct pp_train_data *d, double share, uint64_t seed, struct pp_train_data **out,
                                 struct pp_error *err);
void pp_train_data_free(struct pp_train_data *d); /* NULL is fine */
const struct pp_train_data_info *pp_train_data_info(const struct pp_train_data *d);

/* --- a training ---------------------------------------------------------------------------------------- */

enum pp_train_target {
    PP_TRAIN_Q, PP_TRAIN_K, PP_TRAIN_V, PP_TRAIN_O, PP_TRAIN_GATE, PP_TRAIN_UP, PP_TRAIN_DOWN, PP_TRAIN_TARGETS,
};
/* "q", "k", "v", "o", "gate", "up", "down". */
const char *pp_train_target_name(enum pp_train_target t);
/* "q,v", "q_proj v_proj", "all": a set of 1 << target. PP_ERR_USAGE names the word that is none, and those that are. */
enum pp_code pp_train_targets_parse(const char *list, unsigned *targets, struct pp_error *err);

struct pp_train_options {
    /* what is learnt */
    int rank;                   /* 16 */
    float alpha;                /* 32: B A is multiplied by alpha / rank */
    bool rslora;                /* by alpha / sqrt(rank) instead (arXiv 2312.03732) */
    unsigned targets;           /* all */
    uint64_t seed;              /* of A's beginning, and of the order of examples */
    /* how fast */
    float lr;                   /* 2e-4 */
    float warmup;               /* 0.05: the part of all steps in which the rate rises from 0; then it falls to 0
                                   along a cosine */
    float weight_decay;         /* 0.01 */
    float clip;                 /* 1: gradients are made shorter than this; 0: never */
    int batch;                  /* 8: examples of a pass */
    int accumulate;             /* 1: passes of a step */
    int epochs;                 /* 3: how often all examples are gone through */
    int64_t steps;              /* 0; else so many steps, whatever the epochs */
    /* how it is done: nothing of this changes the result */
    int n_threads;              /* 0, and at most: one per core */
    uint64_t memory;            /* bytes at most; 0: what is free. With less than it could use, the passes forget what
                                   they computed layer by layer and compute it once more */
    const char *kernels;        /* NULL: the best */
    const char *cache_dir;      /* where the model's identity may be known; or NULL */
};
struct pp_train_options pp_train_options_default(void); /* the numbers above */

struct pp_trainer;

struct pp_train_info {
    uint64_t bytes;             /* of memory that the training takes besides the model's weights */
    size_t n_params;            /* that are learnt */
    int64_t n_steps, steps_per_epoch;
    int n_kept, n_layers;       /* layers whose values are kept from the forward pass for the backward one */
    int n_threads;
};

/* A training of m with the examples of `data`, which must outlive it, as must the model. validation may be NULL. Only
 * norms and biases are read of the weights yet. PP_ERR_UNSUPPORTED: models of this family are not trained here;
 * PP_ERR_NOMEM: it takes more memory than it may, and how much; PP_ERR_USAGE: a number makes no sense. */
enum pp_code pp_trainer_new(const struct pp_model *m, const struct pp_train_data *data,
                            const struct pp_train_data *validation, const struct pp_train_options *opt,
                            struct pp_trainer **out, struct pp_error *err);
void pp_trainer_free(struct pp_trainer *t); /* NULL is fine */
const struct pp_train_info *pp_trainer_info(const struct pp_trainer *t);
int64_t pp_trainer_step_number(const struct pp_trainer *t); /* steps that were done */

struct pp_train_step {
    double loss;                /* mean of -log p over the step's learnt tokens, before the step */
    double grad_norm;           /* before clipping */
    double lr;
    size_t n_tokens;            /* that were computed */
};

/* One step of AdamW over batch * accumulate examples. PP_ERR_CANCELLED, and any other failure: nothing has changed.
 * PP_ERR_FORMAT: the loss or the gradient is no number. */
enum pp_code pp_trainer_step(struct pp_trainer *t, const struct pp_cancel *cancel, struct pp_train_step *done,
                             struct pp_error *err);
/* *loss: mean of -log p, in nats, over the learnt tokens of the validation examples (or of other data). PP_ERR_USAGE:
 * they are longer than the examples that the trainer was made for; PP_ERR_CANCELLED. Changes nothing. */
enum pp_code pp_trainer_validate(struct pp_trainer *t, const struct pp_train_data *data, const struct pp_cancel *cancel,
                                 double *loss, struct pp_error *err);

/* Everything that a training needs to go on, in one file (format: pippin-formats(5)), which appears by rename when it
 * is complete. PP_ERR_IO: a full disk, say; the file that was there stays. */
enum pp_code pp_trainer_save(const struct pp_trainer *t, const char *path, struct pp_error *err);
/* Goes on where a file stopped: to the bit. PP_ERR_MISMATCH names what differs: model, data, options, examples for
 * validation; PP_ERR_FORMAT: the file is damaged; PP_ERR_NOT_FOUND. After a failure only pp_trainer_free may be
 * called. */
enum pp_code pp_trainer_load(struct pp_trainer *t, const char *path, struct pp_error *err);

/* The adapter as it is now: adapter_config.json and adapter_model.safetensors in a folder, which is made if need be;
 * and a GGUF adapter. Both appear by rename. PP_ERR_UNSUPPORTED: the family has no such name for a projection. */
enum pp_code pp_trainer_write_peft(const struct pp_trainer *t, const char *folder, struct pp_error *err);
enum pp_code pp_trainer_write_gguf(const struct pp_trainer *t, const char *path, struct pp_error *err);

/* --- a whole training ---------------------------------------------------------------------------------- */

struct pp_train_progress {
    int64_t step, n_steps;      /* steps that were done */
    int64_t first_step;         /* those that a resumption found done; 0 at a start */
    struct pp_train_step last;  /* of step > first_step */
    double validation;          /* the newest validation loss; NAN: none yet */
    bool validated;             /* it is of this moment */
    size_t n_tokens;            /* of all steps since the start or the resumption */
    double seconds;             /* likewise */
    const char *unsaved;        /* why no checkpoint could just be written, which is tried again later; or NULL */
};
typedef void pp_train_report(void *user, const struct pp_train_progress *p);

struct pp_train_run {
    const char *folder;         /* where everything is written; made if need be */
    bool resume;                /* go on with the checkpoint there; otherwise one that is there is PP_ERR_USAGE */
    int64_t eval_every;         /* steps; 0: ten times in a training. A checkpoint is written as often */
    pp_train_report *report;    /* after every step, validation and checkpoint that failed; or NULL */
    /* The adapter cannot be written: true if somebody is there who may make room, and it is to be tried again. Or
     * NULL. */
    bool (*again)(void *user, const char *why);
    void *user;
    const struct pp_cancel *cancel;
};

struct pp_train_result {
    int64_t steps;              /* that were done in all */
    double first_loss, last_loss;         /* of the first and the last step; NAN: not known */
    double first_validation, validation;  /* before the training and at its end; NAN: there were no examples */
    size_t n_tokens;            /* since the start or the resumption */
    double seconds;
};

/* Whether a training may begin in the folder, or go on there: what pp_train refuses before its first step, for who
 * wants to know before examples are read. PP_ERR_USAGE, PP_ERR_IO. */
enum pp_code pp_train_check(const char *folder, bool resume, struct pp_error *err);
/* All steps, with validation and checkpoints; then both adapters in the folder: PEFT's files, and NAME.gguf with the
 * folder's name; and the checkpoint goes. PP_ERR_USAGE: one of these is there already, which is not written over, or
 * a model.
 * PP_ERR_IO: there is no room for checkpoints, which is said at the beginning, or the adapter cannot be written: then
 * the last step has its checkpoint, for which room was kept. PP_ERR_BUSY: another training has the folder.
 * PP_ERR_CANCELLED: it stopped, and wrote a checkpoint to go on from.
 * PP_ERR_FORMAT: the loss is no number any more; the last checkpoint stands. */
enum pp_code pp_train(struct pp_trainer *t, const struct pp_train_run *run, struct pp_train_result *result,
                      struct pp_error *err);
/* The checkpoint's name in such a folder. */
extern const char pp_train_checkpoint[];

#endif
