/* System calls and constants that musl does not wrap. Only thin wrappers: errno as libc does it. */
#ifndef VENUS_INIT_SYS_H
#define VENUS_INIT_SYS_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1u
#define OPEN_TREE_CLOEXEC O_CLOEXEC
#endif
#define VENUS_MOVE_MOUNT_F_EMPTY_PATH 0x4u
#define VENUS_MOUNT_ATTR_RDONLY 0x1u
#define VENUS_AT_RECURSIVE 0x8000

struct venus_mount_attr {
  uint64_t attr_set;
  uint64_t attr_clr;
  uint64_t propagation;
  uint64_t userns_fd;
};

static inline int sys_open_tree(int dir, const char *path, unsigned flags) {
  return (int)syscall(SYS_open_tree, dir, path, flags);
}

static inline int sys_move_mount(int from, const char *from_path, int to, const char *to_path,
                                 unsigned flags) {
  return (int)syscall(SYS_move_mount, from, from_path, to, to_path, flags);
}

static inline int sys_mount_setattr(int dir, const char *path, unsigned flags, uint64_t set) {
  struct venus_mount_attr attr = {.attr_set = set};
  return (int)syscall(SYS_mount_setattr, dir, path, flags, &attr, sizeof attr);
}

static inline int sys_pivot_root(const char *new_root, const char *put_old) {
  return (int)syscall(SYS_pivot_root, new_root, put_old);
}

static inline int sys_close_range(unsigned first, unsigned last) {
  return (int)syscall(SYS_close_range, first, last, 0);
}

/* `proc_dir` is an open /proc/PID, which the kernel takes as a pidfd: what was examined is what is
 * signalled, whatever happens to the number meanwhile. */
static inline int sys_pidfd_send_signal(int proc_dir, int signal_number) {
  return (int)syscall(SYS_pidfd_send_signal, proc_dir, signal_number, NULL, 0);
}

#define SLICE_DEFAULT 0u
#define SLICE_SHORT_NS 100000u

/* How long the calling thread may run at a stretch under EEVDF. A short slice gets the CPU soon after
 * a wake-up, which on a busy node costs init more than all of its work. Without the feature (before
 * Linux 6.12) the call changes nothing; so failure is of no interest. */
static inline void scheduling_slice(uint64_t nanoseconds) {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } attributes = {.size = sizeof attributes};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) < 0)
    return;
  attributes.runtime = nanoseconds;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static inline uint64_t monotonic_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static inline void close_fd(int *fd) {
  if (*fd >= 0) {
    close(*fd);
    *fd = -1;
  }
}

#endif
