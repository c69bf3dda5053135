/* part_name.h - names of models in several files, NAME-00001-of-00003, as llama-gguf-split and transformers have them,
 * and in paths. */
#ifndef PP_BASE_PART_NAME_H
#define PP_BASE_PART_NAME_H

#include <stddef.h>

enum {
    PP_PART_ENDING = 15, /* characters of "-00001-of-00003" */
    PP_PART_NUMBER = 6,  /* of its "-00001" */
};

/* Whether the n characters of a name, without ".gguf", end so: PP_PART_ENDING, or 0. */
size_t pp_part_ending(const char *name, size_t n);

/* What a path calls what is there, *n bytes within it: its last part, without slashes behind it; but NAME of a
 * snapshot in the cache of Hugging Face's programs, .../models--OWNER--NAME/snapshots/HASH. */
const char *pp_path_name(const char *path, size_t *n);

#endif
