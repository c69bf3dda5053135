/* part_name.h - names of split models, NAME-00001-of-00003, as llama-gguf-split and transformers write them, and names
 * in paths. */
#ifndef PP_BASE_PART_NAME_H
#define PP_BASE_PART_NAME_H

#include <stddef.h>

enum {
    PP_PART_ENDING = 15, /* characters of "-00001-of-00003" */
    PP_PART_NUMBER = 6,  /* of its "-00001" */
};

/* If the n characters of a name, without ".gguf", end like this: PP_PART_ENDING; otherwise 0. */
size_t pp_part_ending(const char *name, size_t n);

/* The name of what a path leads to, *n bytes within it: its last part, without trailing slashes; for a snapshot in the
 * cache of Hugging Face's programs, .../models--OWNER--NAME/snapshots/HASH, it is NAME. */
const char *pp_path_name(const char *path, size_t *n);

#endif
