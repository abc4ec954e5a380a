#include "execs.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "child.h"
#include "pool_calls.h"
#include "restore.h"
#include "sys.h"
#include "terminal.h"
#include "tree.h"

/* A killed tree may take a while to die (or, without cgroup.kill, fork meanwhile): ask again. */
#define KILL_AGAIN_US 100000u

static uint64_t timeval_us(struct timeval value) {
  return (uint64_t)value.tv_sec * 1000000u + (uint64_t)value.tv_usec;
}

static struct exec *take_slot(struct exec_table *table) {
  for (unsigned i = 0; i < VENUS_MAX_EXECS; i++) {
    struct exec *exec = &table->slots[i];
    if (i < table->used && exec->state != EXEC_FREE)
      continue;
    if (i == table->used)
      table->used++;
    memset(exec, 0, sizeof *exec);
    exec->status_fd = exec->cgroup_kill_fd = exec->slave_fd = -1;
    for (int k = 0; k < 3; k++)
      exec->keep_fd[k] = -1;
    return exec;
  }
  return NULL;
}

static void close_kept(struct exec *exec) {
  for (int k = 0; k < 3; k++)
    close_fd(&exec->keep_fd[k]);
  close_fd(&exec->slave_fd);
}

static void free_slot(struct exec_table *table, struct exec *exec) {
  close_kept(exec);
  close_fd(&exec->status_fd);
  close_fd(&exec->cgroup_kill_fd);
  exec->state = EXEC_FREE;
  exec->id = 0;
  while (table->used > 0 && table->slots[table->used - 1].state == EXEC_FREE)
    table->used--;
}

struct exec *execs_find(struct exec_table *table, uint64_t id) {
  for (unsigned i = 0; i < table->used; i++) {
    struct exec *exec = &table->slots[i];
    if (exec->id == id && exec->state != EXEC_FREE && exec->state != EXEC_FAILED)
      return exec;
  }
  return NULL;
}

unsigned execs_count(const struct exec_table *table) {
  unsigned count = 0;
  for (unsigned i = 0; i < table->used; i++)
    count += table->slots[i].state != EXEC_FREE && table->slots[i].state != EXEC_FAILED;
  return count;
}

/* Sorts the packet's descriptors by what they are for. Missing ones are -1. */
static void sort_fds(struct child_fds *child, struct exec *exec, const struct venus_exec *head,
                     const int *fds) {
  unsigned next = 0;
  for (int k = 0; k < 3; k++)
    child->standard[k] = head->fd_mask & (VENUS_HAS_STDIN << k) ? fds[next++] : -1;
  for (int k = 0; k < 3; k++)
    exec->keep_fd[k] = head->fd_mask & (VENUS_HAS_KEEP_STDIN << k) ? fds[next++] : -1;
  child->cgroup_count = head->cgroup_procs_count;
  for (unsigned k = 0; k < head->cgroup_procs_count; k++)
    child->cgroup_procs[k] = fds[next++];
  exec->cgroup_kill_fd = head->fd_mask & VENUS_HAS_CGROUP_KILL ? fds[next++] : -1;
}

static void close_child_fds(struct child_fds *fds) {
  for (int k = 0; k < 3; k++)
    close_fd(&fds->standard[k]);
  for (unsigned k = 0; k < fds->cgroup_count; k++)
    close_fd(&fds->cgroup_procs[k]);
  close_fd(&fds->status);
}

/* Without one: 0. */
static int give_terminal(const struct exec_table *table, struct exec *exec,
                         const struct venus_exec *head) {
  if (!(head->flags & VENUS_EXEC_TERMINAL))
    return 0;
  struct terminal terminal;
  int error = terminal_open(table->policy->devpts_fd, (uint16_t)head->number[0],
                            (uint16_t)head->number[1], &terminal);
  if (error)
    return error;
  exec->has_terminal = true;
  exec->keep_fd[1] = terminal.master;
  exec->slave_fd = terminal.slave;
  return 0;
}

/* The pid is nobody's yet: in a fresh sandbox nothing but the restore chooses it. */
static void enter_restored(struct exec *exec, pid_t pid) {
  exec->pid = pid;
  exec->reaped = pid == 0;
  exec->state = pid == 0 ? EXEC_EXITED : EXEC_RUNNING;
  exec->pending |= PENDING_STARTED;
}

