/* fetch.c - see fetch.h. HTTP semantics: RFC 9110 (ranges in section 14, If-Range in 13.1.5). */
#include "src/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/whole_io.h"
#include "engine/base/word.h"
#include "src/curl.h"
#include "src/figures.h"

enum {
    MAX_REDIRECTS = 8,
    CONNECT_S = 30,
    STALL_S = 60,            /* without receiving a byte */
    TRIES = 5,               /* attempts in a row that received nothing */
    PAUSE_MS = 200,          /* before the first new attempt; doubles each time */
    MAX_FROM = 512,          /* the size of an ETag or a date */
    MAX_NOTE = MAX_FROM + 96,
    PIECE = 1 << 20,
    LOOK = 256 << 10,        /* bytes between two checks of the free disk space */
};
_Static_assert(PP_FETCH_PATIENCE_S == (TRIES + 1) * STALL_S, "the one that brought something, and those that do not");
/* The progress that a kill or a power cut may cost. */
static const uint64_t note_after_ns = 1000000000;

/* --- a request ------------------------------------------------------------------------------------------------ */

struct part {
    char *path, *from_path;      /* PATH.part, PATH.part.from */
    char from[MAX_FROM];         /* the ETag or date of the file that the part belongs to; "" if unknown */
    char source[65];             /* SHA-256 of that file's URL, without its query */
    bool noted;                  /* PATH.part.from has been written, */
    uint64_t noted_ns;           /* at this time */
};

struct request {
    const struct pp_curl *curl;
    const struct pp_fetch *f;    /* for a file; else NULL */
    struct part *part;           /* for a file; else NULL */
    const struct pp_cancel *cancel;
    struct pp_buf *text;         /* for a text */
    size_t most;
    struct pp_buf *next;         /* the URL of the next page as in the Link header; or NULL */
    bool next_unread;            /* there is a next page, but its URL could not be read */
    int fd;                      /* of the partial file */
    uint64_t have;               /* bytes in it */
    uint64_t asked;              /* where the requested range begins; 0: the whole file */
    /* from the response */
    long status;
    uint64_t length, total;      /* of the body; of the file: 0 if unknown */
    bool range_ok, other_part, other_file;
    char from[MAX_FROM];         /* strong ETag, or the date of the last modification */
    bool is_etag, began, too_long;
    int write_errno;
    uint64_t look_at;            /* the value of `have` at which the disk space is checked again */
    struct pp_error no_room;     /* has a code if the disk is full */
    uint64_t since_ns, since_bytes; /* the interval of the current rate */
    double rate;
};

static bool is_header(const char *line, size_t n, const char *name, const char **value, size_t *len)
{
    const size_t k = strlen(name);
    if (n <= k || pp_ncasecmp(line, name, k) != 0 || line[k] != ':')
        return false;
    const char *v = line + k + 1, *end = line + n;
    while (v < end && (*v == ' ' || *v == '\t'))
        v++;
    while (end > v && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' '))
        end--;
    *value = v;
    *len = (size_t)(end - v);
    return true;
}

static uint64_t number(const char *s, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n && s[i] >= '0' && s[i] <= '9' && v < UINT64_MAX / 16; i++)
        v = 10 * v + (uint64_t)(s[i] - '0');
    return v;
}

/* Parses Content-Range: "bytes 100-199/200", or "*" and the size. */
static void read_range(struct request *r, const char *v, size_t n)
{
    const char *slash = memchr(v, '/', n);
    if (n < 7 || pp_ncasecmp(v, "bytes ", 6) != 0 || !slash)
        return;
    r->total = number(slash + 1, (size_t)(v + n - slash - 1));
    r->range_ok = number(v + 6, n - 6) == r->asked;
}

/* Whether a text from a server may be sent back in a header: printable ASCII, on one line. */
static bool is_plain(const char *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (v[i] < ' ' || v[i] > '~')
            return false;
    return n > 0;
}

/* A part of a header. */
struct span {
    const char *at;
    size_t n;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && is_blank(*p))
        p++;
    return p;
}

/* Whether one of the words, separated by white space, equals this one. */
static bool has_word(struct span words, const char *word)
{
    const char *p = words.at, *end = p + words.n;
    while ((p = skip_blanks(p, end)) < end) {
        const char *begin = p;
        while (p < end && !is_blank(*p))
            p++;
        if ((size_t)(p - begin) == strlen(word) && pp_ncasecmp(begin, word, strlen(word)) == 0)
            return true;
    }
    return false;
}

