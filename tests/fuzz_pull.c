/* fuzz_pull.c - what servers answer to `pippin models pull`: lists of files, manifests, headers, bodies that break off.
 * Whatever they say, requests go to addresses over HTTP, and files appear in the models folder alone, under harmless
 * names.
 *
 * The first byte says what is asked for. Then a piece for each answer: its first byte says how the line ends and
 * whether the body comes at once, then its header lines, an empty line, and the body. libcurl's part is played here. */
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/cmd_common.h"
#include "src/commands.h"
#include "src/curl.h"
#include "tests/hostile.h"
#include "tests/support.h"

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* --- the line ----------------------------------------------------------------------------------------------------- */

/* Every handle is this one: there is one request at a time. */
static struct {
    struct hostile_input in;
    char *url;
    struct curl_slist *headers;
    curl_write_callback on_header, on_body;
    curl_xferinfo_callback on_progress;
    void *header_user, *body_user, *progress_user;
} line;

static CURL *easy_init(void)
{
    require(!line.url);
    return &line;
}

static void easy_cleanup(CURL *c)
{
    require(c == &line);
    pp_free(line.url);
    line.url = NULL;
}

static CURLcode easy_setopt(CURL *c, CURLoption option, ...)
{
    va_list ap;
    require(c == &line);
    va_start(ap, option);
    switch ((int)option) {
    case CURLOPT_URL: line.url = pp_strdup(va_arg(ap, const char *)); break;
    case CURLOPT_HTTPHEADER: line.headers = va_arg(ap, struct curl_slist *); break;
    case CURLOPT_HEADERFUNCTION: line.on_header = va_arg(ap, curl_write_callback); break;
    case CURLOPT_HEADERDATA: line.header_user = va_arg(ap, void *); break;
    case CURLOPT_WRITEFUNCTION: line.on_body = va_arg(ap, curl_write_callback); break;
    case CURLOPT_WRITEDATA: line.body_user = va_arg(ap, void *); break;
    case CURLOPT_XFERINFOFUNCTION: line.on_progress = va_arg(ap, curl_xferinfo_callback); break;
    case CURLOPT_XFERINFODATA: line.progress_user = va_arg(ap, void *); break;
    }
    va_end(ap);
    return CURLE_OK;
}

static void check_request(void)
{
    require(strncmp(line.url, "https://", 8) == 0 || strncmp(line.url, "http://", 7) == 0);
    require(!strpbrk(line.url, " \r\n"));
    for (const struct curl_slist *h = line.headers; h; h = h->next) {
        require(!strpbrk(h->data, "\r\n"));
        require(strncasecmp(h->data, "Authorization", 13) != 0 || strncmp(line.url, "https://", 8) == 0);
    }
}

/* Passes the bytes on in a block of exactly their size, since no zero ends them. */
static bool deliver(curl_write_callback to, const uint8_t *bytes, size_t n, void *user)
{
    char *copy = pp_malloc(n + !n);
    require(copy != NULL);
    memcpy(copy, bytes, n);
    const bool taken = to(copy, 1, n, user) == n;
    pp_free(copy);
    return taken;
}

static CURLcode easy_perform(CURL *c)
{
    static const CURLcode ends[] = {CURLE_OK, CURLE_PARTIAL_FILE, CURLE_RECV_ERROR, CURLE_TOO_MANY_REDIRECTS};
    size_t n;
    require(c == &line);
    check_request();
    struct hostile_input answer = {hostile_piece(&line.in, &n), 0};
    answer.size = n;
    if (!n)
        return CURLE_COULDNT_CONNECT;
    const unsigned how = hostile_byte(&answer);
    for (bool more = true; more && answer.size;) { /* up to an empty line */
        const uint8_t *end = memchr(answer.data, '\n', answer.size);
        const size_t length = end ? (size_t)(end - answer.data) + 1 : answer.size;
        if (!deliver(line.on_header, answer.data, length, line.header_user))
            return CURLE_WRITE_ERROR;
        more = answer.data[0] != '\r' && answer.data[0] != '\n';
        answer.data += length;
        answer.size -= length;
    }
    const size_t first = how & 4 ? answer.size / 2 : 0;
    if (!deliver(line.on_body, answer.data, first, line.body_user) ||
        line.on_progress(line.progress_user, 0, 0, 0, 0) ||
        !deliver(line.on_body, answer.data + first, answer.size - first, line.body_user))
        return CURLE_WRITE_ERROR;
    return ends[how % 4];
}

