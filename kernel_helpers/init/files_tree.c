/* Listing, stat and removal. Walks hold one descriptor per level and never follow a symbolic link,
 * so a tree that changes under the walk cannot lead it elsewhere. */
#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "files.h"
#include "sys.h"

#define MAX_LIST_DEPTH 64

struct output {
  size_t used;
  char bytes[65536];
};

static struct output output; /* touched in children only */
static char link_target[PATH_MAX];

int output_flush(void) {
  size_t size = output.used;
  output.used = 0;
  return write_all(STDOUT_FILENO, output.bytes, size);
}

int output_put(const void *bytes, size_t size) {
  int error = size > sizeof output.bytes - output.used ? output_flush() : 0;
  if (!error) {
    memcpy(output.bytes + output.used, bytes, size);
    output.used += size;
  }
  return error;
}

static int put_entry(const struct stat *info, const char *path, int directory, const char *name) {
  ssize_t target_size = 0;
  if (S_ISLNK(info->st_mode)) {
    target_size = readlinkat(directory, name, link_target, sizeof link_target);
    if (target_size < 0)
      target_size = 0;
  }
  size_t path_size = strlen(path);
  if (path_size > PATH_MAX)
    return ENAMETOOLONG;
  struct venus_record record = {
      .size = (uint32_t)(sizeof record + path_size + (size_t)target_size),
      .kind = VENUS_RECORD_ENTRY,
      .mode = info->st_mode,
      .uid = info->st_uid,
      .gid = info->st_gid,
      .link_count = (uint32_t)info->st_nlink,
      .size_bytes = (uint64_t)info->st_size,
      .mtime_ns = info->st_mtim.tv_sec * INT64_C(1000000000) + info->st_mtim.tv_nsec,
      .inode = info->st_ino,
      .path_size = (uint32_t)path_size,
      .target_size = (uint32_t)target_size,
  };
  int error = output_put(&record, sizeof record);
  if (!error)
    error = output_put(path, path_size);
  return error ? error : output_put(link_target, (size_t)target_size);
}

static int put_end(bool truncated) {
  struct venus_record record = {.size = sizeof record,
                                .kind = VENUS_RECORD_END,
                                .flags = truncated ? VENUS_RECORD_TRUNCATED : 0};
  int error = output_put(&record, sizeof record);
  return error ? error : output_flush();
}

int files_stat(const char *path, int follow) {
  struct stat info;
  if (fstatat(AT_FDCWD, path, &info, follow ? 0 : AT_SYMLINK_NOFOLLOW) < 0)
    return errno;
  int error = put_entry(&info, path, AT_FDCWD, path);
  return error ? error : put_end(false);
}

struct listing {
  uint64_t entries_left;
  bool truncated;
  size_t path_size;
  char path[PATH_MAX + 1];
};

static struct listing listing;

/* Takes over `fd`. What vanishes or may not be read during the walk is left out, not an error. */
static int list_directory(int fd, uint64_t depth) {
  DIR *directory = fdopendir(fd);
  if (!directory) {
    int error = errno;
    close(fd);
    return error;
  }
  int error = 0;
  size_t base = listing.path_size;
  struct dirent *entry;
  while (!error && !listing.truncated && (entry = readdir(directory))) {
    const char *name = entry->d_name;
    struct stat info;
    if (!strcmp(name, ".") || !strcmp(name, "..") ||
        fstatat(fd, name, &info, AT_SYMLINK_NOFOLLOW) < 0)
      continue;
    if (listing.entries_left == 0) {
      listing.truncated = true;
      break;
    }
    size_t name_size = strlen(name);
    if (base + name_size + 2 > sizeof listing.path) {
      listing.truncated = true;
      break;
    }
    memcpy(listing.path + base, name, name_size + 1);
    listing.path_size = base + name_size;
    listing.entries_left--;
    error = put_entry(&info, listing.path, fd, name);
    if (!error && S_ISDIR(info.st_mode) && depth > 1) {
      int child = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      if (child >= 0) {
        listing.path[listing.path_size++] = '/';
        error = list_directory(child, depth - 1);
      }
    }
    listing.path_size = base;
  }
  closedir(directory);
  return error;
}

int files_list(const char *path, uint64_t depth, uint64_t max_entries) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return errno;
  listing.entries_left = max_entries;
  int error = list_directory(fd, depth < MAX_LIST_DEPTH ? depth : MAX_LIST_DEPTH);
  return error ? error : put_end(listing.truncated);
}

static int remove_children(int fd);

static int remove_at(int directory, const char *name) {
  if (unlinkat(directory, name, 0) == 0)
    return 0;
  /* Linux says EISDIR for a directory; POSIX, and some filesystems, say EPERM. */
  if (errno != EISDIR && errno != EPERM)
    return errno;
  int error = errno;
  int fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0)
    return errno == ENOTDIR || errno == ELOOP ? error : errno;
  error = remove_children(fd);
  if (!error && unlinkat(directory, name, AT_REMOVEDIR) < 0)
    error = errno;
  return error;
}

/* Takes over `fd`. */
static int remove_children(int fd) {
  DIR *directory = fdopendir(fd);
  if (!directory) {
    int error = errno;
    close(fd);
    return error;
  }
  int error = 0;
  struct dirent *entry;
  while (!error && (entry = readdir(directory))) {
    if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
      error = remove_at(fd, entry->d_name);
    if (error == ENOENT)
      error = 0;
  }
  closedir(directory);
  return error;
}

int files_remove(const char *path, int recursive) {
  if (recursive)
    return remove_at(AT_FDCWD, path);
  if (unlink(path) == 0)
    return 0;
  if (errno != EISDIR)
    return errno;
  return rmdir(path) < 0 ? errno : 0;
}