/* Parses a parameter after a semicolon: NAME, NAME=VALUE or NAME="VALUE", with optional white space. Returns its
 * end. */
static const char *read_parameter(const char *p, const char *end, struct span *name, struct span *value)
{
    p = skip_blanks(p, end);
    name->at = p;
    while (p < end && *p != '=' && *p != ';' && *p != ',' && !is_blank(*p))
        p++;
    name->n = (size_t)(p - name->at);
    p = skip_blanks(p, end);
    *value = (struct span){p, 0};
    if (p == end || *p != '=')
        return p;
    p = skip_blanks(p + 1, end);
    const bool quoted = p < end && *p == '"';
    value->at = p += quoted;
    if (quoted)
        while (p < end && *p != '"')
            p += *p == '\\' && end - p > 1 ? 2 : 1;
    else
        while (p < end && *p != ';' && *p != ',' && !is_blank(*p))
            p++;
    value->n = (size_t)(p - value->at);
    return p + (quoted && p < end);
}

/* Parses the parameters of a link, and advances *at to the comma after them. Whether the relation is "next"; only
 * the first "rel" counts. */
static bool is_next_link(const char **at, const char *end)
{
    struct span name, value, rel = {0};
    const char *p = *at;
    for (;;) {
        while (p < end && *p != ';' && *p != ',')
            p++;
        if (p == end || *p == ',')
            break;
        p = read_parameter(p + 1, end, &name, &value);
        if (!rel.at && has_word(name, "rel"))
            rel = value;
    }
    *at = p;
    return rel.at && has_word(rel, "next");
}

/* Parses a Link header, such as "<https://host/path?page=2>; rel=\"next\", <https://host/path?page=9>; rel=\"last\""
 * (RFC 8288). */
static void read_link(struct request *r, const char *v, size_t n)
{
    const char *end = v + n, *open, *close;
    while ((open = memchr(v, '<', (size_t)(end - v))) && (close = memchr(open, '>', (size_t)(end - open)))) {
        const size_t len = (size_t)(close - open - 1);
        v = close + 1;
        if (!is_next_link(&v, end))
            continue;
        r->next_unread = !is_plain(open + 1, len);
        pp_buf_clear(r->next);
        pp_buf_add(r->next, open + 1, r->next_unread ? 0 : len);
        return;
    }
}

static size_t on_header(char *line, size_t size, size_t count, void *request)
{
    struct request *r = request;
    const size_t n = size * count;
    const char *v;
    size_t len;
    if (n > 5 && strncmp(line, "HTTP/", 5) == 0) { /* a response begins; there may be several, by redirects */
        const char *space = memchr(line, ' ', n);
        r->status = space ? (long)number(space + 1, (size_t)(line + n - space - 1)) : 0;
        r->length = r->total = 0;
        r->range_ok = r->is_etag = r->next_unread = false;
        r->from[0] = 0;
        if (r->next)
            pp_buf_clear(r->next);
    } else if (is_header(line, n, "Content-Length", &v, &len)) {
        r->length = number(v, len);
    } else if (is_header(line, n, "Content-Range", &v, &len)) {
        read_range(r, v, len);
    } else if (r->next && is_header(line, n, "Link", &v, &len)) {
        read_link(r, v, len);
    } else if (is_header(line, n, "ETag", &v, &len) && len < MAX_FROM && is_plain(v, len) && len > 2 && v[0] == '"') {
        /* weak ETags, which do not guarantee equal bytes, begin with W/ */
        snprintf(r->from, sizeof r->from, "%.*s", (int)len, v);
        r->is_etag = true;
    } else if (is_header(line, n, "Last-Modified", &v, &len) && len < MAX_FROM && is_plain(v, len) &&
               !r->is_etag) {
        snprintf(r->from, sizeof r->from, "%.*s", (int)len, v);
    }
    return n;
}

/* Whether the server sends the rest of another file than that which the part belongs to: some ignore If-Range. Parts
 * may be joined only if their ETags or dates are equal (RFC 9110, 15.3.7.3). */
