/*
 * What the kernel alone takes, in nanoseconds:
 *   create: new user, pid, mount, network, ipc, uts and cgroup namespaces and a program in them,
 *           until the first byte of its output; COUNT times, one a line;
 *   exec:   a program in namespaces that exist already, until it has ended; COUNT times;
 *   plan:   the system calls of a restore plan in a sandbox that stands ready, and a program in it,
 *           until the first byte of its output; then, on the same line, the plan's part of that.
 * `create` and `exec` have no id map, no root filesystem, no limits, no filter, no reply to anybody:
 * nothing that isolates can be faster. `plan` has all of the isolation but the groups; what is
 * missing is the daemon.
 *
 *   floor create|exec COUNT PROGRAM [ARG]...
 *   floor plan CONTROL RESTORE PLAN COMMAND
 *
 * CONTROL: descriptor of a connection to the sandbox's init. RESTORE and COMMAND: files with the
 * packets to send over it, their exec ids 1 and 2. PLAN: descriptor of the socket that holds the
 * plan and what belongs to it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "venus_init_protocol.h"

extern char **environ;

#define NAMESPACES                                                                              \
    (CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | \
     CLONE_NEWCGROUP)

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

static void send_packet(int control, const char *path, int passed)
{
    static char packet[VENUS_MAX_PACKET_SIZE];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } ancillary = {0};
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, packet, sizeof packet);
    if (size <= 0)
        die(path);
    close(file);
    struct iovec vector = {packet, (size_t)size};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = &ancillary,
                             .msg_controllen = sizeof ancillary};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof passed);
    memcpy(CMSG_DATA(header), &passed, sizeof passed);
    if (sendmsg(control, &message, MSG_NOSIGNAL) < 0)
        die("send to init");
}

/* Until the exec has ended, well. */
static void await_exec(int control, uint64_t exec_id)
{
    static char packet[VENUS_MAX_PACKET_SIZE];
    const struct venus_header *header = (const struct venus_header *)packet;
    const struct venus_exit *exited = (const struct venus_exit *)(packet + sizeof *header);
    for (;;) {
        ssize_t got = recv(control, packet, sizeof packet, 0);
        if (got < (ssize_t)sizeof *header)
            give_up("closed the connection", "init");
        if (header->type == VENUS_FAILED || header->type == VENUS_ERROR)
            give_up("refused", "init");
        if (header->type == VENUS_EXITED && exited->exec_id == exec_id) {
            if (exited->how != VENUS_EXIT_EXITED || exited->code != 0)
                give_up("it failed", "an exec");
            return;
        }
    }
}

static void time_plan(int control, const char *restore, int plan, const char *command)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        die("pipe2");
    long long begin = now_ns();
    send_packet(control, restore, plan);
    await_exec(control, 1);
    long long restored = now_ns();
    send_packet(control, command, fds[1]);
    close(fds[1]);
    char buffer[4096];
    if (read(fds[0], buffer, sizeof buffer) <= 0)
        give_up("wrote nothing", "the command");
    printf("%lld %lld\n", now_ns() - begin, restored - begin);
    await_exec(control, 2);
}

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "plan") == 0) {
        time_plan(atoi(argv[2]), argv[3], atoi(argv[4]), argv[5]);
        return 0;
    }
    if (argc < 4 || (strcmp(argv[1], "create") != 0 && strcmp(argv[1], "exec") != 0)) {
        fprintf(stderr, "usage: floor create|exec COUNT PROGRAM [ARG]...\n"
                        "       floor plan CONTROL RESTORE PLAN COMMAND\n");
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
