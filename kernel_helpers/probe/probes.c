#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#endif
#define SEALS 0xf /* SEAL, SHRINK, GROW, WRITE */
#define FSCONFIG_STRING 1
#define FSCONFIG_FD 5
#define FSCONFIG_CREATE 6
#define OPEN_TREE_CLONE_FLAG 1
#define MOUNT_ATTR_IDMAP_FLAG 0x100000
#define USERFAULTFD_NEW _IO(0xAA, 0x00)
#define WAIT_KILLABLE (1ul << 5)
#define LANDLOCK_VERSION 1u
#define PAGEMAP_SCAN_IOCTL _IOWR('f', 16, struct pm_scan)

struct pm_scan {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};

struct mount_attributes {
  uint64_t set, clear, propagation, userns_fd;
};

static int result(long returned) { return returned < 0 ? errno : 0; }

static int write_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0)
    return errno;
  int error = result(write(fd, text, strlen(text)));
  close(fd);
  return error;
}

static int namespaces(void) {
  return result(unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC |
                        CLONE_NEWUTS | CLONE_NEWCGROUP));
}

static int pidfd(void) {
  int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
  return fd < 0 ? errno : result(syscall(SYS_pidfd_getfd, fd, 0, 0));
}

static int close_range_call(void) { return result(syscall(SYS_close_range, 900, 901, 0)); }

/* The same PID in a new namespace, which restoring a process tree needs. */
static int clone3_set_tid(void) {
  pid_t wanted = 300;
  struct clone_args arguments = {.flags = CLONE_NEWPID | CLONE_NEWUSER,
                                 .exit_signal = SIGCHLD};
  long pid = syscall(SYS_clone3, &arguments, sizeof arguments);
  if (pid < 0)
    return errno;
  if (pid == 0) {
    struct clone_args child = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&wanted,
                               .set_tid_size = 1};
    long inner = syscall(SYS_clone3, &child, sizeof child);
    if (inner == 0)
      _exit(getpid() == wanted ? 0 : EINVAL);
    int status = 0;
    _exit(inner < 0 ? errno : (waitpid((pid_t)inner, &status, 0), WEXITSTATUS(status)));
  }
  int status;
  waitpid((pid_t)pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : EFAULT;
}

/* A tmpfs of our own in a private mount namespace, as a place to try mounts in. */
static int enter_scratch(void) {
  if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
      mount("tmpfs", "/tmp", "tmpfs", 0, NULL) < 0 || chdir("/tmp") < 0)
    return errno;
  return mkdir("lower", 0755) < 0 || mkdir("upper", 0755) < 0 || mkdir("work", 0755) < 0 ? errno : 0;
}

static int set_layer(int context, const char *key, const char *path) {
  int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  return fd < 0 ? errno : result(syscall(SYS_fsconfig, context, FSCONFIG_FD, key, NULL, fd));
}

static int overlay_layers_by_fd(void) {
  int error = enter_scratch();
  if (error)
    return error;
  int context = (int)syscall(SYS_fsopen, "overlay", 0);
  if (context < 0)
    return errno;
  if ((error = set_layer(context, "lowerdir+", "lower")) ||
      (error = set_layer(context, "upperdir", "upper")) ||
      (error = set_layer(context, "workdir", "work")))
    return error;
  if (syscall(SYS_fsconfig, context, FSCONFIG_CREATE, NULL, NULL, 0) < 0)
    return errno;
  return result(syscall(SYS_fsmount, context, 0, 0));
}

/* A user namespace with an id map, held by a child that waits; its descriptor or -1. */
static int mapped_user_namespace(void) {
  int ready[2];
  char path[64], byte;
  if (pipe(ready) < 0)
    return -1;
  pid_t pid = fork();
  if (pid == 0) {
    if (unshare(CLONE_NEWUSER) < 0 || write(ready[1], "r", 1) < 0)
      _exit(1);
    pause();
  }
  close(ready[1]);
  if (pid < 0 || read(ready[0], &byte, 1) != 1)
    return -1;
  static const char *const files[] = {"uid_map", "gid_map"};
  char number[16] = {0};
  int at = 15;
  for (pid_t left = pid; left; left /= 10)
    number[--at] = (char)('0' + left % 10);
  int failed = 0;
  for (int i = 0; i < 2; i++) {
    strcat(strcat(strcat(strcpy(path, "/proc/"), number + at), "/"), files[i]);
    failed |= write_text(path, "0 100000 65536");
  }
  strcat(strcat(strcpy(path, "/proc/"), number + at), "/ns/user");
  int fd = failed ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  return fd;
}

