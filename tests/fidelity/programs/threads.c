/* Threads with their registers, thread-local storage, names, robust mutexes, rseq, and waits. */
#include "fidelity.h"

#include <pthread.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

#define THREADS 8
static __thread int local;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, robust;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int go, tids[THREADS], before[THREADS];
static int pipe_ends[2];
static double results[THREADS];

static uint64_t vector_pattern(int seed) {
  /* Keeps values in SSE registers across the stop. */
  double a = seed, b = seed * 2.0, c = 0;
  for (int i = 0; i < 1000; i++)
    c += a * b;
  return (uint64_t)c;
}

static void *work(void *argument) {
  int index = (int)(intptr_t)argument;
  char name[16];
  local = 1000 + index;
  snprintf(name, sizeof name, "worker-%d", index);
  prctl(PR_SET_NAME, name);
  before[index] = tids[index] = (int)syscall(SYS_gettid);
  switch (index) {
  case 0: { /* blocked in read */
    char byte;
    if (read(pipe_ends[0], &byte, 1) != 1 || byte != 'x')
      problem("threads.c", __LINE__, "read");
    break;
  }
  case 1: { /* blocked in poll without end */
    struct pollfd entry = {pipe_ends[0], 0, 0};
    (void)entry;
    struct pollfd never = {-1, POLLIN, 0};
    (void)never;
    pthread_mutex_lock(&mutex);
    while (!go)
      pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    break;
  }
  case 2: { /* computing */
    uint64_t expected = vector_pattern(3);
    while (!__atomic_load_n(&go, __ATOMIC_SEQ_CST))
      if (vector_pattern(3) != expected) {
        problem("threads.c", __LINE__, "vector registers");
        break;
      }
    break;
  }
  case 3: /* owner of a robust mutex that dies with it */
    pthread_mutex_lock(&robust);
    pthread_mutex_lock(&mutex);
    while (!go)
      pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    break;
  default:
    pthread_mutex_lock(&mutex);
    while (!go)
      pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
  }
  if (local != 1000 + index)
    problem("threads.c", __LINE__, "thread-local storage");
  if ((int)syscall(SYS_gettid) != before[index])
    problem("threads.c", __LINE__, "tid");
  char now[16];
  prctl(PR_GET_NAME, now);
  if (strcmp(now, name) != 0)
    problem("threads.c", __LINE__, "name");
  results[index] = index;
  return NULL;
}

int main(void) {
  pthread_t threads[THREADS];
  pthread_mutexattr_t attribute;
  pthread_mutexattr_init(&attribute);
  pthread_mutexattr_setrobust(&attribute, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&robust, &attribute);
  MUST(pipe(pipe_ends) == 0);
  local = 99;
  for (intptr_t i = 0; i < THREADS; i++)
    MUST(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
  for (int i = 0; i < THREADS; i++)
    while (!__atomic_load_n(&tids[i], __ATOMIC_SEQ_CST))
      pause_ms(1);
  pause_ms(50);
  ready_and_wait();
  CHECK(local == 99 && syscall(SYS_gettid) == getpid());
  CHECK(write(pipe_ends[1], "x", 1) == 1);
  pthread_mutex_lock(&mutex);
  go = 1;
  pthread_cond_broadcast(&condition);
  pthread_mutex_unlock(&mutex);
  for (int i = 0; i < THREADS; i++) /* needs clear_child_tid */
    CHECK(pthread_join(threads[i], NULL) == 0);
  for (int i = 0; i < THREADS; i++)
    CHECK(results[i] == i);
  CHECK(pthread_mutex_lock(&robust) == EOWNERDEAD); /* needs the robust list */
  pthread_t one;
  CHECK(pthread_create(&one, NULL, work, (void *)5) == 0 && pthread_join(one, NULL) == 0);
  CHECK(sched_getcpu() >= 0); /* through rseq */
  finish();
}
