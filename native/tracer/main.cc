// sandbox-tracer RUN_DIR LISTENER MARK INIT_PIDFD INIT_PID [CGROUP_PROCS…]
//
// Started by the daemon for a sandbox that is captured (server.h); the numbers are descriptors that it
// inherits.  RUN_DIR is the sandbox's, for whoever looks at the list of processes.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <initializer_list>

#include "tracer/server.h"

namespace {

int descriptor(const char *text)
{
    int fd = atoi(text);
    return fd > 2 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? fd : -1;
}

// Its own session, its own groups: each as far as this process may. What ends the daemon must not end
// a tracer that is in the middle.
void leave_the_daemon(char **cgroup_procs)
{
    setsid();
    for (; *cgroup_procs; cgroup_procs++) {
        venus::os::UniqueFd procs(open(*cgroup_procs, O_WRONLY | O_CLOEXEC));
        if (procs && write(procs.get(), "0", 1) < 0)
            continue;
    }
    venus::os::UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
    for (int number = 0; null && number < 3; number++)
        dup2(null.get(), number);
    for (int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE})
        signal(number, SIG_IGN);
}

}  // namespace

int main(int argc, char **argv)
{
    if (argc < 6)
        return 2;
    int listener = descriptor(argv[2]), mark = descriptor(argv[3]), init = descriptor(argv[4]);
    int init_pid = atoi(argv[5]);
    if (listener < 0 || mark < 0 || init < 0 || init_pid < 1 || chdir("/") < 0)
        return 2;
    leave_the_daemon(argv + 6);
    // The daemon waits for this process and not for the tracer.
    pid_t pid = fork();
    if (pid != 0)
        _exit(pid < 0);
    venus::TracerServer(listener, mark, init, init_pid).serve();
    return 0;
}
