/* http_server.c - http-server FOLDER: an HTTP server for the tests of downloads, reachable only from this machine, that
 * misbehaves as told. It prints its port, and serves one request at a time, each on a connection of its own. The first
 * part of the path tells how to answer. "Breaks off" means that half of what was requested is sent, unless that is at
 * most 64 KiB.
 *
 *   /plain/F     correctly, also ranges               /slow/F      as /plain/, a piece at a time
 *   /cut/F       always breaks off                    /norange/F   ignores ranges, and breaks off the first time
 *   /never/F     as /norange/, but breaks off each time
 *   /long/F      announces more bytes than there are  /wrong/F     answers 206 to a request for the whole file
 *   /changed/F   has another ETag each time, and breaks off the first time
 *   /swap/F      sends half of another file; then nothing of this one; then answers correctly
 *   /416/F       breaks off the first time, and then says once that there is no such range
 *   /weak/F      breaks off the first time, and has only weak ETags
 *   /empty/F     breaks off the first time, and then sends once an empty 200     /nothing/F   ... an empty 206
 *   /named/F/N   F, under another name                /gone/F      404
 *   /redirect/F  redirects to /plain/F                /loop/F      to itself     /away/F   to another protocol
 *   /secret/F    only with "Authorization: Bearer secret"     /busy/F   503 twice, then correctly
 *   /nosize/F    does not say a length                /endless/F   nor that, and goes on past the file's end
 *   /growing/F   as /endless/, with an ETag
 *   /stall/F     sends half, and then nothing until the client hangs up
 *   /held/F      a piece at a time, and from the middle on only crumbs while there is a file "held" in the folder
 *   /leak/F      redirects to /secret/F of this server under another host name
 *   /api/models/o/n/tree/main    a list of files, which are at /o/n/resolve/main/F (endless.gguf as /endless/); that of
 *                                o/p needs the authorization, and has the Link header in link.txt, which may lead to
 *                                ?cursor=N: the list in list-N.json
 *   /v2/library/m/manifests/T    a manifest of the file m.gguf, which is at /v2/library/m/blobs/sha256:...; with T
 *                                "elsewhere" it has a path in place of the checksum */
#include <arpa/inet.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { REQUEST = 8192, PIECE = 16384, TAIL = 65536 };

static const char *folder;
static int n_requests; /* requests of a path that counts them: each file name is used by one test only */

struct answer {
    int fd;
    char how[32], file[512];
    char range_from[64];      /* If-Range */
    uint64_t from;
    bool range, authorized;
};

static void say(int fd, const char *text)
{
    for (size_t at = 0, n = strlen(text); at < n;) {
        ssize_t w = write(fd, text + at, n - at);
        if (w <= 0)
            return;
        at += (size_t)w;
    }
}

/* Reads a small file of the folder; "" if it does not exist. */
static void read_text(const char *name, char *text, size_t size)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    const size_t n = f ? fread(text, 1, size - 1, f) : 0;
    text[n] = 0;
    if (f)
        fclose(f);
}

static void status(int fd, const char *line, const char *more)
{
    char text[4096];
    snprintf(text, sizeof text, "HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: 0\r\n%s\r\n", line, more);
    say(fd, text);
}

/* more: further header lines */
static void say_json(int fd, const char *json, const char *more)
{
    char head[128];
    snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %zu\r\n", strlen(json));
    say(fd, head);
    say(fd, more);
    say(fd, "\r\n");
    say(fd, json);
}

/* How often this path was requested so far, including now. */
static int times(const char *how, const char *file)
{
    static struct { char key[600]; int n; } seen[64];
    char key[600];
    snprintf(key, sizeof key, "%s/%s", how, file);
    for (int i = 0; i < 64; i++) {
        if (!seen[i].key[0])
            strcpy(seen[i].key, key);
        if (strcmp(seen[i].key, key) == 0)
            return ++seen[i].n;
    }
    return 1;
}

