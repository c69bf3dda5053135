/* store_fixture.h - stores for tests, and access to their files that bypasses the store. Any failure here fails the
 * test. */
#ifndef PP_TESTS_STORE_FIXTURE_H
#define PP_TESTS_STORE_FIXTURE_H

#include "src/store.h"

/* The path of a store that does not exist yet: a new name in the temporary folder each time. Valid until the next
 * call. */
const char *fresh_store(void);
struct pp_store *open_store(const char *path);
/* Return the new id. parent 0: none. */
int64_t add_session(struct pp_store *st, const char *title);
int64_t add_message(struct pp_store *st, int64_t session, int64_t parent, enum pp_role role, const char *text);
/* pp_store_message_write of a text without reasoning. */
enum pp_code write_answer(struct pp_store *st, int64_t id, const char *text, enum pp_message_state state,
                          const char *stats, int64_t n_tokens, struct pp_error *e);

/* How many conversations a search finds. */
size_t hits(struct pp_store *st, const char *query);

/* Run a statement on a connection of their own; raw_int returns the number that a query yields. */
void raw_sql(const char *path, const char *sql);
int64_t raw_int(const char *path, const char *sql);
/* SQLite's integrity check passes, no foreign key dangles, and the search tables agree with what they index. */
void assert_store_sound(const char *path);

#endif
