/* fetch.h - files and texts over HTTP, by libcurl. Blocking; for the thread of a command. */
#ifndef PP_SRC_FETCH_H
#define PP_SRC_FETCH_H

#include <stdint.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/cancel.h"
#include "engine/base/error.h"

/* Arguments for "%.*s": an address as it may be shown or kept, without what follows a question mark, which may be a
 * key. */
#define PP_SHOWN_URL(url) (int)strcspn(url, "?#"), url

/* Called by the thread that fetches. done, total: bytes; total 0: not known. rate: bytes a second of late. */
typedef void pp_fetch_progress(void *user, uint64_t done, uint64_t total, double rate);

enum { PP_FETCH_PATIENCE_S = 360 }; /* how long at most a server is waited for that sends nothing any more */

struct pp_fetch;
/* Looks at the file, which is whole, before it gets its name. PP_ERR_FORMAT: it is not what is wanted, and is removed;
 * *err says why. fd stays the caller's. */
typedef enum pp_code pp_fetch_check(const struct pp_fetch *f, int fd, struct pp_error *err);

struct pp_fetch {
    const char *url;         /* http:// or https:// */
    const char *path;        /* where the file appears, by rename, when all of it is there and right */
    uint64_t size;           /* that it must have; 0: what the server says */
    const char *sha256;      /* that it must have, 64 hexadecimal digits; or NULL */
    const char *token;       /* visible ASCII; sent to the server of `url` alone, over https or to this machine; or
                              * NULL */
    pp_fetch_check *check;   /* or NULL */
    pp_fetch_progress *progress; /* or NULL */
    void *user;
    const struct pp_cancel *cancel;
};

/* Goes on with what an earlier call left in PATH.part, if the server still has the same file (If-Range with its ETag or
 * date, kept in PATH.part.from), else begins anew. A broken line is tried again, as long as each time brings something.
 * *sha256, lower case, of the file. PP_ERR_NOT_FOUND: 404, 410. PP_ERR_CANCELLED: what is there stays for the next
 * time, if it can be gone on with (the server names the file by an ETag or a date). PP_ERR_BUSY: another program
 * fetches it just now. PP_ERR_FORMAT: size, checksum or what it is are wrong; then nothing stays. PP_ERR_IO: everything
 * else, such as a disk without room for the file and 512 MiB (of a small one a sixteenth) besides, which is looked at
 * before, and again while it grows. */
enum pp_code pp_fetch_file(const struct pp_fetch *f, char sha256[static 65], struct pp_error *err);
/* SHA-256 of a file that is there, lower case. PP_ERR_CANCELLED, PP_ERR_IO. */
enum pp_code pp_file_sha256(const char *path, const struct pp_cancel *cancel, char sha256[static 65],
                            struct pp_error *err);
/* A text of at most `most` bytes. *next (may be NULL): where the server says that it goes on (a Link header, rel=next),
 * "" if it does not; an address of the same scheme, host and port; another one is PP_ERR_UNSUPPORTED,
 * and what is no address PP_ERR_FORMAT. */
enum pp_code pp_fetch_text(const char *url, const char *token, size_t most, const struct pp_cancel *cancel,
                           struct pp_buf *out, struct pp_buf *next, struct pp_error *err);

#endif
