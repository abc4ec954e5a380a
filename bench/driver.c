/*
 * Times programs, and requests to the daemon: our rivals and us, by one clock.
 *
 *   driver program byte|exit TIMES PROGRAM [ARG]...
 *   driver request byte|exit|answer TIMES SOCKET CREATE EXEC DELETE
 *
 * TIMES is a count, or seconds ("5s") during which it goes on, one after the other. Prints one
 * duration in nanoseconds a line. What follows the timed event (the rest of the output, the end) is
 * waited for, but not timed.
 *
 * A program is timed from the request to spawn it until
 *   byte: the first byte of its standard output has arrived,
 *   exit: it has ended and been reaped.
 * A program that fails ends the measurement. The child is made by posix_spawn (vfork), so that the
 * size of this process does not matter.
 *
 * CREATE, EXEC and DELETE are files with whole HTTP requests, "-" for none. They are sent over one
 * connection, which stands before the clock starts; the sandbox's id in the answer to CREATE, or in
 * that to an EXEC which makes the sandbox itself, takes the place of ID_PLACE in those that follow.
 * Timed from the first of them until
 *   answer: the answer to it is complete,
 *   byte:   the first byte of the command's standard output has arrived,
 *   exit:   the command's end has been told.
 * A refused request is a line "failed" with the answer's first line; the next round goes on.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "http.h"

#define ID_PLACE "sb-0000000000000000"
#define ID_BYTES (sizeof ID_PLACE - 1)

/* Frames of a command's answer: sandboxd/protocol.py. */
enum {
    FRAME_HEADER_BYTES = 8,
    FRAME_STARTED = 16,
    FRAME_STDOUT = 17,
    FRAME_EXIT = 19,
    FRAME_ERROR = 20
};

enum until { UNTIL_ANSWER, UNTIL_BYTE, UNTIL_EXIT };

extern char **environ;

/* -- programs ------------------------------------------------------------------------------- */

static long long time_program(char **argv, enum until until)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        die("pipe2");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);

    pid_t pid;
    long long begin = now_ns();
    int error = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    if (error != 0)
        give_up(strerror(error), argv[0]);
    close(fds[1]);
    char buffer[4096];
    ssize_t got = read(fds[0], buffer, sizeof buffer);
    long long first_byte = now_ns();
    if (until == UNTIL_BYTE && got <= 0)
        give_up("it wrote nothing", argv[0]);
    while (got > 0)
        got = read(fds[0], buffer, sizeof buffer);
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            die("waitpid");
    long long ended = now_ns();
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        give_up("it failed", argv[0]);
    close(fds[0]);
    posix_spawn_file_actions_destroy(&actions);
    return (until == UNTIL_EXIT ? ended : first_byte) - begin;
}

/* -- requests ------------------------------------------------------------------------------- */

static struct message load(const char *path)
{
    struct message message = {NULL, 0};
    if (strcmp(path, "-") == 0)
        return message;
    struct stat file;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &file) < 0)
        die(path);
    message.size = (size_t)file.st_size;
    message.bytes = malloc(message.size + 1);
    if (!message.bytes || read(fd, message.bytes, message.size) != (ssize_t)message.size)
        give_up("cannot be read whole", path);
    close(fd);
    return message;
}

/* JSON that names a sandbox, or does not. */
struct text {
    char bytes[1 << 16];
    size_t size;
};

static void append(struct text *text, const char *bytes, size_t size)
{
    if (text->size + size >= sizeof text->bytes)
        give_up("too long", "what is told of a sandbox");
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
    text->bytes[text->size] = '\0';
}

/* The id that the text names, into `id`; returns whether it names one. */
static int find_id(const struct text *text, char id[ID_BYTES])
{
    const char *found = text->size > 0 ? strstr(text->bytes, "\"id\":\"sb-") : NULL;
    if (!found || strlen(found) < 6 + ID_BYTES)
        return 0;
    memcpy(id, found + 6, ID_BYTES);
    return 1;
}

static void get_id(struct connection *from, char id[ID_BYTES])
{
    static struct text answer;
    size_t got;
    const char *bytes;
    answer.size = 0;
    while ((got = get_body(from, &bytes)) > 0)
        append(&answer, bytes, got);
    if (!find_id(&answer, id))
        give_up("it names no sandbox", "the answer to a create");
}

static void put_id(struct message *message, const char *old, const char *id)
{
    char *at = message->bytes, *end = message->bytes + message->size;
    while (at && (at = memmem(at, (size_t)(end - at), old, ID_BYTES)))
        memcpy(at, id, ID_BYTES);
}

/* Reads the answer to EXEC, and into `started` what it says of the start; returns when its event
 * came, the command's end if that is none of its own, and 0 when the command could not be carried
 * out. */
