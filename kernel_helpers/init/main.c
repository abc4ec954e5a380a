/* sandbox-init: PID 1 of a sandbox.
 *
 * Executes the setup plan, says READY, then serves the daemon: starts execs, reaps everything,
 * keeps their timeouts, reports. One thread, one poll; it waits for nobody, neither the daemon (see
 * control.c) nor a child on its way to exec (its report comes through a pipe in the poll set).
 *
 * It survives the daemon: sockets, kept pipe ends and timeouts are its own. It ends by SHUTDOWN or
 * by a kill from outside, and the kernel then kills the whole pid namespace. From inside it cannot
 * be signalled (the kernel shields PID 1), traced or read (not dumpable, more capabilities than
 * anything else in the sandbox).
 */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#include "control.h"
#include "execs.h"
#include "pool_calls.h"
#include "setup.h"
#include "sys.h"

#define STALLED_PAUSE_MS 20

/* All state that outlives setup. Large arrays cost memory only where they are touched. */
static struct policy policy;
static struct exec_table table; /* not initialised here: .data would put all of it in the binary */
static struct pollfd poll_set[4 + VENUS_MAX_EXECS];

enum poll_slot { POLL_SIGNALS, POLL_LISTEN, POLL_CONTROL, POLL_POOL, POLL_FIRST_EXEC };

static void report(const struct venus_status *status) {
  ssize_t written = write(VENUS_FD_STATUS, status, sizeof *status);
  if (written != (ssize_t)sizeof *status)
    _exit(1); /* nobody waits for this sandbox */
}

/* Signals come through a descriptor only. Everything is blocked: a handler could interrupt a step
 * half way, and the children reset the mask themselves. */
static int open_signals(void) {
  sigset_t all, child;
  sigfillset(&all);
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  if (sigprocmask(SIG_SETMASK, &all, NULL) < 0)
    return -1;
  return signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Init holds up to five descriptors per exec. Children get their own limit back from the policy. */
static void raise_descriptor_limit(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == limit.rlim_max)
    return;
  if (policy.rlimit_count < VENUS_MAX_RLIMITS) {
    /* First in the list, so that a limit of the plan's own comes later and wins. */
    memmove(policy.rlimits + 1, policy.rlimits, policy.rlimit_count * sizeof policy.rlimits[0]);
    policy.rlimits[0] = (struct venus_rlimit){
        .resource = RLIMIT_NOFILE, .soft = limit.rlim_cur, .hard = limit.rlim_max};
    policy.rlimit_count++;
  }
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

static unsigned prepare_poll(const struct control *control) {
  poll_set[POLL_CONTROL] =
      (struct pollfd){.fd = control->fd, .events = control->fd < 0 ? 0 : control_events(control)};
  poll_set[POLL_POOL] = (struct pollfd){.fd = pool_poll_fd(), .events = POLLIN};
  unsigned count = POLL_FIRST_EXEC;
  for (unsigned i = 0; i < table.used; i++)
    if (table.slots[i].state == EXEC_STARTING)
      poll_set[count++] = (struct pollfd){.fd = table.slots[i].status_fd, .events = POLLIN};
  return count;
}

static void read_reports(unsigned count) {
  for (unsigned at = POLL_FIRST_EXEC; at < count; at++) {
    if (!poll_set[at].revents)
      continue;
    for (unsigned i = 0; i < table.used; i++) {
      struct exec *exec = &table.slots[i];
      if (exec->state == EXEC_STARTING && exec->status_fd == poll_set[at].fd) {
        execs_read_status(exec);
        break;
      }
    }
  }
}

static void serve(struct control *control) {
  for (;;) {
    int timeout_ms = execs_expire(&table);
    if (control->stalled && (timeout_ms < 0 || timeout_ms > STALLED_PAUSE_MS))
      timeout_ms = STALLED_PAUSE_MS;
    int pool_ms = pool_timeout_ms();
    if (pool_ms >= 0 && (timeout_ms < 0 || timeout_ms > pool_ms))
      timeout_ms = pool_ms;
    unsigned count = prepare_poll(control);
    if (poll(poll_set, count, timeout_ms) < 0)
      continue; /* ENOMEM: nothing to do but to try again */
    read_reports(count);
    if (poll_set[POLL_SIGNALS].revents) {
      struct signalfd_siginfo info;
      while (read(poll_set[POLL_SIGNALS].fd, &info, sizeof info) > 0)
        ;
      execs_reap(&table);
    }
    pool_turn(poll_set[POLL_POOL].revents);
    control_flush(control);
    if (poll_set[POLL_CONTROL].revents && control->fd == poll_set[POLL_CONTROL].fd &&
        !control_receive(control))
      return;
    /* Last: it replaces the connection that the lines above speak of. */
    if (poll_set[POLL_LISTEN].revents)
      control_accept(control);
  }
}

int main(void) {
  static struct control control = {
      .table = &table, .listen_fd = VENUS_FD_LISTEN, .fd = -1, .answer_fd = -1};
  struct venus_status status;
  table.policy = &policy;
  prctl(PR_SET_NAME, "sandbox-init");
  setup_run(VENUS_FD_PLAN, &policy, &status);
  close(VENUS_FD_PLAN);
  close(VENUS_FD_ROOT);
  int signal_fd = status.kind == VENUS_STATUS_READY ? open_signals() : -1;
  if (status.kind == VENUS_STATUS_READY && (signal_fd < 0 || prctl(PR_SET_DUMPABLE, 0) < 0 ||
                                            fcntl(VENUS_FD_LISTEN, F_SETFD, FD_CLOEXEC) < 0 ||
                                            fcntl(VENUS_FD_LISTEN, F_SETFL, O_NONBLOCK) < 0)) {
    status.kind = VENUS_STATUS_START_FAILED;
    status.error = errno;
  }
  if (status.kind != VENUS_STATUS_READY) {
    report(&status);
    return 1;
  }
  raise_descriptor_limit();
  scheduling_slice(SLICE_SHORT_NS);
  control.started_us = monotonic_us();
  poll_set[POLL_SIGNALS] = (struct pollfd){.fd = signal_fd, .events = POLLIN};
  poll_set[POLL_LISTEN] = (struct pollfd){.fd = VENUS_FD_LISTEN, .events = POLLIN};
  report(&status);
  close(VENUS_FD_STATUS);
  serve(&control);
  return 0;
}