static bool is_other_file(const struct request *r)
{
    const char *had = r->part->from;
    return r->status == 206 && r->asked && r->from[0] && (had[0] == '"') == r->is_etag && strcmp(had, r->from) != 0;
}

/* Truncates the partial file, as the server sends the whole file. */
static bool begin_anew(struct request *r)
{
    r->have = 0;
    return ftruncate(r->fd, 0) == 0 && lseek(r->fd, 0, SEEK_SET) == 0;
}

/* The size of the file according to the server; 0: unknown. */
static uint64_t announced(const struct request *r)
{
    if (r->total)
        return r->total;
    return r->length ? r->length + (r->status == 206 ? r->asked : 0) : 0;
}

/* Disk space that downloads must leave, for saving conversations among other things. */
static uint64_t reserved_space(const struct statvfs *v)
{
    const uint64_t most = (uint64_t)512 << 20, part = (uint64_t)v->f_blocks * v->f_frsize / 16;
    return part < most ? part : most;
}

/* Whether the disk of `fd` has room for the rest of a file of `all` bytes (0: unknown), of which `have` are there. */
static enum pp_code check_room(int fd, uint64_t have, uint64_t all, struct pp_error *err)
{
    struct statvfs v;
    if (fstatvfs(fd, &v) != 0 || (all && have >= all))
        return PP_OK;
    const uint64_t room = (uint64_t)v.f_bavail * v.f_frsize, keep = reserved_space(&v), left = all ? all - have : 1;
    if (keep <= room && left <= room - keep)
        return PP_OK;
    if (all)
        return pp_fail(err, PP_ERR_IO, "%s are still missing, but the disk has only %s left, of which %s stay free; "
                                       "free some space, then run this again", pp_size(left).text, pp_size(room).text,
                                       pp_size(keep).text);
    return pp_fail(err, PP_ERR_IO, "%s have been downloaded, the total is unknown, and the disk is down to the %s "
                                   "that stay free; free some space and run this again, if the file can really be "
                                   "that large", pp_size(have).text,
                   pp_size(keep).text);
}

/* --- the origin of a partial file --------------------------------------------------------------------------------- */

/* Hashes the URL. ETags and dates are valid for one URL only: files elsewhere may have the same ones. */
static void name_source(const char *url, char out[static 65])
{
    struct pp_sha256_stream s;
    pp_sha256_begin(&s);
    pp_sha256_update(&s, url, strcspn(url, "?#"));
    const struct pp_sha256 h = pp_sha256_end(&s);
    pp_sha256_hex(&h, out);
}

/* The next line of *s, without its line end; returns its length. */
static size_t next_line(const char **s, const char **line)
{
    const size_t n = strcspn(*s, "\r\n");
    *line = *s;
    *s += n + strspn(*s + n, "\r\n");
    return n;
}

/* Reads PATH.part.from, which also says how many bytes are certain to be on the disk; truncates the part to them.
 * Older versions wrote it without that number, when the part was complete. */
static void read_from(struct part *p, int fd, uint64_t *have)
{
    char *text;
    const char *line;
    size_t n;
    if (pp_read_file(p->from_path, MAX_NOTE, &text, &n, NULL) != PP_OK)
        return;
    const char *at = text;
    n = next_line(&at, &line);
    snprintf(p->from, sizeof p->from, "%.*s", (int)n, line);
    p->noted = n > 0;
    n = next_line(&at, &line);
    const uint64_t sure = number(line, n);
    if (n && sure < *have && ftruncate(fd, (off_t)sure) == 0)
        *have = sure;
    n = next_line(&at, &line);
    if (n && strncmp(line, p->source, n) != 0) {
        p->from[0] = 0;
        p->noted = false;
    }
    pp_free(text);
}

/* Writes PATH.part.from, without which the next download starts from the beginning. If that fails, an earlier one
 * for the same file is still valid. */
static void note_from(struct part *p, const struct request *r)
{
    char text[MAX_NOTE];
    const bool same = p->noted && strcmp(p->from, r->from) == 0;
    snprintf(p->from, sizeof p->from, "%s", r->from);
    p->noted_ns = pp_now_ns();
    const int n = snprintf(text, sizeof text, "%s\n%" PRIu64 "\n%s\n", p->from, r->have, p->source);
    const bool written = p->from[0] && fdatasync(r->fd) == 0 &&
                         pp_write_file(p->from_path, text, (size_t)n, 0600, NULL) == PP_OK;
    p->noted = written || same;
    if (!p->noted)
        unlink(p->from_path);
}

