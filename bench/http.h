/* One HTTP/1.1 connection over a Unix socket: whole requests out, answers in as they come. Reads with
 * the least code that is correct for the daemon's answers; whatever else comes ends the program. */
#ifndef BENCH_HTTP_H
#define BENCH_HTTP_H

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"

struct message {
    char *bytes;
    size_t size;
};

/* One connection, and of the answer that is being read how much of its body is left. */
struct connection {
    int fd;
    size_t start, end;
    char buffer[1 << 16];
    char status[128];
    int chunked;
    size_t left; /* of the body, or of this chunk of it */
    int ended;
};

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        give_up("too long for the address of a socket", path);
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        die(path);
    return fd;
}

static void put(struct connection *to, const struct message *message)
{
    for (size_t at = 0; at < message->size;) {
        ssize_t sent = send(to->fd, message->bytes + at, message->size - at, MSG_NOSIGNAL);
        if (sent < 0)
            die("send a request");
        at += (size_t)sent;
    }
}

static void fill(struct connection *from)
{
    ssize_t got = read(from->fd, from->buffer, sizeof from->buffer);
    if (got <= 0)
        give_up(got < 0 ? strerror(errno) : "closed", "the connection to the daemon");
    from->start = 0;
    from->end = (size_t)got;
}

static void get_line(struct connection *from, char *line, size_t size)
{
    size_t length = 0;
    for (;;) {
        if (from->start == from->end)
            fill(from);
        char next = from->buffer[from->start++];
        if (next == '\n')
            break;
        if (length + 1 < size && next != '\r')
            line[length++] = next;
    }
    line[length] = '\0';
}

/* The head of an answer; returns whether the request was carried out. */
static int get_head(struct connection *from)
{
    char line[1024];
    get_line(from, from->status, sizeof from->status);
    from->chunked = 0;
    from->left = 0;
    for (;;) {
        get_line(from, line, sizeof line);
        if (line[0] == '\0')
            break;
        if (strncasecmp(line, "content-length:", 15) == 0)
            from->left = strtoul(line + 15, NULL, 10);
        else if (strncasecmp(line, "transfer-encoding: chunked", 26) == 0)
            from->chunked = 1;
    }
    from->ended = !from->chunked && from->left == 0;
    return strncmp(from->status, "HTTP/1.1 2", 10) == 0;
}

/* The next bytes of the body as they lie in the buffer; 0 at its end. */
static size_t get_body(struct connection *from, const char **bytes)
{
    char line[64];
    if (from->ended)
        return 0;
    if (from->left == 0) {
        get_line(from, line, sizeof line);
        from->left = strtoul(line, NULL, 16);
        if (from->left == 0) {
            get_line(from, line, sizeof line);
            from->ended = 1;
            return 0;
        }
    }
    if (from->start == from->end)
        fill(from);
    size_t size = from->end - from->start;
    if (size > from->left)
        size = from->left;
    *bytes = from->buffer + from->start;
    from->start += size;
    from->left -= size;
    if (from->left == 0) {
        if (from->chunked)
            get_line(from, line, sizeof line);
        else
            from->ended = 1;
    }
    return size;
}

static void skip_body(struct connection *from)
{
    const char *bytes;
    while (get_body(from, &bytes) > 0)
        ;
}

#endif