/* Runs in the child with pid 0; -1 and errno. */
static pid_t start_child(struct exec *exec, struct child_fds *child, const struct venus_exec *head) {
  /* The coordinator of a restore has a descriptor to report. */
  bool restores = head->kind == VENUS_KIND_RESTORE;
  int status_pipe[2];
  if ((restores ? socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, status_pipe)
                : pipe2(status_pipe, O_CLOEXEC)) < 0)
    return -1;
  exec->status_fd = status_pipe[0];
  child->status = status_pipe[1];
  return restores ? restore_fork((pid_t)head->number[0]) : fork();
}

bool execs_start(struct exec_table *table, const struct packet *packet, const int *fds,
                 struct venus_failed *failed) {
  const struct venus_exec *head = &packet->exec.head;
  *failed = (struct venus_failed){.exec_id = head->exec_id, .step = VENUS_STEP_REQUEST};
  struct exec *exec = NULL;
  if (execs_find(table, head->exec_id))
    failed->error = EEXIST;
  else if (!(exec = take_slot(table)))
    failed->error = EAGAIN;
  if (!exec) {
    for (unsigned i = 0; i < packet_fd_count(head->fd_mask, head->cgroup_procs_count); i++)
      close(fds[i]);
    return false;
  }
  exec->state = EXEC_STARTING;
  struct child_fds child = {.status = -1};
  sort_fds(&child, exec, head, fds);

  failed->step = VENUS_STEP_TERMINAL;
  failed->error = give_terminal(table, exec, head);
  if (failed->error) {
    close_child_fds(&child);
    free_slot(table, exec);
    return false;
  }
  child.terminal = exec->slave_fd;
  failed->step = VENUS_STEP_FORK;
  if (head->kind == VENUS_KIND_RESTORED) {
    enter_restored(exec, (pid_t)head->number[0]);
  } else {
    pid_t pid = start_child(exec, &child, head);
    if (pid == 0)
      child_run(table->policy, &packet->exec, &child);
    if (pid < 0) {
      failed->error = errno;
      close_child_fds(&child);
      free_slot(table, exec);
      return false;
    }
    exec->pid = pid;
  }
  close_child_fds(&child);
  exec->id = head->exec_id;
  exec->request_id = packet->header.request_id;
  exec->kind = (uint8_t)head->kind;
  exec->timeout_ms = head->timeout_ms;
  exec->started_us = monotonic_us();
  if (head->timeout_ms)
    exec->deadline_us = exec->started_us + (uint64_t)head->timeout_ms * 1000u;
  exec->exit.exec_id = head->exec_id;
  return true;
}

/* From the coordinator of a restore: its report, or what any child writes. */
static ssize_t receive_status(int socket, struct child_failure *failure) {
  static union {
    struct child_failure failure;
    struct vr_pool_report report;
  } message;
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
  } ancillary;
  struct iovec vector = {.iov_base = &message, .iov_len = sizeof message};
  struct msghdr header = {.msg_iov = &vector,
                          .msg_iovlen = 1,
                          .msg_control = &ancillary,
                          .msg_controllen = sizeof ancillary};
  ssize_t size = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  struct cmsghdr *control = size >= 0 ? CMSG_FIRSTHDR(&header) : NULL;
  if (control && control->cmsg_type == SCM_RIGHTS) {
    int listener;
    memcpy(&listener, CMSG_DATA(control), sizeof listener);
    if (vr_pool_report_is_whole(&message.report, (size_t)size))
      pool_adopt(&message.report, listener);
    else
      close(listener);
  } else if (size == sizeof *failure) {
    *failure = message.failure;
  }
  return size;
}

void execs_read_status(struct exec *exec) {
  struct child_failure failure;
  ssize_t size;
  bool restores = exec->kind == VENUS_KIND_RESTORE;
  do
    size = restores ? receive_status(exec->status_fd, &failure)
                    : read(exec->status_fd, &failure, sizeof failure);
  while (size < 0 && errno == EINTR);
  if (restores && (size > (ssize_t)sizeof failure || (size < 0 && errno == EAGAIN)))
    return; /* more will come, or the end */
  close_fd(&exec->status_fd);
  if (size != sizeof failure) {
    /* End of file without a report: close-on-exec closed the pipe, the program runs. */
    exec->state = EXEC_RUNNING;
    exec->pending |= PENDING_STARTED;
    return;
  }
  exec->state = EXEC_FAILED;
  exec->failed_step = failure.step;
  exec->failed_error = failure.error;
  exec->pending |= PENDING_FAILED;
  close_kept(exec);
}

