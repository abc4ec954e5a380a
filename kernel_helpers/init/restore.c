/* The first step of a restored process tree: the coordinator.
 *
 * Init knows nothing of what a plan does.  Its child keeps all of init's rights inside the sandbox,
 * because it makes the processes that then give them up themselves, each down to what its original
 * had.  That is safe only before anything else runs in the sandbox: the daemon sends a plan to a
 * fresh sandbox, never to one in use.
 */
#include "restore.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "plan_pool.h"
#include "pool_calls.h"
#include "sys.h"
#include "venus_init_protocol.h"

#define SOCKET_FD 0

pid_t restore_fork(pid_t pid) {
  uint64_t wanted = (uint64_t)pid;
  struct clone_args arguments = {.exit_signal = SIGCHLD,
                                 .set_tid = (uint64_t)(uintptr_t)&wanted,
                                 .set_tid_size = 1};
  return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
}

/* One packet: `size` bytes and up to VR_START_BATCH descriptors. */
static int receive(void *bytes, size_t size, int *fds, unsigned *count) {
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(VR_START_BATCH * sizeof(int))];
  } ancillary;
  struct iovec vector = {.iov_base = bytes, .iov_len = size};
  struct msghdr message = {.msg_iov = &vector,
                           .msg_iovlen = 1,
                           .msg_control = &ancillary,
                           .msg_controllen = sizeof ancillary};
  ssize_t got;
  do
    got = recvmsg(SOCKET_FD, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got < 0)
    return errno;
  *count = 0;
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_type == SCM_RIGHTS) {
    *count = (unsigned)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(fds, CMSG_DATA(header), *count * sizeof(int));
  }
  return (size_t)got == size && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ? 0 : EBADMSG;
}

/* Received descriptors get low numbers: VR_START_BATCH at a time they stay below `first`. */
static int receive_descriptors(const struct vr_start *start) {
  unsigned have = 0;
  while (have < start->fd_count) {
    int fds[VR_START_BATCH];
    unsigned count = 0;
    uint32_t index;
    int error = receive(&index, sizeof index, fds, &count);
    if (error)
      return error;
    if (index != have || count == 0 || count > start->fd_count - have)
      return EBADMSG;
    for (unsigned i = 0; i < count; i++, have++) {
      int number = (int)(start->first_fd + have);
      if (fds[i] >= (int)start->first_fd)
        return EMFILE;
      if (dup3(fds[i], number, O_CLOEXEC) < 0)
        return errno;
      close(fds[i]);
    }
  }
  return 0;
}

static int send_report(int status, const struct vr_pool_report *report, int listener) {
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
  } ancillary = {0};
  struct iovec vector = {.iov_base = (void *)report, .iov_len = vr_pool_report_size(report)};
  struct msghdr message = {.msg_iov = &vector,
                           .msg_iovlen = 1,
                           .msg_control = &ancillary,
                           .msg_controllen = sizeof ancillary};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof listener);
  memcpy(CMSG_DATA(header), &listener, sizeof listener);
  return sendmsg(status, &message, MSG_NOSIGNAL) < 0 ? errno : 0;
}

/* All processes of the fork inherit the filter. It comes before their own, while no_new_privs is not
 * needed and none of them can forbid it. A notified call waits, without being interruptible once init
 * has seen it: a call that a signal ended could not be told from one that was carried out. */
static int install_filter(const struct vr_start *start, uint64_t plan_inode, int status) {
  static struct vr_pool_report report;
  struct plan_pool plan;
  int error = plan_pool_read(start, (const uint8_t *)(uintptr_t)start->base, &plan);
  if (error || plan.filter_count == 0)
    return error;
  report.magic = VR_MAGIC;
  report.count = plan.count;
  report.plan = plan_inode;
  for (uint32_t i = 0; i < plan.count; i++) {
    struct stat file;
    if (fstat((int)(start->first_fd + plan_pool_index(&plan, i)), &file) < 0)
      return EBADMSG;
    report.device = file.st_dev;
    report.inodes[i] = file.st_ino;
  }
  struct sock_fprog program = {.len = plan.filter_count,
                               .filter = (struct sock_filter *)(uintptr_t)plan.filter};
  int listener = (int)syscall(
      SYS_seccomp, SECCOMP_SET_MODE_FILTER,
      SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &program);
  if (listener < 0)
    return errno;
  error = send_report(status, &report, listener);
  close(listener);
  return error;
}

int restore_run(int status) {
  struct vr_start start;
  int none[VR_START_BATCH];
  unsigned count;
  int error = receive(&start, sizeof start, none, &count);
  if (error)
    return error;
  if (!plan_start_is_valid(&start))
    return EBADMSG;
  error = receive_descriptors(&start);
  if (error)
    return error;
  /* The plan is the last of them. */
  int plan = (int)(start.first_fd + start.fd_count - 1);
  void *base = (void *)(uintptr_t)start.base;
  if (mmap(base, start.plan_bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE, plan,
           0) != base)
    return errno;
  struct stat file;
  if (fstat(plan, &file) < 0)
    return errno;
  close(plan);
  error = install_filter(&start, file.st_ino, status);
  if (error)
    return error;
  /* Copies of init are not dumpable, and /proc/self of such a process belongs to the host. */
  if (prctl(PR_SET_DUMPABLE, 1) < 0)
    return errno;
  uint64_t vdso = getauxval(AT_SYSINFO_EHDR);
  /* Closes the status socket too, which tells init that the plan runs. */
  if (syscall(SYS_close_range, 0, start.first_fd - 1, 0) < 0)
    return errno;
  __asm__ volatile("call *%0" : : "r"(start.base + start.entry), "D"(vdso) : "memory");
  __builtin_unreachable();
}
