/* Signals from open files (O_ASYNC), leases, and locks of open files that flock() did not make or that
 * are on others than regular files. */
#include "fidelity.h"

#include <pthread.h>
#include <sys/file.h>
#include <sys/socket.h>

#define SIGNAL (SIGRTMIN + 1)
static volatile int told_fd, told_thread, told_lease, told_default;

static void on_signal(int number, siginfo_t *info, void *context) {
  (void)number;
  (void)context;
  if (info->si_code != POLL_IN && info->si_code != POLL_MSG)
    return;
  told_fd = info->si_fd;
  told_thread = (int)syscall(SYS_gettid);
}
static void on_lease(int number) { told_lease = number; }
static void on_default(int number) { told_default = number; }

static void *wait_there(void *tid) {
  *(int *)tid = (int)syscall(SYS_gettid);
  for (;;)
    pause();
  return NULL;
}

static void wait_until(volatile int *told) {
  for (int i = 0; i < 1000 && !*told; i++)
    pause_ms(1);
}

int main(void) {
  int to_process[2], to_thread[2], to_group[2], quiet[2], tid = 0;
  pthread_t thread;
  struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
  sigaction(SIGNAL, &action, NULL);
  signal(SIGUSR1, on_lease);
  signal(SIGIO, on_default);
  MUST(pthread_create(&thread, NULL, wait_there, &tid) == 0);
  while (!__atomic_load_n(&tid, __ATOMIC_SEQ_CST))
    pause_ms(1);
  MUST(pipe(to_process) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, to_thread) == 0);
  MUST(pipe(to_group) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, quiet) == 0);
  struct f_owner_ex owner = {F_OWNER_TID, tid};
  MUST(fcntl(to_process[0], F_SETOWN, getpid()) == 0);
  MUST(fcntl(to_process[0], F_SETSIG, SIGNAL) == 0 && fcntl(to_process[0], F_SETFL, O_ASYNC | O_NONBLOCK) == 0);
  MUST(fcntl(to_thread[0], F_SETOWN_EX, &owner) == 0 && fcntl(to_thread[0], F_SETSIG, SIGNAL) == 0);
  MUST(fcntl(to_thread[0], F_SETFL, O_ASYNC) == 0);
  owner = (struct f_owner_ex){F_OWNER_PGRP, getpgrp()};
  MUST(fcntl(to_group[0], F_SETOWN_EX, &owner) == 0 && fcntl(to_group[0], F_SETFL, O_ASYNC) == 0);
  /* By somebody who may not send us signals. */
  MUST(setresuid(33, 34, 0) == 0 && fcntl(quiet[0], F_SETOWN, getpid()) == 0 && setresuid(0, 0, 0) == 0);

  int leased = open("/var/tmp/leased", O_RDONLY | O_CREAT, 0600);
  MUST(fchown(leased, 33, 33) == 0 && setresuid(-1, 33, -1) == 0);
  MUST(fcntl(leased, F_SETLEASE, F_RDLCK) == 0 && fcntl(leased, F_SETSIG, SIGUSR1) == 0 && setresuid(-1, 0, -1) == 0);
  int ranged = open("/var/tmp/ranged", O_RDWR | O_CREAT, 0600), memory = (int)syscall(SYS_memfd_create, "locked", 0);
  struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 10};
  MUST(fcntl(ranged, F_OFD_SETLK, &range) == 0 && flock(memory, LOCK_EX) == 0);

  ready_and_wait();

  uid_t uids[2] = {1, 1};
  CHECK(fcntl(to_process[0], F_GETOWN) == getpid() && fcntl(to_process[0], F_GETSIG) == SIGNAL);
  CHECK(fcntl(to_process[0], 17 /* F_GETOWNER_UIDS */, uids) == 0 && uids[0] == 0 && uids[1] == 0);
  CHECK(fcntl(quiet[0], 17, uids) == 0 && uids[0] == 33 && uids[1] == 34);
  CHECK((fcntl(to_process[0], F_GETFL) & (O_ASYNC | O_NONBLOCK)) == (O_ASYNC | O_NONBLOCK));
  CHECK(fcntl(quiet[0], F_GETOWN) == getpid() && !(fcntl(quiet[0], F_GETFL) & O_ASYNC));
  CHECK(told_fd == 0 && write(to_process[1], "x", 1) == 1);
  wait_until(&told_fd);
  CHECK(told_fd == to_process[0]);
  told_fd = told_thread = 0;
  CHECK(write(to_thread[1], "x", 1) == 1);
  wait_until(&told_thread);
  CHECK(told_fd == to_thread[0] && told_thread == tid);
  CHECK(told_default == 0 && write(to_group[1], "x", 1) == 1);
  wait_until(&told_default);
  CHECK(told_default == SIGIO && fcntl(to_group[0], F_GETOWN) == -getpgrp());

  CHECK(fcntl(leased, F_GETLEASE) == F_RDLCK && told_lease == 0);
  CHECK(open("/var/tmp/leased", O_WRONLY | O_NONBLOCK) < 0 && errno == EWOULDBLOCK);
  wait_until(&told_lease);
  CHECK(told_lease == SIGUSR1 && setresuid(-1, 33, -1) == 0);
  CHECK(fcntl(leased, F_SETLEASE, F_UNLCK) == 0 && setresuid(-1, 0, -1) == 0);
  int rival = open("/var/tmp/ranged", O_RDWR);
  range = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 14, .l_len = 1};
  CHECK(fcntl(rival, F_OFD_SETLK, &range) < 0 && errno == EAGAIN);
  range.l_start = 15;
  CHECK(fcntl(rival, F_OFD_SETLK, &range) == 0);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
  CHECK(flock(open(path, O_RDWR), LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK);
  finish();
}
