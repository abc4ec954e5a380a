#ifndef VENUS_INIT_TREE_H
#define VENUS_INIT_TREE_H

#include <sys/types.h>

/* Signals an exec's leader, its descendants and the members of its session, found through /proc.
 * SIGKILL repeats until nothing more is found. 0, or the errno of signalling the leader.
 *
 * Does not reach a process that left the session and whose parent died: its ancestry is gone. Only
 * cgroup.kill reaches that one; this is the way for hosts without cgroup2. */
int tree_signal(pid_t leader, int signal_number);

#endif
