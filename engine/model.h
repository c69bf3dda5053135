/* model.h - the inside of struct pp_model; private to the engine. */
#ifndef PP_ENGINE_MODEL_H
#define PP_ENGINE_MODEL_H

#include <pthread.h>

#include "engine/engine.h"
#include "engine/plan.h"
#include "engine/source.h"

struct pp_model {
    struct pp_source *source;
    struct pp_tokenizer *tokenizer; /* or NULL */
    struct pp_plan plan;
    struct pp_model_info info;
    char *name;                     /* of info */
    bool files_known;
    struct pp_hash128 files;        /* what the file system said of the model's files when they were opened, and what
                                       numbers were read from them */
    pthread_mutex_t identity_lock;
    bool identity_known;            /* -- protected by identity_lock */
    struct pp_sha256 identity;      /* -- protected by identity_lock */
};

/* Fills `files`, of a model whose source was opened. */
void pp_model_note_files(struct pp_model *m);
/* A name for the file this model was opened from, by what the file system said of it then. false: it is a folder. */
bool pp_model_file_key(const struct pp_model *m, struct pp_hash128 *key);
/* The identity if it can be told at once: it was found before, by this process or, with the same cache_dir, another. */
bool pp_model_identity_known(const struct pp_model *m, const char *cache_dir, struct pp_sha256 *out);

#endif
