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
    pthread_mutex_t identity_lock;
    bool identity_known;            /* -- protected by identity_lock */
    struct pp_sha256 identity;      /* -- protected by identity_lock */
};

#endif