/* slow: sends a piece at a time; from `held` on only crumbs, as long as the file "held" exists. */
static void send_bytes(int to, int from, uint64_t at, uint64_t end, bool slow, uint64_t held)
{
    enum { CRUMB = 16 };
    char piece[PIECE], sign[1024];
    snprintf(sign, sizeof sign, "%s/held", folder);
    while (at < end) {
        const size_t most = at >= held && access(sign, F_OK) == 0 ? CRUMB : PIECE;
        size_t n = end - at < most ? (size_t)(end - at) : most;
        ssize_t got = pread(from, piece, n, (off_t)at);
        if (got <= 0)
            return;
        for (ssize_t sent = 0; sent < got;) {
            ssize_t w = write(to, piece + sent, (size_t)(got - sent));
            if (w <= 0)
                return;
            sent += w;
        }
        at += (uint64_t)got;
        if (slow)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

/* Sends far more than any file of the tests has, but not for ever if nobody hangs up. */
static void send_endless(int to)
{
    static const char nothing[PIECE];
    for (int i = 0; i < 16384 && send(to, nothing, sizeof nothing, MSG_NOSIGNAL) > 0; i++)
        continue;
}

static bool is(const struct answer *a, const char *how)
{
    return strcmp(a->how, how) == 0;
}

static void send_file(const struct answer *a)
{
    char path[1024], head[1024], tag[64];
    struct stat st;
    const int n = times(a->how, a->file);
    const bool swapped = is(a, "swap") || is(a, "mixed");
    if (strstr(a->file, "..")) {
        status(a->fd, "404 Not Found", "");
        return;
    }
    snprintf(path, sizeof path, "%s/%s", folder, a->file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        status(a->fd, "404 Not Found", "");
        return;
    }
    const uint64_t size = (uint64_t)st.st_size;
    snprintf(tag, sizeof tag, "\"v%d\"", is(a, "changed") ? n : swapped && n > 1 ? 2 : 1);
    const bool once = is(a, "norange") || is(a, "changed") || is(a, "416") || is(a, "weak") || is(a, "empty") ||
                      is(a, "nothing") || is(a, "mixed");
    bool breaks = is(a, "cut") || is(a, "never") || (n == 1 && once);
    const bool part = a->range && !is(a, "norange") && !is(a, "never") &&
                      (!a->range_from[0] || is(a, "mixed") || strcmp(a->range_from, tag) == 0);
    const uint64_t from = part ? a->from : 0, announced = size - from + (is(a, "long") ? 5000 : 0);
    if (part && (from >= size || (is(a, "416") && n == 2))) {
        snprintf(head, sizeof head, "Content-Range: bytes */%" PRIu64 "\r\n", size);
        status(a->fd, "416 Range Not Satisfiable", head);
    } else if (n == 2 && (is(a, "empty") || is(a, "nothing"))) {
        status(a->fd, is(a, "empty") ? "200 OK" : "206 Partial Content", "");
    } else if (is(a, "endless") || is(a, "growing") || is(a, "nosize")) {
        say(a->fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n");
        say(a->fd, is(a, "growing") ? "ETag: \"v1\"\r\n\r\n" : "\r\n");
        send_bytes(a->fd, fd, 0, size, false, size);
        if (!is(a, "nosize"))
            send_endless(a->fd);
    } else {
        int k = snprintf(head, sizeof head,
                         "HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %" PRIu64 "\r\nETag: %s%s\r\n",
                         part || is(a, "wrong") ? "206 Partial Content" : "200 OK", announced,
                         is(a, "weak") ? "W/" : "", tag);
        if (part)
            k += snprintf(head + k, sizeof head - (size_t)k,
                          "Content-Range: bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64 "\r\n", from, size - 1, size);
        snprintf(head + k, sizeof head - (size_t)k, "\r\n");
        say(a->fd, head);
        breaks = breaks || is(a, "stall");
        uint64_t end = breaks && size - from > TAIL ? from + (size - from) / 2 : size;
        if (swapped && n == 1)
            send_bytes(a->fd, fd, size / 2, size, false, size); /* the other file, which begins like the end of this
                                                                   one */
        else if (!is(a, "swap") || n > 2)
            send_bytes(a->fd, fd, from, end, is(a, "slow") || is(a, "held"),
                       is(a, "held") ? from + (size - from) / 2 : size);
        if (is(a, "stall"))
            while (read(a->fd, head, sizeof head) > 0) /* until the client hangs up */
                continue;
    }
    close(fd);
}

/* A page of a list of files; the first one may refer to others. */
static void send_list(const struct answer *a, bool pages, const char *query)
{
    static char json[(16 << 20) + 2], link[1 << 19], header[sizeof link + 16];
    char name[64] = "list.json";
    const char *cursor = pages && query ? strstr(query, "cursor=") : NULL;
    link[0] = header[0] = 0;
    if (cursor)
        snprintf(name, sizeof name, "list-%d.json", atoi(cursor + strlen("cursor=")));
    else if (pages)
        read_text("link.txt", link, sizeof link);
    if (link[0])
        snprintf(header, sizeof header, "Link: %s\r\n", link);
    read_text(name, json, sizeof json);
    say_json(a->fd, json, header);
}

/* query: the part of the URL after a question mark, or NULL. */
static void respond(struct answer *a, const char *path, const char *query)
{
    char json[2048], sum[65] = "";
    const bool gated = strncmp(path, "/api/models/o/p/", 16) == 0 || strncmp(path, "/o/p/", 5) == 0;
    if (gated && !a->authorized) {
        status(a->fd, "401 Unauthorized", "");
    } else if (strncmp(path, "/api/models/o/n/tree/main", 25) == 0 || strncmp(path, "/api/models/o/p/tree", 20) == 0) {
        send_list(a, gated, query);
    } else if (strncmp(path, "/v2/library/m/manifests/", 24) == 0) {
        read_text("m.sha256", sum, sizeof sum);
        if (strcmp(path + 24, "elsewhere") == 0)
            strcpy(sum, "/../m.gguf?");
        snprintf(json, sizeof json,
                 "{\"layers\":[{\"mediaType\":\"application/vnd.ollama.image.license\",\"digest\":\"sha256:00\"},"
                 "{\"mediaType\":\"application/vnd.ollama.image.model\",\"digest\":\"sha256:%s\"}]}", sum);
        say_json(a->fd, json, "");
    } else if (strncmp(path, "/v2/library/m/blobs/", 20) == 0) {
        strcpy(a->how, "blob");
        strcpy(a->file, "m.gguf");
        send_file(a);
    } else if (strncmp(path, "/o/n/resolve/main/", 18) == 0 || strncmp(path, "/o/p/resolve/main/", 18) == 0) {
        snprintf(a->file, sizeof a->file, "%.500s", path + 18);
        strcpy(a->how, strcmp(a->file, "endless.gguf") == 0 ? "endless" : "plain");
        send_file(a);
    } else if (sscanf(path, "/%31[^/]/%511s", a->how, a->file) != 2) {
        status(a->fd, "404 Not Found", "");
    } else if (is(a, "redirect") || is(a, "loop") || is(a, "away")) {
        const char *to = is(a, "loop") ? "/loop/" : is(a, "away") ? "file:///etc/" : "/plain/";
        snprintf(json, sizeof json, "Location: %s%s\r\n", to, a->file);
        status(a->fd, "302 Found", json);
    } else if (is(a, "leak")) {
        struct sockaddr_in own = {0};
        socklen_t n = sizeof own;
        getsockname(a->fd, (struct sockaddr *)&own, &n);
        snprintf(json, sizeof json, "Location: http://localhost:%u/secret/%s\r\n", (unsigned)ntohs(own.sin_port),
                 a->file);
        status(a->fd, "302 Found", json);
    } else if (is(a, "secret") && !a->authorized) {
        status(a->fd, "401 Unauthorized", "");
    } else if (is(a, "busy") && times("busy", a->file) <= 2) {
        status(a->fd, "503 Service Unavailable", "");
    } else if (is(a, "gone")) {
        status(a->fd, "404 Not Found", "");
    } else {
        if (is(a, "named"))
            a->file[strcspn(a->file, "/")] = 0;
        send_file(a);
    }
}

static void serve(int fd)
{
    static char request[REQUEST];
    char path[1024];
    struct answer a = {.fd = fd};
    size_t n = 0;
    ssize_t got;
    while (n + 1 < sizeof request && (got = read(fd, request + n, sizeof request - 1 - n)) > 0) {
        n += (size_t)got;
        request[n] = 0;
        if (strstr(request, "\r\n\r\n"))
            break;
    }
    request[n] = 0;
    if (sscanf(request, "GET %1023s", path) != 1)
        return;
    n_requests++;
    const char *range = strcasestr(request, "\r\nRange: bytes="), *if_range = strcasestr(request, "\r\nIf-Range: ");
    a.range = range && sscanf(range + 15, "%" SCNu64, &a.from) == 1;
    if (if_range)
        snprintf(a.range_from, sizeof a.range_from, "%.*s", (int)strcspn(if_range + 12, "\r"), if_range + 12);
    a.authorized = strcasestr(request, "\r\nAuthorization: Bearer secret\r\n") != NULL;
    char *query = strchr(path, '?');
    if (query)
        *query++ = 0;
    respond(&a, path, query);
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    if (argc != 2)
        return 2;
    folder = argv[1];
    signal(SIGPIPE, SIG_IGN);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0 || bind(s, (struct sockaddr *)&at, sizeof at) != 0 || listen(s, 8) != 0 ||
        getsockname(s, (struct sockaddr *)&at, &len) != 0) {
        perror("http-server");
        return 1;
    }
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    for (;;) {
        int fd = accept(s, NULL, NULL);
        if (fd < 0)
            continue;
        serve(fd);
        shutdown(fd, SHUT_WR);
        char rest[1024];
        struct timeval soon = {.tv_sec = 1};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        while (read(fd, rest, sizeof rest) > 0)
            continue;
        close(fd);
    }
}