static long long get_command(struct connection *from, enum until until, struct text *started)
{
    unsigned char head[FRAME_HEADER_BYTES];
    size_t have = 0, payload = 0, got;
    long long event = 0;
    int over = 0;
    const char *bytes;
    while ((got = get_body(from, &bytes)) > 0)
        for (size_t at = 0; at < got;) {
            if (have < sizeof head) {
                head[have++] = (unsigned char)bytes[at++];
                if (have < sizeof head)
                    continue;
                payload = head[4] | head[5] << 8 | (size_t)head[6] << 16 | (size_t)head[7] << 24;
            }
            size_t piece = got - at < payload ? got - at : payload;
            if (head[0] == FRAME_STDOUT && piece > 0 && until == UNTIL_BYTE && event == 0)
                event = now_ns();
            if (head[0] == FRAME_STARTED)
                append(started, bytes + at, piece);
            at += piece;
            payload -= piece;
            if (payload > 0)
                continue;
            have = 0;
            if (head[0] == FRAME_ERROR)
                return 0;
            if (head[0] == FRAME_EXIT) {
                over = 1;
                if (until != UNTIL_BYTE)
                    event = now_ns();
            }
        }
    return over ? event : 0;
}

/* What is sent; `id` is the sandbox that it names now. */
struct requests {
    struct message create, exec, delete;
    char id[ID_BYTES + 1];
};

static void name_sandbox(struct requests *requests, const char *id)
{
    put_id(&requests->exec, requests->id, id);
    put_id(&requests->delete, requests->id, id);
    memcpy(requests->id, id, ID_BYTES);
}

/* One round; 0 when a request was refused, with the answer's first line in `connection`. */
static long long time_requests(struct connection *to, struct requests *requests, enum until until)
{
    long long begin = now_ns(), event = 0;
    char id[ID_BYTES];
    if (requests->create.bytes) {
        put(to, &requests->create);
        if (!get_head(to)) {
            skip_body(to);
            return 0;
        }
        get_id(to, id);
        if (until == UNTIL_ANSWER)
            event = now_ns();
        name_sandbox(requests, id);
    }
    if (requests->exec.bytes) {
        static struct text started;
        started.size = 0;
        put(to, &requests->exec);
        int begun = get_head(to);
        long long found = begun ? get_command(to, until, &started) : 0;
        skip_body(to);
        if (!begun && !requests->create.bytes)
            return 0;
        if (find_id(&started, id))
            name_sandbox(requests, id);
        if (until != UNTIL_ANSWER || found == 0)
            event = found;
    }
    if (requests->delete.bytes) {
        put(to, &requests->delete);
        if (!get_head(to))
            event = 0;
        skip_body(to);
    }
    return event == 0 ? 0 : event - begin;
}

/* -- rounds --------------------------------------------------------------------------------- */

struct rounds {
    long left;
    long long until_ns;
};

static struct rounds rounds_of(const char *text)
{
    struct rounds rounds = {strtol(text, NULL, 10), 0};
    if (text[strlen(text) - 1] == 's') {
        rounds.until_ns = now_ns() + (long long)(strtod(text, NULL) * 1e9);
        rounds.left = 0;
    }
    return rounds;
}

static int another(struct rounds *rounds)
{
    return rounds->until_ns ? now_ns() < rounds->until_ns : rounds->left-- > 0;
}

static enum until until_of(const char *text)
{
    if (strcmp(text, "byte") == 0)
        return UNTIL_BYTE;
    if (strcmp(text, "exit") == 0)
        return UNTIL_EXIT;
    if (strcmp(text, "answer") == 0)
        return UNTIL_ANSWER;
    give_up("not byte, exit or answer", text);
}

static void run_programs(enum until until, const char *times, char **argv)
{
    struct rounds rounds = rounds_of(times);
    while (another(&rounds))
        printf("%lld\n", time_program(argv, until));
}

static void run_requests(enum until until, const char *times, char **argv)
{
    static struct connection connection;
    struct requests requests = {load(argv[1]), load(argv[2]), load(argv[3]), ID_PLACE};
    char hello[] = "GET /v1/health HTTP/1.1\r\nHost: sandboxd\r\n\r\n";
    connection.fd = connect_to(argv[0]);
    put(&connection, &(struct message){hello, sizeof hello - 1});
    if (!get_head(&connection))
        give_up(connection.status, "the daemon");
    skip_body(&connection);
    struct rounds rounds = rounds_of(times);
    while (another(&rounds)) {
        long long taken = time_requests(&connection, &requests, until);
        if (taken > 0)
            printf("%lld\n", taken);
        else
            printf("failed %s\n", connection.status);
    }
}

int main(int argc, char **argv)
{
    if (argc >= 5 && strcmp(argv[1], "program") == 0)
        run_programs(until_of(argv[2]), argv[3], argv + 4);
    else if (argc == 8 && strcmp(argv[1], "request") == 0)
        run_requests(until_of(argv[2]), argv[3], argv + 4);
    else {
        fprintf(stderr, "usage: driver program byte|exit TIMES PROGRAM [ARG]...\n"
                        "       driver request byte|exit|answer TIMES SOCKET CREATE EXEC DELETE\n");
        return 2;
    }
    return 0;
}