/* On the filesystem of /var, where the state directory is by default. */
static int idmapped_mounts(void) {
  int userns = mapped_user_namespace();
  if (userns < 0)
    return EPERM;
  int tree = (int)syscall(SYS_open_tree, AT_FDCWD, "/var", OPEN_TREE_CLONE_FLAG);
  if (tree < 0)
    return errno;
  struct mount_attributes attributes = {.set = MOUNT_ATTR_IDMAP_FLAG,
                                        .userns_fd = (uint64_t)userns};
  return result(
      syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes));
}

static int cgroup_kill(void) {
  static const char *const groups[] = {"/sys/fs/cgroup/unified/venus-probe",
                                       "/sys/fs/cgroup/venus-probe"};
  int error = ENOENT;
  for (int i = 0; i < 2 && error; i++) {
    char path[64];
    if (mkdir(groups[i], 0755) < 0 && errno != EEXIST) {
      error = errno;
      continue;
    }
    strcat(strcpy(path, groups[i]), "/cgroup.kill");
    error = result(access(path, W_OK));
    rmdir(groups[i]);
  }
  return error;
}

static int sealed_memfd(void) {
  int fd = (int)syscall(SYS_memfd_create, "probe", 2u /* MFD_ALLOW_SEALING */);
  if (fd < 0 || ftruncate(fd, 4096) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0)
    return errno;
  void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  if (page == MAP_FAILED)
    return errno;
  *(volatile char *)page = 1;
  return 0;
}

static int madvise_collapse(void) {
  const size_t huge = 2u << 20;
  char *area = mmap(NULL, 2 * huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (area == MAP_FAILED)
    return errno;
  char *aligned = (char *)(((uintptr_t)area + huge - 1) & ~(uintptr_t)(huge - 1));
  memset(aligned, 1, huge);
  return result(madvise(aligned, huge, MADV_COLLAPSE));
}

static int userfaultfd_device(void) {
  int fd = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
  return fd < 0 ? errno : result(ioctl(fd, USERFAULTFD_NEW, O_CLOEXEC));
}

static int pagemap_scan(void) {
  char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (page == MAP_FAILED || fd < 0)
    return errno;
  *page = 1;
  uint64_t regions[3];
  struct pm_scan scan = {.size = sizeof scan,
                         .start = (uintptr_t)page,
                         .end = (uintptr_t)page + 4096,
                         .vec = (uintptr_t)regions,
                         .vec_len = 1,
                         .category_anyof_mask = 1u << 3 /* present */,
                         .return_mask = 1u << 3};
  return result(ioctl(fd, PAGEMAP_SCAN_IOCTL, &scan));
}

/* With a bad filter pointer the flags are checked first: EFAULT means that they are known. */
static int seccomp_flags(unsigned long flags) {
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, NULL);
  return errno == EFAULT ? 0 : errno;
}

static int seccomp_filter(void) { return seccomp_flags(0); }

static int seccomp_wait_killable(void) {
  return seccomp_flags(SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE);
}

static int landlock(void) {
  return result(syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_VERSION));
}

static int kvm(void) { return result(open("/dev/kvm", O_RDWR | O_CLOEXEC)); }

const struct probe probes[] = {
    {"namespaces", namespaces},
    {"pidfd", pidfd},
    {"close_range", close_range_call},
    {"clone3_set_tid", clone3_set_tid},
    {"overlay_layers_by_fd", overlay_layers_by_fd},
    {"idmapped_mounts", idmapped_mounts},
    {"cgroup_kill", cgroup_kill},
    {"seccomp_filter", seccomp_filter},
    {"seccomp_wait_killable", seccomp_wait_killable},
    {"landlock", landlock},
    {"sealed_memfd", sealed_memfd},
    {"madvise_collapse", madvise_collapse},
    {"userfaultfd_device", userfaultfd_device},
    {"pagemap_scan", pagemap_scan},
    {"kvm", kvm},
};
const unsigned probe_count = sizeof probes / sizeof *probes;
