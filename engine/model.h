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
    struct pp_hash128 files;        /* a hash of the file system's data about the model's files when they were opened,
                                       and of the numbers read from them */
    pthread_mutex_t identity_lock;
    bool identity_known;            /* -- protected by identity_lock */
    struct pp_sha256 identity;      /* -- protected by identity_lock */
};

/* Sets `files` once the source is open. */
void pp_model_note_files(struct pp_model *m);
/* A key for the file from which the model was opened, from the file system's data at that time. False: it is a
 * folder. */
bool pp_model_file_key(const struct pp_model *m, struct pp_hash128 *key);
/* The identity, if it is known already: this process or, with the same cache_dir, another has computed it. */
bool pp_model_identity_known(const struct pp_model *m, const char *cache_dir, struct pp_sha256 *out);

#endif
