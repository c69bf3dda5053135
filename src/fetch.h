/* fetch.h - downloads files and texts over HTTP with libcurl. Blocking; for the thread of a command. */
#ifndef PP_SRC_FETCH_H
#define PP_SRC_FETCH_H

#include <stdint.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/cancel.h"
#include "engine/base/error.h"

/* Arguments for "%.*s": a URL as it may be shown or stored, without its query, which may contain a key. */
#define PP_SHOWN_URL(url) (int)strcspn(url, "?#"), url

/* Called by the downloading thread. done, total: bytes; total 0: unknown. rate: current bytes per second. */
typedef void pp_fetch_progress(void *user, uint64_t done, uint64_t total, double rate);

enum { PP_FETCH_PATIENCE_S = 360 }; /* the longest time that a silent server is waited for */

struct pp_fetch;
/* Checks a complete file before it gets its name. PP_ERR_FORMAT: it is not what was wanted, and is removed; *err
 * says why. fd stays the caller's. */
typedef enum pp_code pp_fetch_check(const struct pp_fetch *f, int fd, struct pp_error *err);

struct pp_fetch {
    const char *url;         /* http:// or https:// */
    const char *path;        /* where the file appears, by rename, when it is complete and correct */
    uint64_t size;           /* required size; 0: as the server says */
    const char *sha256;      /* required SHA-256, 64 hexadecimal digits; or NULL */
    const char *token;       /* printable ASCII; sent only to the server of `url`, by https or to this machine; or
                              * NULL */
    pp_fetch_check *check;   /* or NULL */
    pp_fetch_progress *progress; /* or NULL */
    void *user;
    const struct pp_cancel *cancel;
};

/* Continues a partial download in PATH.part if the server still has the same file (If-Range with its ETag or date,
 * stored in PATH.part.from); otherwise starts from the beginning. A broken connection is retried as long as each
 * attempt makes progress. *sha256: of the file, in lower case. PP_ERR_NOT_FOUND: 404, 410. PP_ERR_CANCELLED: the
 * part stays for the next time, if it can be continued (the server has sent an ETag or a date). PP_ERR_BUSY: another
 * program is downloading it. PP_ERR_FORMAT: wrong size, checksum or contents; nothing stays. PP_ERR_IO: everything
 * else, including a disk without room for the file and another 512 MiB (or a sixteenth of a small disk), which is
 * checked at first, and again during the download. */
enum pp_code pp_fetch_file(const struct pp_fetch *f, char sha256[static 65], struct pp_error *err);
/* SHA-256 of an existing file, in lower case. PP_ERR_CANCELLED, PP_ERR_IO. */
enum pp_code pp_file_sha256(const char *path, const struct pp_cancel *cancel, char sha256[static 65],
                            struct pp_error *err);
/* Downloads a text of at most `most` bytes. *next (may be NULL): the URL of the next page (Link header, rel=next),
 * "" if there is none. It must have the same scheme, host and port; otherwise PP_ERR_UNSUPPORTED. PP_ERR_FORMAT: it
 * is not a URL. */
enum pp_code pp_fetch_text(const char *url, const char *token, size_t most, const struct pp_cancel *cancel,
                           struct pp_buf *out, struct pp_buf *next, struct pp_error *err);

#endif
