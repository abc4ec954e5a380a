/* What is given back to System V semaphores: by processes with threads, by a thread alone, by processes
 * that share the list, in both directions, as much as there can be. */
#include "fidelity.h"

#include <pthread.h>
#include <sched.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/sem.h>

enum { SEMAPHORES = 70 };
static int set, order[2], ready[2];

static int value(int index) { return semctl(set, index, GETVAL); }

static void change(int index, int amount) {
  struct sembuf step = {(unsigned short)index, (short)amount, SEM_UNDO};
  MUST(semop(set, &step, 1) == 0);
}

static void wait_for_order(void) {
  char byte;
  MUST(write(ready[1], "r", 1) == 1 && read(order[0], &byte, 1) == 1);
}

static void *idle(void *unused) {
  for (;;)
    pause();
  return unused;
}

static void *alone(void *unused) {
  MUST(unshare(CLONE_SYSVSEM) == 0);
  change(1, 2);
  wait_for_order(); /* and ends, not its process */
  return unused;
}

static pid_t start(int kind) {
  pid_t child = kind == 2 ? (pid_t)syscall(SYS_clone, CLONE_SYSVSEM | SIGCHLD, NULL, NULL, NULL, NULL) : fork();
  if (child == 0) {
    pthread_t thread;
    if (kind == 0) { /* with threads, which share its list */
      MUST(pthread_create(&thread, NULL, idle, NULL) == 0);
      change(0, -3);
      change(69, 32767);
      wait_for_order();
    } else if (kind == 1) { /* with a thread that has one of its own */
      change(1, -1);
      MUST(pthread_create(&thread, NULL, alone, NULL) == 0);
      wait_for_order();
    } else { /* shares that of its parent */
      change(2, -2);
      wait_for_order();
    }
    _exit(0);
  }
  return child;
}

static void take_order(int times) {
  char byte;
  for (int i = 0; i < times; i++)
    MUST(read(ready[0], &byte, 1) == 1);
}

int main(void) {
  int status;
  set = semget(IPC_PRIVATE, SEMAPHORES, 0600);
  MUST(set >= 0 && pipe(order) == 0 && pipe(ready) == 0);
  for (int i = 0; i < 69; i++)
    MUST(semctl(set, i, SETVAL, 10) == 0);
  change(2, -1); /* so that there is a list to share */
  pid_t threaded = start(0), divided = start(1), sharer = start(2);
  take_order(4);
  MUST(value(0) == 7 && value(1) == 11 && value(2) == 7 && value(69) == 32767);
  /* One that may no longer change it, and one whose value has come to be less than is given back. */
  pid_t stranger = fork();
  if (stranger == 0) {
    change(3, -4);
    change(68, -5);
    semctl(set, 68, SETVAL, 10); /* forgets what everybody would give back to this one */
    change(68, 6);
    struct sembuf take = {68, -16, 0};
    semop(set, &take, 1);
    if (setresuid(1000, 1000, 1000) < 0)
      _exit(1);
    wait_for_order();
    _exit(0);
  }
  take_order(1);
  MUST(value(3) == 6 && value(68) == 0);

  ready_and_wait();

  CHECK(value(0) == 7 && value(1) == 11 && value(2) == 7 && value(3) == 6 && value(68) == 0 && value(69) == 32767);
  CHECK(kill(threaded, SIGKILL) == 0 && waitpid(threaded, &status, 0) == threaded);
  CHECK(value(0) == 10 && value(69) == 0);
  CHECK(kill(stranger, SIGKILL) == 0 && waitpid(stranger, &status, 0) == stranger);
  CHECK(value(3) == 10 && value(68) == 0);
  CHECK(kill(sharer, SIGKILL) == 0 && waitpid(sharer, &status, 0) == sharer);
  CHECK(value(2) == 7); /* its parent, which shares the list, lives */
  struct sembuf give = {2, 1, SEM_UNDO}, back = {2, -1, SEM_UNDO};
  CHECK(semop(set, &give, 1) == 0 && semop(set, &back, 1) == 0 && value(2) == 7);
  /* Either thread may be the one that reads it: the other's end shows as well. */
  CHECK(write(order[1], "xx", 2) == 2 && waitpid(divided, &status, 0) == divided && value(1) == 10);
  finish();
}
