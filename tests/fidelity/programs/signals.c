/* Dispositions, masks, pending signals of process and thread with their values, alternate stack. */
#include "fidelity.h"

static volatile sig_atomic_t usr1, usr2, queued_value, queued, on_alternate, stepped;
static char alternate[65536];

static void on_usr1(int number) { usr1 = number; }
static void on_queued(int number, siginfo_t *info, void *context) {
  (void)number, (void)context;
  queued_value = info->si_value.sival_int;
  queued = info->si_code == SI_QUEUE && info->si_pid == getpid();
}
static void on_usr2(int number) {
  char here;
  usr2 = number;
  on_alternate = &here >= alternate && &here < alternate + sizeof alternate;
}
/* The kernel's own, for every signal: handler or one of the two that mean none. */
static void read_handlers(void (*handlers[65])(int)) {
  struct sigaction action;
  for (int number = 1; number < 65; number++)
    handlers[number] = sigaction(number, NULL, &action) == 0 ? action.sa_handler : NULL;
}
static void on_trap(int number) { stepped = number; }

int main(void) {
  struct sigaction action = {.sa_handler = on_usr1, .sa_flags = SA_RESTART};
  sigaddset(&action.sa_mask, SIGWINCH);
  MUST(sigaction(SIGUSR1, &action, NULL) == 0);
  struct sigaction with_info = {.sa_sigaction = on_queued, .sa_flags = SA_SIGINFO};
  MUST(sigaction(SIGRTMIN + 3, &with_info, NULL) == 0);
  stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
  MUST(sigaltstack(&stack, NULL) == 0);
  struct sigaction on_stack = {.sa_handler = on_usr2, .sa_flags = SA_ONSTACK};
  MUST(sigaction(SIGUSR2, &on_stack, NULL) == 0);
  signal(SIGHUP, SIG_IGN);
  signal(SIGTRAP, on_trap);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  sigaddset(&blocked, SIGRTMIN + 3);
  sigaddset(&blocked, SIGTRAP);
  MUST(sigprocmask(SIG_SETMASK, &blocked, NULL) == 0);
  MUST(sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 4711}) == 0);
  MUST(syscall(SYS_tgkill, getpid(), getpid(), SIGUSR1) == 0);
  void (*before[65])(int), (*after[65])(int);
  read_handlers(before);

  ready_and_wait();

  read_handlers(after);
  for (int number = 1; number < 65; number++)
    CHECK(before[number] == after[number]);

  sigset_t now, pending;
  sigprocmask(SIG_SETMASK, NULL, &now);
  CHECK(sigismember(&now, SIGUSR1) == 1 && sigismember(&now, SIGRTMIN + 3) == 1);
  CHECK(sigismember(&now, SIGUSR2) == 0 && sigismember(&now, SIGTRAP) == 1);
  sigpending(&pending);
  CHECK(sigismember(&pending, SIGUSR1) == 1 && sigismember(&pending, SIGRTMIN + 3) == 1);
  CHECK(sigismember(&pending, SIGCHLD) == 0 && sigismember(&pending, SIGTRAP) == 0);
  CHECK(usr1 == 0 && queued == 0);
  sigemptyset(&now);
  sigprocmask(SIG_SETMASK, &now, NULL);
  CHECK(usr1 == SIGUSR1 && queued && queued_value == 4711);
  raise(SIGUSR2);
  CHECK(usr2 == SIGUSR2 && on_alternate);
  raise(SIGHUP);
  raise(SIGTRAP); /* its handler survived the capture */
  CHECK(stepped == SIGTRAP);
  struct sigaction found;
  sigaction(SIGUSR1, NULL, &found);
  CHECK(found.sa_handler == on_usr1 && (found.sa_flags & SA_RESTART) &&
        sigismember(&found.sa_mask, SIGWINCH) == 1);
  stack_t old;
  CHECK(sigaltstack(NULL, &old) == 0 && old.ss_sp == alternate && old.ss_size == sizeof alternate);
  finish();
}
