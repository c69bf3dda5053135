/* error.h - how functions report failure.
 *
 * A function that can fail returns an enum pp_code (PP_OK is 0) and, when it fails, fills the caller's
 * struct pp_error with the same code and a sentence that says what happened and what to do about it.
 * Nothing below main() exits or prints. A NULL struct pp_error is allowed everywhere. */
#ifndef PP_BASE_ERROR_H
#define PP_BASE_ERROR_H

enum pp_code {
    PP_OK = 0,
    PP_ERR_USAGE,       /* the caller or the command line asked for something that makes no sense */
    PP_ERR_IO,          /* the operating system refused: open, read, write, full disk */
    PP_ERR_FORMAT,      /* a file or a text is malformed */
    PP_ERR_UNSUPPORTED, /* well formed, but of a kind that pippin cannot run */
    PP_ERR_NOT_FOUND,   /* no such model, session, tensor, ... */
    PP_ERR_NOMEM,       /* out of memory, or over a limit that the user set */
    PP_ERR_CONTEXT,     /* the prompt or the conversation does not fit the context */
    PP_ERR_CANCELLED,   /* stopped on request */
    PP_ERR_MISMATCH,    /* a snapshot or an adapter belongs to something else */
    PP_ERR_BUSY,        /* somebody else holds it: a session open in another program, a locked database */
};

struct pp_error {
    enum pp_code code;
    char text[512]; /* UTF-8, one sentence or two, no trailing newline */
};

/* Fills *err (if not NULL) and returns code. A text that is too long loses its middle, as both ends tell most. Line
 * breaks and tabs become visible symbols (pp_utf8_line). */
enum pp_code pp_fail(struct pp_error *err, enum pp_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the text that is already in *err; returns err->code, or PP_ERR_IO if err is NULL: a
 * caller that has the code returns its own instead. */
enum pp_code pp_fail_prefix(struct pp_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Appends "; advice" to the text in *err, which is cut if both do not fit. Returns what pp_fail_prefix returns. */
enum pp_code pp_fail_advice(struct pp_error *err, const char *advice);

/* PP_ERR_NOMEM with the usual sentence; `what` names the thing that did not fit ("the token table"). */
enum pp_code pp_fail_nomem(struct pp_error *err, const char *what);

/* The process exit code of the command line for a code: 0 done, 1 failure, 2 usage, 3 not found,
 * 4 out of memory, 5 context overflow, 130 interrupted. */
int pp_exit_code(enum pp_code code);

#endif
