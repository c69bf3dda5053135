/* fill_store.h - thousands of conversations, for tests and measurements of the store.
 *
 * Everything follows from the seed. Words are drawn by Zipf's law from 50,000 made-up ones (the commonest are "the",
 * "of", ...), with some Chinese, Japanese and emoji among them. Answers are a few times as long as questions; one in
 * 500 is thousands of words long. Conversations are interleaved, as when people go back to older ones; one question in
 * 30 has a second answer. Rows go through the tables and triggers of the schema, in large transactions. */
#ifndef PP_TESTS_FILL_STORE_H
#define PP_TESTS_FILL_STORE_H

#include <stdint.h>
#include <stdio.h>

#include "src/store.h"

struct fill_options {
    int64_t sessions;       /* how many to add */
    int64_t messages;       /* in all of them together, about */
    int64_t words;          /* average length of a question; answers are four times as long */
    uint64_t seed;
    const char *everywhere; /* a word that every message begins with; NULL: none */
    FILE *progress;         /* for progress messages; NULL: none */
};

/* Adds to the database at path, which pp_store_open has made. 0, or -1 after a sentence on stderr. */
int fill_store(const char *path, const struct fill_options *o);

/* All conversations at once (pp_session_list_free); query: text of a search, NULL or "" for all. */
enum pp_code list_sessions(struct pp_store *st, const char *query, struct pp_session **list, size_t *n,
                           struct pp_error *err);

#endif