static size_t on_file(char *data, size_t size, size_t count, void *request)
{
    struct request *r = request;
    size_t n = size * count;
    if (r->status != 200 && r->status != 206)
        return n; /* the body of an error */
    if (!r->began && r->status == 206 && !r->range_ok) {
        r->other_part = true;
        return 0;
    }
    if (!r->began && is_other_file(r)) {
        r->other_file = true;
        return 0;
    }
    if (!r->began && r->status == 200 && !begin_anew(r)) {
        r->write_errno = errno;
        return 0;
    }
    if (!r->began)
        r->look_at = 0; /* the total size is known now, so check the disk space */
    if (!r->began || pp_now_ns() - r->part->noted_ns > note_after_ns)
        note_from(r->part, r);
    r->began = true;
    const uint64_t all = r->f->size ? r->f->size : announced(r);
    if (all && (r->have > all || n > all - r->have)) { /* otherwise it might continue until the disk is full */
        r->too_long = true;
        return 0;
    }
    if (r->have >= r->look_at) {
        r->look_at = r->have + LOOK;
        if (check_room(r->fd, r->have, all, &r->no_room))
            return 0;
    }
    if (!pp_write_whole(r->fd, data, n)) {
        r->write_errno = errno;
        return 0;
    }
    r->have += n;
    return n;
}

static size_t on_text(char *data, size_t size, size_t count, void *request)
{
    struct request *r = request;
    const size_t n = size * count;
    if (n > r->most - (r->text->len < r->most ? r->text->len : r->most)) {
        r->too_long = true;
        return 0;
    }
    pp_buf_add(r->text, data, n);
    return r->text->bad ? 0 : n;
}

/* Called several times per second, even if nothing arrives. */
static int on_progress(void *request, curl_off_t total, curl_off_t now, curl_off_t up, curl_off_t up_now)
{
    enum { WINDOW_NS = 1000000000 };
    struct request *r = request;
    const uint64_t t = pp_now_ns();
    (void)total, (void)now, (void)up, (void)up_now;
    if (r->f && r->f->progress) {
        if (!r->since_ns || t - r->since_ns > WINDOW_NS) {
            const double rate = r->since_ns && r->have > r->since_bytes
                                    ? (double)(r->have - r->since_bytes) * 1e9 / (double)(t - r->since_ns) : 0;
            r->rate = r->rate > 0 && rate > 0 ? 0.7 * r->rate + 0.3 * rate : rate;
            r->since_ns = t;
            r->since_bytes = r->have;
        }
        r->f->progress(r->f->user, r->have, r->f->size ? r->f->size : announced(r), r->rate);
    }
    return pp_cancelled(r->cancel);
}

/* Whether a token may be sent to this URL: to this machine, or encrypted. */
static bool may_send(const char *url)
{
    static const char *const here[] = {"http://127.0.0.1", "http://localhost", "http://[::1]"};
    bool safe = strncmp(url, "https://", 8) == 0;
    for (size_t i = 0; i < sizeof here / sizeof *here; i++) {
        const size_t n = strlen(here[i]);
        safe = safe || (strncmp(url, here[i], n) == 0 && (url[n] == ':' || url[n] == '/' || !url[n]));
    }
    return safe;
}

static struct curl_slist *add_header(const struct pp_curl *curl, struct curl_slist *list, const char *name,
                                     const char *value, bool *ok)
{
    struct pp_buf line = {0};
    pp_buf_fmt(&line, "%s: %s", name, value);
    struct curl_slist *longer = line.bad ? NULL : curl->slist_append(list, line.data);
    pp_buf_free(&line);
    *ok = *ok && longer;
    return longer ? longer : list;
}

