/* hostile.h - what the fuzz targets and the tests with hostile files share.
 *
 * A fuzz target is a function that takes arbitrary bytes and must return 0 without a crash, a leak or ten seconds
 * passing. It releases everything it creates. Helpers abort() if they cannot set up what they need, or if a promise of
 * the code under test does not hold. */
#ifndef PP_TESTS_HOSTILE_H
#define PP_TESTS_HOSTILE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv); /* optional; called once */

/* The bytes of the input that have not been used yet. */
struct hostile_input {
    const uint8_t *data;
    size_t size;
};
uint8_t hostile_byte(struct hostile_input *in);                         /* 0 at the end */
/* A piece preceded by its length (two bytes, little-endian), shorter at the end of the input; NULL only if nothing is
 * left. */
const uint8_t *hostile_piece(struct hostile_input *in, size_t *n);

/* A file in memory, for code that wants a path. Each call with the same slot (0 to 11) replaces the contents of the
 * same file; its path stays valid. Nothing is written to a disk. */
const char *hostile_file(unsigned slot, const void *data, size_t size);
/* A folder whose files `names` (up to NULL; one may be in a subfolder) are those of slots 0, 1 ... It is made once, and
 * removed at exit. */
const char *hostile_folder(const char *const *names);
/* Whether that folder contains the file of that slot from now on. The slot's contents must be set afterwards. */
void hostile_show(unsigned slot, bool there);

/* The path of a GGUF file if the bytes begin like one (slot 2); otherwise of a folder with two files, the first from
 * the input's first piece, the second from the rest (slots 0 and 1). */
const char *hostile_gguf_or_folder(const char *const *names, const uint8_t *data, size_t size);

/* Paths to which a target may write: a folder and a file that do not exist yet, in memory; removed at exit. */
struct hostile_room {
    char folder[80], file[80];
};
const struct hostile_room *hostile_room(void);
/* Removes both, with the files of the folder. */
void hostile_room_empty(void);

/* The k-th list or object within a JSON value, counted from 0; NULL: there are fewer, and *k is less by their
 * number. */
struct cJSON;
struct cJSON *hostile_container(struct cJSON *node, int *k);
/* Makes an object of a list, or a list of an object, of at least n members. */
void hostile_turn(struct cJSON *node, int n);

/* Tokenises a text full of oddities in every way, and decodes the ids, which must lie within the vocabulary. */
void hostile_tokenize(const struct pp_tokenizer *t);

enum { TINY_VOCAB = 16 };
/* An engine with a model of the Llama family without a vocabulary: one layer of 32 values, one thread, 256 positions.
 * It is never freed. */
struct pp_engine *tiny_engine(void);
/* Runs one row through the model at the end of s. Errors are fine. */
void tiny_step(struct pp_seq *s, int32_t token);

#endif