static void record_exit(struct exec *exec, int status, const struct rusage *usage) {
  struct venus_exit *out = &exec->exit;
  if (WIFSIGNALED(status)) {
    out->how = VENUS_EXIT_SIGNALED;
    out->code = (uint32_t)WTERMSIG(status);
    if (WCOREDUMP(status))
      out->flags |= VENUS_EXIT_CORE_DUMPED;
  } else {
    out->how = VENUS_EXIT_EXITED;
    out->code = (uint32_t)WEXITSTATUS(status);
  }
  out->user_us = timeval_us(usage->ru_utime);
  out->system_us = timeval_us(usage->ru_stime);
  out->max_rss_kib = (uint64_t)usage->ru_maxrss;
  out->duration_us = monotonic_us() - exec->started_us;
}

static struct exec *find_unreaped(struct exec_table *table, pid_t pid) {
  for (unsigned i = 0; i < table->used; i++) {
    struct exec *exec = &table->slots[i];
    if (exec->state != EXEC_FREE && !exec->reaped && exec->pid == pid)
      return exec;
  }
  return NULL;
}

void execs_reap(struct exec_table *table) {
  for (;;) {
    int status;
    struct rusage usage;
    pid_t pid = wait4(-1, &status, WNOHANG, &usage);
    if (pid <= 0)
      return;
    if (pool_event(pid, status))
      continue;
    struct exec *exec = find_unreaped(table, pid);
    if (!exec)
      continue; /* an orphan that init inherited */
    /* The report was written before the death that we see now, but poll may have run before it. */
    while (exec->state == EXEC_STARTING)
      execs_read_status(exec);
    exec->reaped = true;
    exec->deadline_us = 0;
    close_fd(&exec->slave_fd);
    if (exec->state == EXEC_FAILED) {
      execs_settle(table, exec);
      continue;
    }
    record_exit(exec, status, &usage);
    exec->state = EXEC_EXITED;
    exec->pending |= PENDING_EXITED;
  }
}

void execs_settle(struct exec_table *table, struct exec *exec) {
  if (exec->state == EXEC_FAILED && exec->reaped && !exec->pending)
    free_slot(table, exec);
}

/* The leader is killed last where the tree is found by walking: once it is dead its children are
 * init's and no longer known as its own. */
static int kill_tree(struct exec *exec, int signal_number) {
  if (signal_number == SIGKILL && exec->cgroup_kill_fd >= 0) {
    ssize_t written = write(exec->cgroup_kill_fd, "1", 1);
    /* A child that is killed before it joined its group is not in that group. */
    if (!exec->reaped)
      kill(exec->pid, SIGKILL);
    return written < 0 ? errno : 0;
  }
  return exec->reaped ? ESRCH : tree_signal(exec->pid, signal_number);
}

int execs_kill(struct exec *exec, int signal_number, bool whole_tree) {
  int error;
  if (whole_tree)
    error = kill_tree(exec, signal_number);
  else if (exec->reaped)
    error = ESRCH;
  else
    error = kill(exec->pid, signal_number) < 0 ? errno : 0;
  if (!error && !exec->reaped)
    exec->exit.flags |= VENUS_EXIT_KILLED_BY_REQUEST;
  return error;
}

int execs_keep_terminal(struct exec *exec, int master) {
  int slave = exec->reaped ? -1 : terminal_slave(master);
  if (slave < 0 && !exec->reaped)
    return errno;
  close_kept(exec);
  exec->keep_fd[1] = master;
  exec->slave_fd = slave;
  return 0;
}

int execs_release(struct exec_table *table, struct exec *exec) {
  if (exec->state != EXEC_EXITED)
    return EBUSY;
  free_slot(table, exec);
  return 0;
}

int execs_expire(struct exec_table *table) {
  uint64_t now = monotonic_us();
  uint64_t next = UINT64_MAX;
  for (unsigned i = 0; i < table->used; i++) {
    struct exec *exec = &table->slots[i];
    if (exec->state == EXEC_FREE || exec->deadline_us == 0)
      continue;
    if (exec->deadline_us <= now) {
      exec->exit.flags |= VENUS_EXIT_TIMED_OUT;
      kill_tree(exec, SIGKILL);
      exec->deadline_us = now + KILL_AGAIN_US;
    }
    if (exec->deadline_us < next)
      next = exec->deadline_us;
  }
  if (next == UINT64_MAX)
    return -1;
  /* Rounded up: waking early would only poll again. */
  uint64_t wait_ms = (next - now + 999u) / 1000u;
  return wait_ms > 3600000u ? 3600000 : (int)wait_ms;
}