/* Performs the request; CURLE_OUT_OF_MEMORY if it cannot be set up. */
static CURLcode perform(struct request *r, const char *url, const char *token, const char *if_range)
{
    const struct pp_curl *curl = r->curl;
    char range[32];
    bool ok = true;
    struct curl_slist *headers = NULL;
    CURL *c = curl->easy_init();
    if (!c)
        return CURLE_OUT_OF_MEMORY;
    const char *protocols = strncmp(url, "https://", 8) == 0 ? "https" : "http,https";
    ok = !token || is_plain(token, strlen(token)); /* a line feed in it would add a header to the request */
    if (token && may_send(url)) {
        struct pp_buf bearer = {0};
        pp_buf_fmt(&bearer, "Bearer %s", token);
        /* curl does not send this to other hosts */
        headers = add_header(curl, headers, "Authorization", pp_buf_cstr(&bearer), &ok);
        ok = ok && !bearer.bad;
        pp_buf_free(&bearer);
    }
    if (r->asked && if_range)
        headers = add_header(curl, headers, "If-Range", if_range, &ok);
    snprintf(range, sizeof range, "%" PRIu64 "-", r->asked);
    ok = ok && curl->easy_setopt(c, CURLOPT_URL, url) == CURLE_OK &&
         curl->easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
         curl->easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, protocols) == CURLE_OK &&
         curl->easy_setopt(c, CURLOPT_HTTPHEADER, headers) == CURLE_OK &&
         (!r->asked || curl->easy_setopt(c, CURLOPT_RANGE, range) == CURLE_OK);
    curl->easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl->easy_setopt(c, CURLOPT_MAXREDIRS, (long)MAX_REDIRECTS);
    curl->easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl->easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl->easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
    curl->easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl->easy_setopt(c, CURLOPT_USERAGENT, "pippin/" PP_VERSION);
    curl->easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl->easy_setopt(c, CURLOPT_HEADERDATA, r);
    curl->easy_setopt(c, CURLOPT_WRITEFUNCTION, r->text ? on_text : on_file);
    curl->easy_setopt(c, CURLOPT_WRITEDATA, r);
    curl->easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl->easy_setopt(c, CURLOPT_XFERINFODATA, r);
    curl->easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    CURLcode rc = ok ? curl->easy_perform(c) : CURLE_OUT_OF_MEMORY;
    curl->slist_free_all(headers);
    curl->easy_cleanup(c);
    return rc;
}

static enum pp_code refused(const char *url, long status, struct pp_error *err)
{
    if (status == 404 || status == 410)
        return pp_fail(err, PP_ERR_NOT_FOUND, "%.*s does not exist (HTTP status %ld)", PP_SHOWN_URL(url), status);
    if (status == 401 || status == 403)
        return pp_fail(err, PP_ERR_IO,
                       "%.*s needs permission (HTTP status %ld); if you have access, put your token into the variable "
                       "HF_TOKEN, or as a line HOST TOKEN into the file tokens next to pippin.conf",
                       PP_SHOWN_URL(url), status);
    return pp_fail(err, PP_ERR_IO, "%.*s: the server answers with HTTP status %ld", PP_SHOWN_URL(url), status);
}

static enum pp_code fail_curl(const struct request *r, const char *url, CURLcode rc, struct pp_error *err)
{
    if (pp_cancelled(r->cancel))
        return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
    if (rc == CURLE_OUT_OF_MEMORY && r->status) /* curl also returns this for a header line that is too long */
        return pp_fail(err, PP_ERR_IO, "%.*s: a header of the server's answer is too long, or there is no memory for "
                       "it", PP_SHOWN_URL(url));
    if (rc == CURLE_OUT_OF_MEMORY)
        return pp_fail_nomem(err, "a download");
    if (r->write_errno)
        return pp_fail(err, PP_ERR_IO, "cannot write the download: %s", strerror(r->write_errno));
    if (r->other_part)
        return pp_fail(err, PP_ERR_IO, "%.*s: the server sends a different part of the file than requested",
                       PP_SHOWN_URL(url));
    if (rc == CURLE_PARTIAL_FILE || rc == CURLE_RECV_ERROR || rc == CURLE_OPERATION_TIMEDOUT)
        return pp_fail(err, PP_ERR_IO, "%.*s: the connection broke (%s); try again later", PP_SHOWN_URL(url),
                       r->curl->easy_strerror(rc));
    return pp_fail(err, PP_ERR_IO, "%.*s: %s", PP_SHOWN_URL(url), r->curl->easy_strerror(rc));
}

