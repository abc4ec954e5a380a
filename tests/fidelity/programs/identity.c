/* Users, groups, capabilities, no_new_privs, seccomp, limits, nice, affinity, names. */
#include "fidelity.h"

#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>

struct state {
  uid_t uids[3];
  gid_t gids[3], groups[8];
  int group_count, nice, no_new_privs, seccomp, dumpable, death_signal;
  struct __user_cap_data_struct capabilities[2];
  struct rlimit files, stack, core;
  cpu_set_t cpus;
  char bounding[64];
  char name[16];
};

static void read_state(struct state *s) {
  memset(s, 0, sizeof *s);
  getresuid(&s->uids[0], &s->uids[1], &s->uids[2]);
  getresgid(&s->gids[0], &s->gids[1], &s->gids[2]);
  s->group_count = getgroups(8, s->groups);
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  syscall(SYS_capget, &header, s->capabilities);
  s->nice = getpriority(PRIO_PROCESS, 0);
  s->no_new_privs = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
  s->seccomp = prctl(PR_GET_SECCOMP);
  s->dumpable = prctl(PR_GET_DUMPABLE);
  prctl(PR_GET_PDEATHSIG, &s->death_signal);
  getrlimit(RLIMIT_NOFILE, &s->files);
  getrlimit(RLIMIT_STACK, &s->stack);
  getrlimit(RLIMIT_CORE, &s->core);
  sched_getaffinity(0, sizeof s->cpus, &s->cpus);
  prctl(PR_GET_NAME, s->name);
  for (int i = 0; i <= CAP_LAST_CAP; i++)
    s->bounding[i] = (char)prctl(PR_CAPBSET_READ, i);
}

int main(void) {
  struct rlimit files = {200, 300};
  setrlimit(RLIMIT_NOFILE, &files);
  /* Upwards from whatever the tests run under, which needs no right. */
  errno = 0;
  MUST(nice(7) != -1 || errno == 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(0, &one);
  sched_setaffinity(0, sizeof one, &one);
  if (getuid() == 0) {
    gid_t groups[] = {20, 24, 4000};
    MUST(setgroups(3, groups) == 0 && setresgid(1000, 1000, 1000) == 0 && setresuid(1000, 1000, 1000) == 0);
  }
  prctl(PR_SET_NAME, "somebody");
  prctl(PR_SET_DUMPABLE, 1);
  prctl(PR_SET_PDEATHSIG, SIGUSR1);
  /* The program's own filter, on top of the sandbox's. */
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sync, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 77),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {4, code};
  MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
  struct state before, after;
  read_state(&before);

  ready_and_wait();

  read_state(&after);
  CHECK(memcmp(before.uids, after.uids, sizeof before.uids) == 0);
  CHECK(memcmp(before.gids, after.gids, sizeof before.gids) == 0);
  CHECK(before.group_count == after.group_count && memcmp(before.groups, after.groups, sizeof before.groups) == 0);
  CHECK(memcmp(before.capabilities, after.capabilities, sizeof before.capabilities) == 0);
  CHECK(memcmp(before.bounding, after.bounding, sizeof before.bounding) == 0);
  CHECK(before.nice == after.nice && after.nice > 0);
  CHECK(before.no_new_privs == after.no_new_privs && before.seccomp == after.seccomp);
  CHECK(before.dumpable == after.dumpable && before.death_signal == after.death_signal);
  CHECK(memcmp(&before.files, &after.files, sizeof before.files) == 0 && after.files.rlim_max == 300);
  CHECK(memcmp(&before.stack, &after.stack, sizeof before.stack) == 0);
  CHECK(memcmp(&before.core, &after.core, sizeof before.core) == 0);
  CHECK(CPU_EQUAL(&before.cpus, &after.cpus) && strcmp(after.name, "somebody") == 0);
  CHECK(syscall(SYS_sync) == -1 && errno == 77);
  /* The sandbox's filter is there as well: it knows neither of these. */
  CHECK(syscall(SYS_unshare, 0x10000000) == -1);
  CHECK(syscall(425 /* io_uring_setup */, 1, NULL) == -1);
  finish();
}
