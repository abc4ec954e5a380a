/* Executes the setup plan. Each operation is a few system calls and returns an errno, so that the
 * first failure is reported with its index; nothing here decides anything, the plan does.
 *
 * Paths in the image are resolved after PIVOT_ROOT, when "/" is the sandbox's root: a symbolic link
 * in an image can then lead anywhere in the sandbox but not out of it.
 */
#include "setup.h"

#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sched.h>

#include "sys.h"

#define FORBIDDEN_MOUNT_FLAGS (MS_BIND | MS_MOVE)

struct setup {
  int devpts_fd;
  int slots[VENUS_MAX_PLAN_SLOTS];
  int old_root_fd;
  int empty_directory_fd; /* detached read-only tmpfs, cloned for every masked directory */
};

static int result(long returned) { return returned < 0 ? errno : 0; }

static int clone_mount(struct setup *setup, const struct plan_op *op) {
  if (op->slot >= VENUS_MAX_PLAN_SLOTS || setup->slots[op->slot] >= 0)
    return EINVAL;
  int fd = sys_open_tree(AT_FDCWD, op->string[0], OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
  if (fd < 0)
    return errno;
  setup->slots[op->slot] = fd;
  return 0;
}

static int attach_mount(struct setup *setup, const struct plan_op *op) {
  if (op->slot >= VENUS_MAX_PLAN_SLOTS || setup->slots[op->slot] < 0)
    return EINVAL;
  int fd = setup->slots[op->slot];
  if (op->number && sys_mount_setattr(fd, "", AT_EMPTY_PATH, op->number) < 0)
    return errno;
  int error = result(
      sys_move_mount(fd, "", AT_FDCWD, op->string[0], VENUS_MOVE_MOUNT_F_EMPTY_PATH));
  close_fd(&setup->slots[op->slot]);
  return error;
}

static int pivot(struct setup *setup, const struct plan_op *op) {
  if (setup->old_root_fd >= 0)
    return EINVAL;
  setup->old_root_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (setup->old_root_fd < 0)
    return errno;
  /* By descriptor the host directories above the mount point may be closed to the sandbox's root. */
  if ((*op->string[0] ? chdir(op->string[0]) : fchdir(VENUS_FD_ROOT)) < 0)
    return errno;
  /* put_old = new_root stacks the old root on top of the new one (pivot_root(2)): no directory in
   * the image is needed for it, and path lookups, which start below that stack, do not see it. */
  if (sys_pivot_root(".", ".") < 0)
    return errno;
  return result(chdir("/"));
}

static int detach_old_root(struct setup *setup) {
  if (setup->old_root_fd < 0)
    return EINVAL;
  if (fchdir(setup->old_root_fd) < 0 || umount2(".", MNT_DETACH) < 0)
    return errno;
  close_fd(&setup->old_root_fd);
  return result(chdir("/"));
}

static int mount_filesystem(struct setup *setup, const struct plan_op *op) {
  if (op->number & FORBIDDEN_MOUNT_FLAGS)
    return EINVAL;
  if (mount(op->string[0], op->string[1], op->string[0], (unsigned long)op->number,
            op->string[2]) < 0)
    return errno;
  if (strcmp(op->string[0], "devpts") != 0 || setup->devpts_fd >= 0)
    return 0;
  /* Now, while nothing runs that could put something else in its place. */
  setup->devpts_fd = open(op->string[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
  return result(setup->devpts_fd);
}

static int make_directory(const struct plan_op *op) {
  struct stat info;
  if (mkdir(op->string[0], 0700) == 0)
    return result(chmod(op->string[0], (mode_t)op->number));
  if (errno != EEXIST)
    return errno;
  if (stat(op->string[0], &info) < 0)
    return errno;
  return S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
}

static int write_file(const struct plan_op *op) {
  const char *path = op->string[0];
  int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
  int fd = open(path, flags, (mode_t)op->number);
  if (fd < 0 && errno == ELOOP && unlink(path) == 0)
    fd = open(path, flags | O_EXCL, (mode_t)op->number);
  if (fd < 0)
    return errno;
  int error = 0;
  /* One write: a sysctl takes its value whole or not at all. */
  if (op->data_size) {
    ssize_t written = write(fd, op->data, op->data_size);
    error = written < 0 ? errno : (size_t)written != op->data_size ? EIO : 0;
  }
  close(fd);
  return error;
}

static bool may_be_missing(const struct plan_op *op, int error) {
  return (op->flags & VENUS_OP_FLAG_OPTIONAL) && (error == ENOENT || error == ENOTDIR);
}

static int bind_read_only(const struct plan_op *op) {
  const char *path = op->string[0];
  int fd = sys_open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | VENUS_AT_RECURSIVE);
  if (fd < 0)
    return may_be_missing(op, errno) ? 0 : errno;
  int error = result(sys_mount_setattr(fd, "", AT_EMPTY_PATH | VENUS_AT_RECURSIVE,
                                       VENUS_MOUNT_ATTR_RDONLY));
  if (!error)
    error = result(sys_move_mount(fd, "", AT_FDCWD, path, VENUS_MOVE_MOUNT_F_EMPTY_PATH));
  close(fd);
  return error;
}

/* A first masked directory gets a tmpfs of its own, later ones clones of it: one superblock in all.
 */
static int mask_directory(struct setup *setup, const char *path) {
  if (setup->empty_directory_fd >= 0) {
    int fd = sys_open_tree(setup->empty_directory_fd, "",
                           AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (fd < 0)
      return errno;
    int error = result(sys_move_mount(fd, "", AT_FDCWD, path, VENUS_MOVE_MOUNT_F_EMPTY_PATH));
    close(fd);
    return error;
  }
  if (mount("tmpfs", path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
            "mode=0555,size=4k,nr_inodes=2") < 0)
    return errno;
  setup->empty_directory_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  return result(setup->empty_directory_fd);
}

static int mask_path(struct setup *setup, const struct plan_op *op) {
  const char *path = op->string[0];
  struct stat info;
  if (stat(path, &info) < 0)
    return may_be_missing(op, errno) ? 0 : errno;
  if (S_ISDIR(info.st_mode))
    return mask_directory(setup, path);
  int fd = sys_open_tree(AT_FDCWD, "/dev/null", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
  if (fd < 0)
    return errno;
  int error = result(sys_move_mount(fd, "", AT_FDCWD, path, VENUS_MOVE_MOUNT_F_EMPTY_PATH));
  close(fd);
  return error;
}

static int loopback_up(void) {
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return errno;
  struct ifreq request = {.ifr_name = "lo"};
  int error = result(ioctl(fd, SIOCGIFFLAGS, &request));
  if (!error) {
    request.ifr_flags |= IFF_UP;
    error = result(ioctl(fd, SIOCSIFFLAGS, &request));
  }
  close(fd);
  return error;
}

static int set_rlimit(const struct plan_op *op) {
  struct rlimit limit = {.rlim_cur = op->number, .rlim_max = op->number2};
  return result(setrlimit((int)op->slot, &limit));
}

static int run_op(struct setup *setup, const struct plan_op *op) {
  switch ((enum venus_op_kind)op->kind) {
  case VENUS_OP_UNSHARE_CGROUP:
    return result(unshare(CLONE_NEWCGROUP));
  case VENUS_OP_MOUNTS_PRIVATE:
    return result(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
  case VENUS_OP_CLONE_MOUNT:
    return clone_mount(setup, op);
  case VENUS_OP_PIVOT_ROOT:
    return pivot(setup, op);
  case VENUS_OP_DETACH_OLD_ROOT:
    return detach_old_root(setup);
  case VENUS_OP_MOUNT:
    return mount_filesystem(setup, op);
  case VENUS_OP_ATTACH_MOUNT:
    return attach_mount(setup, op);
  case VENUS_OP_MAKE_DIRECTORY:
    return make_directory(op);
  case VENUS_OP_SYMLINK:
    return result(symlink(op->string[0], op->string[1]));
  case VENUS_OP_WRITE_FILE:
    return write_file(op);
  case VENUS_OP_BIND_READ_ONLY:
    return bind_read_only(op);
  case VENUS_OP_MASK_PATH:
    return mask_path(setup, op);
  case VENUS_OP_SET_HOSTNAME:
    return result(sethostname(op->string[0], strlen(op->string[0])));
  case VENUS_OP_LOOPBACK_UP:
    return loopback_up();
  case VENUS_OP_SET_RLIMIT:
    return set_rlimit(op);
  case VENUS_OP_SET_MODE:
    return result(chmod(op->string[0], (mode_t)op->number));
  }
  return ENOSYS;
}

static void run_plan(const uint8_t *bytes, size_t size, struct policy *policy,
                     struct venus_status *status) {
  struct setup setup = {.old_root_fd = -1, .empty_directory_fd = -1, .devpts_fd = -1};
  for (unsigned i = 0; i < VENUS_MAX_PLAN_SLOTS; i++)
    setup.slots[i] = -1;

  struct plan_reader reader;
  enum plan_next next = PLAN_INVALID;
  if (plan_open(&reader, bytes, size, policy)) {
    struct plan_op op;
    while ((next = plan_next_op(&reader, &op)) == PLAN_OP) {
      int error = run_op(&setup, &op);
      if (error) {
        status->kind = VENUS_STATUS_OP_FAILED;
        status->op_index = reader.next_index - 1;
        status->error = error;
        return; /* the process ends now; the kernel takes the mounts and descriptors */
      }
    }
  }
  status->op_index = reader.next_index;
  status->kind = next == PLAN_END ? VENUS_STATUS_READY : VENUS_STATUS_PLAN_INVALID;
  status->error = next == PLAN_END ? 0 : EINVAL;
  for (unsigned i = 0; i < VENUS_MAX_PLAN_SLOTS; i++)
    close_fd(&setup.slots[i]);
  close_fd(&setup.old_root_fd);
  close_fd(&setup.empty_directory_fd);
  policy->devpts_fd = setup.devpts_fd;
}

void setup_run(int plan_fd, struct policy *policy, struct venus_status *status) {
  *status = (struct venus_status){.magic = VENUS_STATUS_MAGIC,
                                  .kind = VENUS_STATUS_PLAN_INVALID,
                                  .error = EINVAL};
  struct stat info;
  if (fstat(plan_fd, &info) < 0 || info.st_size <= 0 || info.st_size > VENUS_MAX_PLAN_SIZE)
    return;
  size_t size = (size_t)info.st_size;
  void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, plan_fd, 0);
  if (bytes == MAP_FAILED) {
    status->error = errno;
    return;
  }
  run_plan(bytes, size, policy, status);
  munmap(bytes, size);
}