/* Whether two URLs have the same server, as curl parses them: scheme, host and port. */
static bool same_server(const struct pp_curl *curl, CURLU *a, CURLU *b)
{
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    bool same = true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char *x = NULL, *y = NULL;
        same = same && curl->url_get(a, parts[i], &x, CURLU_DEFAULT_PORT) == CURLUE_OK &&
               curl->url_get(b, parts[i], &y, CURLU_DEFAULT_PORT) == CURLUE_OK && pp_casecmp(x, y) == 0;
        curl->free(x);
        curl->free(y);
    }
    return same;
}

/* Makes *next absolute (it may be relative to `url`), and checks that it leads to the same server, as it gets the
 * same token. */
static enum pp_code find_next(const struct pp_curl *curl, const char *url, struct pp_buf *next, struct pp_error *err)
{
    char *whole = NULL;
    CURLU *from = curl->url(), *to = curl->url();
    enum pp_code code = from && to && !next->bad ? PP_OK : pp_fail_nomem(err, "an address");
    CURLUcode rc = CURLUE_OK;
    if (!code && (rc = curl->url_set(from, CURLUPART_URL, url, 0)) == CURLUE_OK &&
        (rc = curl->url_set(to, CURLUPART_URL, url, 0)) == CURLUE_OK)
        /* any scheme is accepted here; the comparison below decides */
        rc = curl->url_set(to, CURLUPART_URL, next->data, CURLU_NON_SUPPORT_SCHEME);
    if (rc == CURLUE_OUT_OF_MEMORY)
        code = pp_fail_nomem(err, "an address");
    else if (!code && rc != CURLUE_OK)
        code = pp_fail(err, PP_ERR_FORMAT, "%.*s: the next page of the list is at %.*s, which is not a valid URL: %s",
                       PP_SHOWN_URL(url), PP_SHOWN_URL(next->data), curl->url_strerror(rc));
    else if (!code && (!same_server(curl, from, to) || curl->url_get(to, CURLUPART_URL, &whole, 0) != CURLUE_OK))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "%.*s: the next page of the list is at %.*s, on another server, which "
                                                "is not followed", PP_SHOWN_URL(url), PP_SHOWN_URL(next->data));
    if (!code) {
        pp_buf_clear(next);
        pp_buf_str(next, whole);
        code = next->bad ? pp_fail_nomem(err, "an address") : PP_OK;
    }
    curl->free(whole);
    curl->url_cleanup(from);
    curl->url_cleanup(to);
    return code;
}

enum pp_code pp_fetch_text(const char *url, const char *token, size_t most, const struct pp_cancel *cancel,
                           struct pp_buf *out, struct pp_buf *next, struct pp_error *err)
{
    struct request r = {.cancel = cancel, .text = out, .most = most, .next = next, .fd = -1};
    const enum pp_code code = pp_curl_load(&r.curl, err);
    if (code)
        return code;
    CURLcode rc = perform(&r, url, token, NULL);
    if (r.too_long)
        return pp_fail(err, PP_ERR_FORMAT, "%.*s is longer than %zu bytes, which cannot be right",
                       PP_SHOWN_URL(url), most);
    if (rc != CURLE_OK)
        return fail_curl(&r, url, rc, err);
    if (r.status != 200)
        return refused(url, r.status, err);
    if (r.next_unread)
        return pp_fail(err, PP_ERR_FORMAT, "%.*s: the server's link to the next page of the list is not a URL",
                       PP_SHOWN_URL(url));
    return next && (next->len || next->bad) ? find_next(r.curl, url, next, err) : PP_OK;
}

/* --- a file ------------------------------------------------------------------------------------------------------- */

