#ifndef VENUS_INIT_RESTORE_H
#define VENUS_INIT_RESTORE_H

#include <stdint.h>
#include <sys/types.h>

/* fork() whose child has the given pid in the sandbox; -1 and errno. */
pid_t restore_fork(pid_t pid);

/* In that child: receives the plan and its descriptors from the socket at descriptor 0, puts itself
 * under the plan's filter, whose listener it reports over `status` (struct vr_pool_report), and goes over
 * into the plan's own code. Returns the errno of what failed. */
int restore_run(int status);

#endif
