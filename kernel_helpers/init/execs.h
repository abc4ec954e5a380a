/* The table of execs: start, reap, time out, kill, release. Knows nothing of connections: what the
 * daemon must be told is left as `pending` bits, which control.c turns into packets.
 *
 * Life of a slot:
 *
 *   free -> STARTING -> RUNNING -> EXITED -> free (RELEASE)
 *               |
 *               +----> FAILED -> free (told and reaped)
 *
 * A slot is never freed before its process is reaped: until then the pid is ours and a kill cannot
 * hit a stranger.
 */
#ifndef VENUS_INIT_EXECS_H
#define VENUS_INIT_EXECS_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "packet.h"
#include "plan.h"

enum exec_state {
  EXEC_FREE = 0,
  EXEC_STARTING = VENUS_STATE_STARTING,
  EXEC_RUNNING = VENUS_STATE_RUNNING,
  EXEC_EXITED = VENUS_STATE_EXITED,
  EXEC_FAILED,
};

#define PENDING_STARTED 1u
#define PENDING_FAILED 2u
#define PENDING_EXITED 4u

struct exec {
  uint64_t id;
  uint64_t request_id; /* of the EXEC packet */
  uint64_t started_us;
  uint64_t deadline_us; /* 0 = none */
  pid_t pid;
  uint8_t state;
  uint8_t kind;
  uint8_t pending;
  bool reaped;
  bool has_terminal; /* its master is keep_fd[1] */
  uint32_t timeout_ms;
  int status_fd; /* read end; the child's report while STARTING */
  int keep_fd[3];
  int slave_fd; /* of its terminal, until the leader is dead */
  int cgroup_kill_fd;
  uint32_t failed_step;
  int32_t failed_error;
  struct venus_exit exit;
};

struct exec_table {
  const struct policy *policy;
  unsigned used; /* slots at and above this were never used: they cost no memory */
  struct exec slots[VENUS_MAX_EXECS];
};

/* Starts the exec. `fds` are in the order of the mask; all of them are consumed. On failure before
 * fork the step and errno come back in `failed` and no slot is taken. */
bool execs_start(struct exec_table *table, const struct packet *packet, const int *fds,
                 struct venus_failed *failed);

/* The exec with this id that the daemon may refer to, or NULL. */
struct exec *execs_find(struct exec_table *table, uint64_t id);

/* How many execs_find could find. */
unsigned execs_count(const struct exec_table *table);

/* Takes the child's report from status_fd; call when it is readable. */
void execs_read_status(struct exec *exec);

/* Reaps every dead child of init, exec or orphan. */
void execs_reap(struct exec_table *table);

/* Kills what has run out of time. Returns the milliseconds until the next deadline, -1 if none. */
int execs_expire(struct exec_table *table);

/* errno or 0. */
int execs_kill(struct exec *exec, int signal_number, bool whole_tree);
/* Takes the master of a restored command's terminal. errno or 0. */
int execs_keep_terminal(struct exec *exec, int master);
int execs_release(struct exec_table *table, struct exec *exec);

/* Frees a FAILED slot once the daemon has been told (or is gone) and the child is reaped. */
void execs_settle(struct exec_table *table, struct exec *exec);

#endif