/* Requests the missing part once. *again: the connection broke, or the part is unusable. */
static enum pp_code request_part(const struct pp_fetch *f, struct part *p, struct request *r, bool *again,
                                 struct pp_error *err)
{
    *r = (struct request){.curl = r->curl, .f = f, .part = p, .cancel = f->cancel, .fd = r->fd, .have = r->have,
                          .total = r->total};
    r->asked = p->from[0] ? r->have : 0;
    if (!r->asked && !begin_anew(r))
        return pp_fail(err, PP_ERR_IO, "cannot write %s: %s", p->path, strerror(errno));
    CURLcode rc = perform(r, f->url, f->token, p->from);
    *again = false;
    if ((r->status == 200 || r->status == 206) && (r->began || !r->asked)) /* otherwise the part is unchanged */
        note_from(p, r);
    if (r->status == 416) { /* it is complete already, or belongs to another file */
        if (r->total && r->total == r->have)
            return PP_OK;
        p->from[0] = 0;
        *again = true;
        return pp_fail(err, PP_ERR_IO, "%.*s: the server does not have the rest of the file", PP_SHOWN_URL(f->url));
    }
    if (r->other_file) {
        p->from[0] = 0;
        *again = true;
        return pp_fail(err, PP_ERR_IO, "%.*s changes while it is being downloaded; try again later",
                       PP_SHOWN_URL(f->url));
    }
    if (r->too_long)
        return pp_fail(err, PP_ERR_FORMAT, "%.*s has more than the %" PRIu64 " bytes that were announced; it was not "
                       "kept", PP_SHOWN_URL(f->url), f->size ? f->size : announced(r));
    if (r->no_room.code)
        return pp_fail(err, r->no_room.code, "%s", r->no_room.text);
    if (rc != CURLE_OK) {
        *again = !r->write_errno && !r->other_part && rc != CURLE_OUT_OF_MEMORY && rc != CURLE_TOO_MANY_REDIRECTS &&
                 rc != CURLE_URL_MALFORMAT && rc != CURLE_UNSUPPORTED_PROTOCOL && rc != CURLE_COULDNT_RESOLVE_HOST &&
                 rc != CURLE_COULDNT_CONNECT;
        return fail_curl(r, f->url, rc, err);
    }
    if (r->status != 200 && r->status != 206) {
        *again = r->status >= 500 || r->status == 429;
        return refused(f->url, r->status, err);
    }
    if (r->asked && !r->began) { /* an empty response does not mean that the part is complete */
        *again = true;
        return pp_fail(err, PP_ERR_IO, "%.*s: the server sends nothing instead of the rest of the file",
                       PP_SHOWN_URL(f->url));
    }
    r->total = announced(r) ? announced(r) : r->have;
    return PP_OK;
}

/* Requests until the file is complete, or further attempts are pointless. */
static enum pp_code fetch(const struct pp_fetch *f, struct part *p, struct request *r, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int idle = 0; idle < TRIES;) {
        const uint64_t before = r->have;
        bool again = false;
        code = request_part(f, p, r, &again, err);
        const bool more = r->have > before;
        if (!code && r->total && r->have < r->total)
            again = true;
        else if (!code || !again)
            return code;
        idle = more ? 0 : idle + 1;
        if (idle == TRIES)
            break;
        const long ms = (long)PAUSE_MS << (idle < 5 ? idle : 5);
        for (long waited = 0; waited < ms && !pp_cancelled(f->cancel); waited += 20)
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        if (pp_cancelled(f->cancel))
            return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
    }
    return code ? code : pp_fail(err, PP_ERR_IO, "%.*s: the connection breaks again and again",
                                     PP_SHOWN_URL(f->url));
}

static enum pp_code hash_file(int fd, const struct pp_cancel *cancel, char out[65], struct pp_error *err)
{
    struct pp_sha256_stream s;
    uint8_t *piece = pp_malloc(PIECE);
    off_t at = 0;
    ssize_t n = 1;
    if (!piece)
        return pp_fail_nomem(err, "a checksum");
    pp_sha256_begin(&s);
    while (n > 0 && !pp_cancelled(cancel)) {
        n = pread(fd, piece, PIECE, at);
        if (n > 0)
            pp_sha256_update(&s, piece, (size_t)n);
        at += n > 0 ? n : 0;
    }
    pp_free(piece);
    if (pp_cancelled(cancel))
        return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
    if (n < 0)
        return pp_fail(err, PP_ERR_IO, "cannot read the file again: %s", strerror(errno));
    const struct pp_sha256 h = pp_sha256_end(&s);
    pp_sha256_hex(&h, out);
    return PP_OK;
}

