#include "files.h"

#include <limits.h>
#include <string.h>

#include "sys.h"
#include "users.h"

#define RENAME_NO_REPLACE 1u

static char buffer[65536]; /* touched in children only */
static char failed_path[PATH_MAX];

int write_all(int fd, const void *bytes, size_t size) {
  const char *at = bytes;
  while (size) {
    ssize_t written = write(fd, at, size);
    if (written < 0 && errno == EINTR)
      continue;
    if (written < 0)
      return errno;
    at += written;
    size -= (size_t)written;
  }
  return 0;
}

/* Regular files only: a FIFO or a device would block, or never end. */
static int read_file(const char *path, uint64_t offset, uint64_t length) {
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0)
    return errno;
  struct stat info;
  if (fstat(fd, &info) < 0)
    return errno;
  if (S_ISDIR(info.st_mode))
    return EISDIR;
  if (!S_ISREG(info.st_mode) || offset > INT64_MAX)
    return EINVAL;
  if (offset && lseek(fd, (off_t)offset, SEEK_SET) < 0)
    return errno;
  while (length) {
    size_t want = length < sizeof buffer ? (size_t)length : sizeof buffer;
    ssize_t size = read(fd, buffer, want);
    if (size < 0 && errno == EINTR)
      continue;
    if (size < 0)
      return errno;
    if (size == 0)
      return 0;
    int error = write_all(STDOUT_FILENO, buffer, (size_t)size);
    if (error)
      return error;
    length -= (uint64_t)size;
  }
  return 0;
}

static int make_one(const char *path, mode_t mode, int existing_is_fine) {
  struct stat info;
  if (mkdir(path, mode) == 0) /* which knows no set-id bits */
    return mode & (S_ISUID | S_ISGID) && chmod(path, mode) < 0 ? errno : 0;
  int error = errno;
  if (error == EEXIST && existing_is_fine && stat(path, &info) == 0)
    return S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
  return error;
}

int files_make_directory(const char *path, mode_t mode, int parents) {
  if (!parents)
    return make_one(path, mode, 0);
  size_t length = strlen(path);
  if (length >= sizeof buffer)
    return ENAMETOOLONG;
  memcpy(buffer, path, length + 1);
  for (size_t i = 1; i < length; i++) {
    if (buffer[i] != '/')
      continue;
    buffer[i] = 0;
    int error = make_one(buffer, 0755, 1);
    buffer[i] = '/';
    if (error)
      return error;
  }
  return make_one(path, mode, 1);
}

int files_owner(const char *text, struct file_owner *owner) {
  *owner = (struct file_owner){.uid = (uid_t)-1, .gid = (gid_t)-1};
  if (!*text)
    return 0;
  static struct identity identity;
  static char group_of_root[sizeof identity.name + 2] = "0";
  if (*text == ':') {
    if (strlen(text) >= sizeof group_of_root - 1)
      return EINVAL;
    strcpy(group_of_root + 1, text);
  }
  int error = users_lookup(*text == ':' ? group_of_root : text, &identity);
  if (error)
    return error;
  if (*text != ':')
    owner->uid = identity.uid;
  owner->gid = identity.gid;
  return 0;
}

static int change_owner(const char *path, const char *text) {
  struct file_owner owner;
  int error = files_owner(text, &owner);
  if (error)
    return error == ENOENT ? EINVAL : error; /* ENOENT is what a missing file says */
  return chown(path, owner.uid, owner.gid) < 0 ? errno : 0;
}

static int result(long returned) { return returned < 0 ? errno : 0; }

static int run(const struct venus_exec *request, const char *path, const char *second) {
  uint64_t number0 = request->number[0];
  uint64_t number1 = request->number[1];
  switch ((enum venus_exec_kind)request->kind) {
  case VENUS_KIND_READ:
    return read_file(path, number0, number1);
  case VENUS_KIND_WRITE:
    return files_write(path, second, number0 & 07777, (uint32_t)number1);
  case VENUS_KIND_LIST:
    return files_list(path, number0, number1);
  case VENUS_KIND_STAT:
    return files_stat(path, (number1 & VENUS_FILE_FOLLOW) != 0);
  case VENUS_KIND_MKDIR:
    return files_make_directory(path, number0 & 07777, (number1 & VENUS_FILE_PARENTS) != 0);
  case VENUS_KIND_REMOVE:
    return files_remove(path, (number1 & VENUS_FILE_RECURSIVE) != 0);
  case VENUS_KIND_RENAME:
    return result(syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, second,
                          number1 & VENUS_FILE_NO_REPLACE ? RENAME_NO_REPLACE : 0));
  case VENUS_KIND_CHMOD:
    return result(chmod(path, number0 & 07777));
  case VENUS_KIND_CHOWN:
    return change_owner(path, second);
  case VENUS_KIND_TAR:
    return files_tar(path);
  case VENUS_KIND_UNTAR:
    return files_untar(path, (uint32_t)number1);
  case VENUS_KIND_WATCH:
    return files_watch(path, (uint32_t)number1);
  case VENUS_KIND_PROGRAM:
  case VENUS_KIND_RESTORE:
  case VENUS_KIND_RESTORED:
    break;
  }
  return ENOSYS;
}

void files_failed_at(const char *path) {
  size_t size = strlen(path);
  size = size < sizeof failed_path ? size : sizeof failed_path;
  memmove(failed_path, path, size);
  if (size < sizeof failed_path)
    failed_path[size] = 0;
}

int files_run(const struct venus_exec *request, const char *path, const char *second) {
  umask(0); /* the modes of these requests are exact */
  int error = run(request, path, second);
  if (!error)
    return 0;
  struct venus_file_error record = {.magic = VENUS_FILE_ERROR_MAGIC, .error = error};
  write_all(STDERR_FILENO, &record, sizeof record);
  write_all(STDERR_FILENO, failed_path, strnlen(failed_path, sizeof failed_path));
  return 1;
}