/* The rest is implemented by libcurl itself. */
enum pp_code pp_curl_load(const struct pp_curl **out, struct pp_error *err)
{
#define OWN(name) .name = curl_##name,
    static struct pp_curl curl = {PP_CURL_FUNCTIONS(OWN)};
#undef OWN
    (void)err;
    curl.easy_init = easy_init;
    curl.easy_setopt = easy_setopt;
    curl.easy_perform = easy_perform;
    curl.easy_cleanup = easy_cleanup;
    *out = &curl;
    return PP_OK;
}

/* Does not wait before the next try. */
int nanosleep(const struct timespec *wanted, struct timespec *left)
{
    (void)wanted, (void)left;
    return 0;
}

/* --- the command's own words -------------------------------------------------------------------------------------- */

void pp_cli_say(const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
}

void pp_cli_bar_show(struct pp_cli_bar *bar, const char *what, uint64_t done, uint64_t total)
{
    (void)bar, (void)done, (void)total;
    require(strlen(what) < 120);
}

void pp_cli_bar_clear(struct pp_cli_bar *bar)
{
    (void)bar;
}

void pp_cli_duration(double seconds, char out[static PP_CLI_DURATION])
{
    snprintf(out, PP_CLI_DURATION, "%.3g", seconds);
}

/* --- the folders -------------------------------------------------------------------------------------------------- */

static char room[64];
static struct pp_paths paths;

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static void remove_room(void)
{
    nftw(room, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ROOM/models/NAME, or at most two folders below, for a model's and for a module's. */
static int check_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    static const char harmless[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.+";
    const char *name = path + ftw->base;
    (void)st;
    require(flag == FTW_D || flag == FTW_DP || flag == FTW_F);
    if (ftw->level == 1)
        require(strcmp(name, "models") == 0 || strcmp(name, "tokens") == 0);
    if (ftw->level > 1)
        require(*name != '.' && *name != '-' && strspn(name, harmless) == strlen(name));
    require(ftw->level < (flag == FTW_F ? 5 : 4));
    if (ftw->level > 1)
        remove(path);
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char tokens[] = "hub.example secret\nregistry.example\tsecret\nplain.example secret\n";
    char file[80];
    (void)argc;
    (void)argv;
    unsetenv("HF_TOKEN");
    strcpy(room, "/dev/shm/pippin-fuzz-XXXXXX"); /* in memory, so that there is no waiting for a disk */
    if (!mkdtemp(room))
        snprintf(room, sizeof room, "%s", test_tmpdir());
    snprintf(paths.config, sizeof paths.config, "%s", room);
    snprintf(paths.data, sizeof paths.data, "%s", room);
    snprintf(file, sizeof file, "%s/tokens", room);
    require(pp_write_file(file, tokens, sizeof tokens - 1, 0600, NULL) == PP_OK);
    atexit(remove_room);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const asked[] = {
        "hf:o/n", "hf:o/n:x.gguf", "ollama:m", "ollama:o/m:t", "https://hub.example/m.gguf",
        "http://plain.example/m.gguf?x",
    };
    static const struct pp_options options = {.hf_base = "https://hub.example",
                                              .ollama_base = "http://registry.example"};
    static const struct pp_cancel never;
    char *path, sha256[65];
    struct pp_error err;
    line.in = (struct hostile_input){data, size};
    const char *what = asked[hostile_byte(&line.in) % (sizeof asked / sizeof *asked)];
    const enum pp_code code = pp_cmd_models_pull(&options, &paths, NULL, what, &never, &path, sha256, &err);
    require((code == PP_OK) == (path != NULL));
    require(code != PP_OK || access(path, R_OK) == 0);
    require(strlen(sha256) == 0 || strlen(sha256) == 64);
    pp_free(path);
    nftw(room, check_one, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}
