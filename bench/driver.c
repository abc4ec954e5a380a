/*
 * Times a program COUNT times, one after the other, from the request to spawn it until
 *   byte: the first byte of its standard output has arrived,
 *   exit: it has ended and been reaped.
 * Prints one duration in nanoseconds a line. What follows the timed event (the rest of the
 * output, the exit) is waited for, but not timed. A program that fails ends the measurement.
 *
 *   driver byte|exit COUNT PROGRAM [ARG]...
 *
 * The child is made by posix_spawn (vfork), so that the size of this process does not matter.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static void die(const char *operation, int error)
{
    fprintf(stderr, "driver: %s: %s\n", operation, strerror(error));
    exit(1);
}

static long long now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static long long time_once(char **argv, int until_exit)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        die("pipe2", errno);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);

    pid_t pid;
    long long begin = now_ns();
    int error = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    if (error != 0)
        die(argv[0], error);
    close(fds[1]);
    char buffer[4096];
    ssize_t got = read(fds[0], buffer, sizeof buffer);
    long long first_byte = now_ns();
    if (!until_exit && got <= 0) {
        fprintf(stderr, "driver: %s wrote nothing\n", argv[0]);
        exit(1);
    }
    while (got > 0)
        got = read(fds[0], buffer, sizeof buffer);
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            die("waitpid", errno);
    long long ended = now_ns();
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "driver: %s ended with wait status %#x\n", argv[0], status);
        exit(1);
    }
    close(fds[0]);
    posix_spawn_file_actions_destroy(&actions);
    return (until_exit ? ended : first_byte) - begin;
}

int main(int argc, char **argv)
{
    if (argc < 4 || (strcmp(argv[1], "byte") != 0 && strcmp(argv[1], "exit") != 0)) {
        fprintf(stderr, "usage: driver byte|exit COUNT PROGRAM [ARG]...\n");
        return 2;
    }
    int until_exit = strcmp(argv[1], "exit") == 0;
    for (int left = atoi(argv[2]); left > 0; left--)
        printf("%lld\n", time_once(argv + 3, until_exit));
    return 0;
}
