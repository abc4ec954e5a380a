/* One thread that init holds for a moment, to run system calls in it. No function waits. */
#ifndef VENUS_INIT_POOL_THREAD_H
#define VENUS_INIT_POOL_THREAD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

struct pool_thread {
  pid_t tid;
  bool stopped, leaving;
  struct user_regs_struct registers; /* as its own call left them */
  uint64_t mask;
};

enum pool_thread_event {
  POOL_THREAD_WAIT,    /* more events will come */
  POOL_THREAD_STOPPED, /* it stands behind its own call */
  POOL_THREAD_CALLED,  /* the call for us has ended */
  POOL_THREAD_LOST,    /* it went on without us */
};

/* The thread waits in a call whose answer is up to us: it will stop behind it. False: it cannot be
 * traced. */
bool pool_thread_interrupt(struct pool_thread *thread, pid_t tid);

/* What wait() reported. `after_call`: the address behind the thread's own call. */
enum pool_thread_event pool_thread_event(struct pool_thread *thread, int status,
                                         uint64_t after_call, long *result);

/* Starts a system call in the stopped thread, at the instruction of its own call. */
void pool_thread_call(struct pool_thread *thread, long number, const uint64_t *arguments);

/* Lets it go: its own call returns `result`; or is made again. */
void pool_thread_return(struct pool_thread *thread, long result);
void pool_thread_repeat(struct pool_thread *thread, long number);

/* How many threads its process has; 0: not known. */
unsigned pool_thread_count(pid_t tid);

#endif
