/* interrupt PID AT VICTIM…: counts the system calls that process PID enters from now on, and kills the
 * VICTIMs with SIGKILL when it enters number AT (0: never), before the call does anything; then it lets go.
 * Writes "ready" when it counts, and the number of calls when that is over, or at SIGTERM. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define SYSCALL_STOP (SIGTRAP | 0x80)

static void must(bool done, const char *what) {
  if (!done) {
    perror(what);
    exit(1);
  }
}

static void trace(int request, pid_t tid, long data) { ptrace(request, tid, NULL, (void *)data); }

static void attach(pid_t pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task", pid);
  DIR *threads = opendir(path);
  must(threads != NULL, path);
  for (struct dirent *each; (each = readdir(threads));) {
    pid_t tid = atoi(each->d_name);
    if (tid == 0)
      continue;
    trace(PTRACE_SEIZE, tid, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE);
    trace(PTRACE_INTERRUPT, tid, 0);
    int status;
    must(waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status), "stop a thread");
    trace(PTRACE_SYSCALL, tid, 0);
  }
  closedir(threads);
}

static bool is_entry(pid_t tid) {
  struct __ptrace_syscall_info info;
  return ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof info, &info) > 0 &&
         info.op == PTRACE_SYSCALL_INFO_ENTRY;
}

static long count;

static void end(int number) {
  (void)number;
  dprintf(1, "%ld\n", count);
  _exit(0);
}

int main(int argc, char **argv) {
  if (argc < 3)
    return 2;
  long at = atol(argv[2]);
  signal(SIGTERM, end);
  attach(atoi(argv[1]));
  puts("ready");
  fflush(stdout);
  for (;;) {
    int status;
    pid_t tid = waitpid(-1, &status, __WALL);
    if (tid < 0)
      break; /* it has ended */
    if (!WIFSTOPPED(status))
      continue;
    if (status >> 8 == SYSCALL_STOP) {
      if (is_entry(tid) && ++count == at) {
        for (char **victim = argv + 3; *victim; victim++)
          kill(atoi(*victim), SIGKILL);
        break;
      }
      trace(PTRACE_SYSCALL, tid, 0);
    } else if (status >> 16) {
      trace(PTRACE_SYSCALL, tid, 0);
    } else {
      trace(PTRACE_SYSCALL, tid, WSTOPSIG(status));
    }
  }
  signal(SIGTERM, SIG_IGN); /* it is said once */
  end(0);
}
