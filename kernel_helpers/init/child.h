#ifndef VENUS_INIT_CHILD_H
#define VENUS_INIT_CHILD_H

#include "packet.h"
#include "plan.h"

struct child_fds {
  int standard[3]; /* -1: keep init's /dev/null */
  int terminal;    /* slave for all three, -1: none */
  unsigned cgroup_count;
  int cgroup_procs[VENUS_MAX_CGROUP_PROCS];
  int status;
};

/* What a child writes to its status pipe when it cannot go on. */
struct child_failure {
  uint32_t step;
  int32_t error;
};

/* Runs in the forked child, with init's memory copied: becomes the program or the file operation.
 */
_Noreturn void child_run(const struct policy *policy, const struct exec_request *request,
                         struct child_fds *fds);

#endif
