/*
 * What the kernel alone takes, COUNT times, in nanoseconds a line:
 *   create: new user, pid, mount, network, ipc, uts and cgroup namespaces and a program in them,
 *           until the first byte of its output;
 *   exec:   a program in namespaces that exist already, until it has ended.
 * No id map, no root filesystem, no limits, no filter, no reply to anybody: nothing that isolates
 * can be faster.
 *
 *   floor create|exec COUNT PROGRAM [ARG]...
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

#define NAMESPACES                                                                              \
    (CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | \
     CLONE_NEWCGROUP)

static void die(const char *operation)
{
    fprintf(stderr, "floor: %s: %s\n", operation, strerror(errno));
    exit(1);
}

static long long now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* A child in new namespaces; returns 0 in it, and its pid and pidfd in the parent. */
static pid_t clone_isolated(int *ret_pidfd)
{
    struct clone_args args = {
        .flags = NAMESPACES | CLONE_PIDFD,
        .pidfd = (uintptr_t)ret_pidfd,
        .exit_signal = SIGCHLD,
    };
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid < 0)
        die("clone3");
    return pid;
}

static void reap(pid_t pid, const char *what)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            die("waitpid");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "floor: %s ended with wait status %#x\n", what, status);
        exit(1);
    }
}

static long long time_create(char **argv)
{
    int fds[2], pidfd;
    if (pipe2(fds, O_CLOEXEC) < 0)
        die("pipe2");
    long long begin = now_ns();
    pid_t pid = clone_isolated(&pidfd);
    if (pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        execve(argv[0], argv, environ);
        _exit(127);
    }
    close(fds[1]);
    char buffer[4096];
    if (read(fds[0], buffer, sizeof buffer) <= 0) {
        fprintf(stderr, "floor: %s wrote nothing\n", argv[0]);
        exit(1);
    }
    long long end = now_ns();
    reap(pid, argv[0]);
    close(fds[0]);
    close(pidfd);
    return end - begin;
}

static long long time_exec(int pidfd, char **argv)
{
    long long begin = now_ns();
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0) {
        if (setns(pidfd, NAMESPACES) < 0)
            _exit(126);
        /* A process is in the new pid namespace only from its next child on. */
        pid_t inner = vfork();
        if (inner == 0) {
            execve(argv[0], argv, environ);
            _exit(127);
        }
        int status;
        waitpid(inner, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 125);
    }
    reap(pid, argv[0]);
    return now_ns() - begin;
}

int main(int argc, char **argv)
{
    if (argc < 4 || (strcmp(argv[1], "create") != 0 && strcmp(argv[1], "exec") != 0)) {
        fprintf(stderr, "usage: floor create|exec COUNT PROGRAM [ARG]...\n");
        return 2;
    }
    int count = atoi(argv[2]);
    if (strcmp(argv[1], "create") == 0) {
        for (int left = count; left > 0; left--)
            printf("%lld\n", time_create(argv + 3));
        return 0;
    }
    int pidfd;
    pid_t holder = clone_isolated(&pidfd);
    if (holder == 0)
        for (;;)
            pause();
    for (int left = count; left > 0; left--)
        printf("%lld\n", time_exec(pidfd, argv + 3));
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
    return 0;
}