/* Checks size, checksum and contents. */
static enum pp_code check(const struct pp_fetch *f, const struct request *r, char sha256[65],
                          struct pp_error *err)
{
    enum pp_code code = hash_file(r->fd, f->cancel, sha256, err);
    if (!code && f->size && f->size != r->have)
        code = pp_fail(err, PP_ERR_FORMAT, "%.*s has %" PRIu64 " bytes where %" PRIu64 " were announced; it was not "
                       "kept", PP_SHOWN_URL(f->url), r->have, f->size);
    if (!code && f->sha256 && pp_casecmp(f->sha256, sha256) != 0)
        code = pp_fail(err, PP_ERR_FORMAT,
                       "%.*s has the wrong checksum (SHA-256 %s, expected %s); it was not kept",
                       PP_SHOWN_URL(f->url), sha256, f->sha256);
    if (!code && f->check && (code = f->check(f, r->fd, err)) == PP_ERR_FORMAT) {
        pp_fail_prefix(err, "%.*s", PP_SHOWN_URL(f->url));
        pp_fail_advice(err, "it was not kept");
    }
    return code;
}

static enum pp_code finish(const struct pp_fetch *f, const struct part *p, const struct request *r,
                           struct pp_error *err)
{
    if (fsync(r->fd) != 0)
        return pp_fail(err, PP_ERR_IO, "cannot write %s: %s", f->path, strerror(errno));
    const enum pp_code code = pp_name_file(p->path, f->path, err);
    if (!code)
        unlink(p->from_path);
    return code;
}

/* Opens and locks the partial file. Without the lock, two writers would each take the other's holes for data, and
 * one that opens it after the other has renamed it would truncate the finished file. On file systems without locks,
 * there is no protection. */
static enum pp_code open_part(const struct part *p, int *fd, struct stat *st, struct pp_error *err)
{
    struct stat there;
    bool same = false;
    for (int tries = 0; !same && tries < TRIES; tries++) {
        *fd = open(p->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        const bool busy = *fd >= 0 && flock(*fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (*fd < 0 || (!busy && fstat(*fd, st) != 0))
            return pp_fail(err, PP_ERR_IO, "cannot write %s: %s", p->path, strerror(errno));
        same = !busy && stat(p->path, &there) == 0 && there.st_dev == st->st_dev && there.st_ino == st->st_ino;
        if (same)
            break;
        close(*fd);
        *fd = -1;
        if (busy)
            return pp_fail(err, PP_ERR_BUSY, "another pippin is downloading %s; wait until it is done, or stop it",
                           p->path);
    }
    return same ? PP_OK : pp_fail(err, PP_ERR_IO, "%s is deleted again and again", p->path);
}

enum pp_code pp_fetch_file(const struct pp_fetch *f, char sha256[static 65], struct pp_error *err)
{
    struct pp_buf part = {0}, from = {0};
    struct stat st;
    pp_buf_fmt(&part, "%s.part", f->path);
    pp_buf_fmt(&from, "%s.part.from", f->path);
    struct part p = {.path = part.data, .from_path = from.data};
    name_source(f->url, p.source);
    struct request r = {.fd = -1};
    enum pp_code code = part.bad || from.bad ? pp_fail_nomem(err, "a download") : pp_curl_load(&r.curl, err);
    if (!code)
        code = open_part(&p, &r.fd, &st, err);
    if (!code) {
        r.have = (uint64_t)st.st_size;
        if (r.have)
            read_from(&p, r.fd, &r.have);
        if (lseek(r.fd, 0, SEEK_END) < 0)
            code = pp_fail(err, PP_ERR_IO, "cannot write %s: %s", p.path, strerror(errno));
    }
    if (!code)
        code = check_room(r.fd, r.have, f->size, err);
    if (!code)
        code = fetch(f, &p, &r, err);
    if (!code)
        code = check(f, &r, sha256, err);
    if (!code)
        code = finish(f, &p, &r, err);
    /* Remove a file that is wrong, and a part that cannot be continued, as it is empty, or unknown what it belongs
     * to. */
    if (code == PP_ERR_FORMAT || (code && r.fd >= 0 && (!r.have || !p.from[0]))) {
        unlink(p.path);
        unlink(p.from_path);
    }
    if (r.fd >= 0)
        close(r.fd);
    pp_buf_free(&part);
    pp_buf_free(&from);
    return code;
}

enum pp_code pp_file_sha256(const char *path, const struct pp_cancel *cancel, char sha256[static 65],
                            struct pp_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return pp_fail(err, PP_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    enum pp_code code = hash_file(fd, cancel, sha256, err);
    close(fd);
    return code;
}
