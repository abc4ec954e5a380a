/* Upload of one file. The bytes go into a file without a name (O_TMPFILE) or, where the filesystem
 * has none, a temporary one; only the end frame gives it the real name. A cut upload, or a child
 * killed half way, so leaves the old file as it was, and nothing else behind. */
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "sys.h"
#include "upload.h"

#define MAX_LINKS 40 /* as the kernel has it */

static char buffer[65536]; /* touched in children only */
static char target[PATH_MAX];
static char temporary[PATH_MAX + 64];

struct upload {
  int fd;
  bool unnamed;
};

static int copy_frames(int fd) {
  struct upload_stream stream = {0};
  for (;;) {
    size_t size;
    int error = upload_some(&stream, buffer, sizeof buffer, &size);
    if (error || size == 0 || (error = write_all(fd, buffer, size)))
      return error;
  }
}

static char *append_number(char *at, uint64_t number) {
  char digits[20];
  unsigned count = 0;
  do
    digits[count++] = (char)('0' + number % 10);
  while (number /= 10);
  while (count)
    *at++ = digits[--count];
  *at = 0;
  return at;
}

/* A name beside the target that nobody else uses: pids are unique, and so is the time. */
static void name_temporary(size_t directory_size) {
  memcpy(temporary, target, directory_size);
  char *at = temporary + directory_size;
  memcpy(at, ".venus-upload-", 14);
  at = append_number(at + 14, (uint64_t)getpid());
  *at++ = '-';
  append_number(at, monotonic_us());
}

static int open_upload(struct upload *upload, size_t directory_size) {
  memcpy(temporary, target, directory_size);
  memcpy(temporary + directory_size, ".", 2);
  upload->unnamed = true;
  upload->fd = open(temporary, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (upload->fd >= 0)
    return 0;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
    return errno;
  upload->unnamed = false;
  name_temporary(directory_size);
  upload->fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  return upload->fd < 0 ? errno : 0;
}

static int give_name(struct upload *upload, size_t directory_size) {
  if (upload->unnamed) {
    char link_path[32] = "/proc/self/fd/";
    append_number(link_path + strlen(link_path), (uint64_t)upload->fd);
    if (linkat(AT_FDCWD, link_path, AT_FDCWD, target, AT_SYMLINK_FOLLOW) == 0)
      return 0;
    if (errno != EEXIST)
      return errno;
    name_temporary(directory_size);
    if (linkat(AT_FDCWD, link_path, AT_FDCWD, temporary, AT_SYMLINK_FOLLOW) < 0)
      return errno;
    upload->unnamed = false;
  }
  return rename(temporary, target) < 0 ? errno : 0;
}

/* Follows the symbolic links at the end of the path into `target`, which need not be there. */
static int follow_links(const char *path, bool *followed) {
  char link[PATH_MAX];
  if (strlen(path) >= sizeof target)
    return ENAMETOOLONG;
  strcpy(target, path);
  for (unsigned count = 0; count <= MAX_LINKS; count++) {
    ssize_t size = readlink(target, link, sizeof link);
    if (size < 0)
      return errno == EINVAL || errno == ENOENT ? 0 : errno; /* no link, or nothing */
    const char *slash = strrchr(target, '/');
    size_t directory_size = *link != '/' && slash ? (size_t)(slash + 1 - target) : 0;
    if (directory_size + (size_t)size >= sizeof target)
      return ENAMETOOLONG;
    memcpy(target + directory_size, link, (size_t)size);
    target[directory_size + (size_t)size] = 0;
    *followed = true;
  }
  return ELOOP;
}

/* Where the bytes really go: through symbolic links, as an open(2) for writing would. */
static int resolve_target(const char *path, struct stat *existing, bool *exists, bool *followed) {
  int error = follow_links(path, followed);
  if (error)
    return error;
  *exists = stat(target, existing) == 0;
  if (!*exists)
    return errno == ENOENT ? 0 : errno;
  if (S_ISDIR(existing->st_mode))
    return EISDIR;
  return S_ISREG(existing->st_mode) ? 0 : EINVAL;
}

static int prepare_parents(size_t directory_size) {
  if (directory_size < 2)
    return 0;
  char last = target[directory_size - 1];
  target[directory_size - 1] = 0;
  int error = files_make_directory(target, 0755, 1);
  target[directory_size - 1] = last;
  return error;
}

/* The owner first: changing it clears the set-id bits of the mode. */
static int set_attributes(int fd, const struct stat *existing, const struct file_owner *owner,
                          mode_t mode, bool set_mode) {
  if (existing && fchown(fd, existing->st_uid, existing->st_gid) < 0 && errno != EPERM)
    return errno;
  if (fchown(fd, owner->uid, owner->gid) < 0)
    return errno;
  if (existing && !set_mode)
    mode = existing->st_mode & 07777;
  return fchmod(fd, mode) < 0 ? errno : 0;
}

int files_write(const char *path, const char *owner_text, mode_t mode, uint32_t flags) {
  struct stat existing;
  bool exists, followed = false;
  struct file_owner owner;
  if (files_owner(owner_text, &owner))
    return EINVAL;
  int error = resolve_target(path, &existing, &exists, &followed);
  if (error)
    return error;
  const char *slash = strrchr(target, '/');
  size_t directory_size = slash ? (size_t)(slash + 1 - target) : 0;
  if (!target[directory_size])
    return *target ? EISDIR : ENOENT;
  /* Those of the name that was given, not of what a link says. */
  if (flags & VENUS_FILE_PARENTS && !followed && (error = prepare_parents(directory_size)))
    return error;
  /* Replacing a file takes rights on the directory only; an upload must respect the file's own. */
  if (exists && access(target, W_OK) < 0)
    return errno;

  struct upload upload;
  if ((error = open_upload(&upload, directory_size)))
    return error;
  error = copy_frames(upload.fd);
  if (!error)
    error = set_attributes(upload.fd, exists ? &existing : NULL, &owner, mode,
                           (flags & VENUS_FILE_SET_MODE) != 0);
  if (!error)
    error = give_name(&upload, directory_size);
  if (error && !upload.unnamed)
    unlink(temporary);
  return error;
}
