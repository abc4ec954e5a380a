/* What a program has told the kernel about itself and its files, and nothing but the kernel knows. */
#include "fidelity.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define IO_PRIORITY (2 << 13 | 6) /* best effort, 6 */
#define MEMORY_DENY_WRITE_EXECUTE 65
#define GET_MEMORY_DENY_WRITE_EXECUTE 66
#define MEMORY_MERGE 67
#define GET_MEMORY_MERGE 68
#define GET_BARRIER_REGISTRATIONS (1 << 9)

struct scheduling {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;
};

struct settings {
  int personality, io_priority, policy, machine_check, time_stamps, deny, merge;
  long barriers;
  uint64_t slice;
  char core[16];
};

static void read_settings(struct settings *s) {
  struct scheduling scheduling = {.size = sizeof scheduling};
  memset(s, 0, sizeof *s);
  s->personality = personality(0xffffffff);
  s->io_priority = (int)syscall(SYS_ioprio_get, 1, 0);
  s->policy = sched_getscheduler(0);
  s->machine_check = prctl(PR_MCE_KILL_GET, 0, 0, 0, 0);
  prctl(PR_GET_TSC, &s->time_stamps);
  s->deny = prctl(GET_MEMORY_DENY_WRITE_EXECUTE, 0, 0, 0, 0);
  s->merge = prctl(GET_MEMORY_MERGE, 0, 0, 0, 0);
  s->barriers = syscall(SYS_membarrier, GET_BARRIER_REGISTRATIONS, 0, 0);
  if (syscall(SYS_sched_getattr, 0, &scheduling, sizeof scheduling, 0) == 0)
    s->slice = scheduling.runtime;
  int fd = open("/proc/self/coredump_filter", O_RDONLY);
  if (read(fd, s->core, sizeof s->core - 1) < 0)
    problem(__FILE_NAME__, __LINE__, "coredump_filter");
  close(fd);
}

static struct settings of_thread[2];
static int thread_is_ready;

static void *other_thread(void *unused) {
  syscall(SYS_ioprio_set, 1, 0, IO_PRIORITY + 1);
  prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0);
  prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0); /* from here on it must not ask for the time */
  read_settings(&of_thread[0]);
  __atomic_store_n(&thread_is_ready, 1, __ATOMIC_SEQ_CST);
  wait_for_go();
  read_settings(&of_thread[1]);
  prctl(PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0);
  return unused;
}

static void set_everything(void) {
  struct scheduling scheduling = {
      .size = sizeof scheduling, .policy = SCHED_BATCH, .flags = 1 /* reset on fork */, .nice = 3, .runtime = 5000000};
  MUST(personality(ADDR_NO_RANDOMIZE) >= 0);
  MUST(syscall(SYS_ioprio_set, 1, 0, IO_PRIORITY) == 0);
  MUST(syscall(SYS_sched_setattr, 0, &scheduling, 0) == 0);
  MUST(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_LATE, 0, 0) == 0);
  MUST(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0);
  prctl(MEMORY_MERGE, 1, 0, 0, 0); /* not every kernel has it */
  MUST(prctl(MEMORY_DENY_WRITE_EXECUTE, 1, 0, 0, 0) == 0);
  int fd = open("/proc/self/coredump_filter", O_WRONLY);
  MUST(write(fd, "0x11", 4) == 4 && close(fd) == 0);
}

int main(void) {
  struct settings before, after;
  struct f_owner_ex owner = {F_OWNER_PGRP, getpgrp()}, found = {0, 0};
  int ends[2], pipe_ends[2];
  pthread_t thread;
  set_everything();
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && pipe(pipe_ends) == 0);
  MUST(fcntl(ends[0], F_SETOWN, getpid()) == 0 && fcntl(ends[0], F_SETSIG, SIGUSR2) == 0);
  MUST(fcntl(pipe_ends[0], F_SETOWN_EX, &owner) == 0);
  MUST(pthread_create(&thread, NULL, other_thread, NULL) == 0);
  while (!__atomic_load_n(&thread_is_ready, __ATOMIC_SEQ_CST))
    pause_ms(1);
  read_settings(&before);

  ready_and_wait();

  read_settings(&after);
  CHECK(after.personality == before.personality && after.personality == ADDR_NO_RANDOMIZE);
  CHECK(after.io_priority == before.io_priority && after.io_priority == IO_PRIORITY);
  CHECK(after.policy == before.policy && after.policy == (SCHED_BATCH | SCHED_RESET_ON_FORK));
  CHECK(after.machine_check == before.machine_check && after.machine_check == PR_MCE_KILL_LATE);
  CHECK(after.time_stamps == before.time_stamps && after.merge == before.merge && after.deny == before.deny && after.deny == 1);
  CHECK(after.barriers == before.barriers && after.barriers != 0);
  CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0);
  CHECK(after.slice == before.slice && after.slice == 5000000);
  CHECK(strcmp(after.core, before.core) == 0 && strtol(after.core, NULL, 16) == 0x11);
  pthread_join(thread, NULL);
  CHECK(memcmp(&of_thread[0], &of_thread[1], sizeof of_thread[0]) == 0);
  CHECK(of_thread[1].time_stamps == PR_TSC_SIGSEGV);
  CHECK(of_thread[1].io_priority == IO_PRIORITY + 1 && of_thread[1].machine_check == PR_MCE_KILL_EARLY);
  CHECK(fcntl(ends[0], F_GETOWN) == getpid() && fcntl(ends[0], F_GETSIG) == SIGUSR2);
  CHECK(fcntl(pipe_ends[0], F_GETOWN_EX, &found) == 0 && found.type == owner.type && found.pid == owner.pid);
  finish();
}
