#include "pool_thread.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "pool_vmas.h"
#include "sys.h"

#define SYSCALL_BYTES 2 /* of the instruction */
#define EVENT_STOP 128
#define SYSCALL_STOP (SIGTRAP | 0x80)
#define GET_SIGNAL_MASK 0x420a
#define SET_SIGNAL_MASK 0x420b

static long trace(long request, pid_t tid, uintptr_t address, uintptr_t data) {
  return ptrace((int)request, tid, (void *)address, (void *)data);
}

bool pool_thread_interrupt(struct pool_thread *thread, pid_t tid) {
  *thread = (struct pool_thread){.tid = tid};
  if (trace(PTRACE_SEIZE, tid, 0, PTRACE_O_TRACESYSGOOD) < 0)
    return false;
  /* Fails only for a thread that dies; its end is reported as any other. */
  trace(PTRACE_INTERRUPT, tid, 0, 0);
  return true;
}

/* Stops at entry and exit, not single steps: a step raises SIGTRAP, which resets a blocked or ignored
 * SIGTRAP of the program to its default action. */
static void run_to_syscall_stop(struct pool_thread *thread) {
  trace(PTRACE_SYSCALL, thread->tid, 0, 0);
}

static void let_go(struct pool_thread *thread, const struct user_regs_struct *registers,
                   int signal_number) {
  trace(PTRACE_SETREGS, thread->tid, 0, (uintptr_t)registers);
  trace(SET_SIGNAL_MASK, thread->tid, sizeof thread->mask, (uintptr_t)&thread->mask);
  trace(PTRACE_DETACH, thread->tid, 0, (uintptr_t)signal_number);
}

static enum pool_thread_event first_stop(struct pool_thread *thread, int status,
                                         uint64_t after_call) {
  pid_t tid = thread->tid;
  if (status >> 16 != EVENT_STOP) {
    trace(PTRACE_CONT, tid, 0, (uintptr_t)WSTOPSIG(status));
    return POOL_THREAD_WAIT;
  }
  uint64_t all = ~UINT64_C(0);
  if (trace(PTRACE_GETREGS, tid, 0, (uintptr_t)&thread->registers) < 0)
    return POOL_THREAD_WAIT; /* killed: its end comes */
  if (thread->registers.rip != after_call) {
    trace(PTRACE_DETACH, tid, 0, 0);
    return POOL_THREAD_LOST;
  }
  /* No handler may run on what we put into the registers. */
  trace(GET_SIGNAL_MASK, tid, sizeof thread->mask, (uintptr_t)&thread->mask);
  trace(SET_SIGNAL_MASK, tid, sizeof all, (uintptr_t)&all);
  thread->stopped = true;
  return POOL_THREAD_STOPPED;
}

enum pool_thread_event pool_thread_event(struct pool_thread *thread, int status,
                                         uint64_t after_call, long *result) {
  if (!thread->stopped)
    return first_stop(thread, status, after_call);
  if (status >> 16 == EVENT_STOP) {
    run_to_syscall_stop(thread); /* its process is being stopped: it goes there when we are done */
    return POOL_THREAD_WAIT;
  }
  if (status >> 8 != SYSCALL_STOP) {
    /* A fault at the instruction itself: it was unmapped meanwhile, or a filter forbids the call. */
    let_go(thread, &thread->registers, WSTOPSIG(status));
    return POOL_THREAD_LOST;
  }
  if (!thread->leaving) {
    thread->leaving = true;
    run_to_syscall_stop(thread);
    return POOL_THREAD_WAIT;
  }
  struct user_regs_struct registers;
  if (trace(PTRACE_GETREGS, thread->tid, 0, (uintptr_t)&registers) < 0)
    return POOL_THREAD_WAIT;
  *result = (long)registers.rax;
  return POOL_THREAD_CALLED;
}

void pool_thread_call(struct pool_thread *thread, long number, const uint64_t *arguments) {
  struct user_regs_struct registers = thread->registers;
  registers.orig_rax = ~UINT64_C(0);
  registers.rip -= SYSCALL_BYTES;
  registers.rax = (uint64_t)number;
  registers.rdi = arguments[0];
  registers.rsi = arguments[1];
  registers.rdx = arguments[2];
  registers.r10 = arguments[3];
  registers.r8 = arguments[4];
  registers.r9 = arguments[5];
  thread->leaving = false;
  trace(PTRACE_SETREGS, thread->tid, 0, (uintptr_t)&registers);
  run_to_syscall_stop(thread);
}

void pool_thread_return(struct pool_thread *thread, long result) {
  struct user_regs_struct registers = thread->registers;
  registers.orig_rax = ~UINT64_C(0);
  registers.rax = (uint64_t)result;
  let_go(thread, &registers, 0);
}

void pool_thread_repeat(struct pool_thread *thread, long number) {
  struct user_regs_struct registers = thread->registers;
  registers.orig_rax = ~UINT64_C(0);
  registers.rip -= SYSCALL_BYTES;
  registers.rax = (uint64_t)number;
  let_go(thread, &registers, 0);
}

unsigned pool_thread_count(pid_t tid) {
  char text[2048];
  int fd = pool_open(tid, "status", O_RDONLY);
  ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  close_fd(&fd);
  if (size <= 0)
    return 0;
  text[size] = 0;
  /* The name comes first and is the program's own, but a newline in it is written as \n. */
  const char *line = strstr(text, "\nThreads:\t");
  return line ? (unsigned)atoi(line + strlen("\nThreads:\t")) : 0;
}
