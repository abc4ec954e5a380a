/* Watches a directory, or all below it, and writes what happens to stdout.
 *
 * Bounded by the kernel's queue: while nobody reads, events wait there, and when it is full one
 * OVERFLOW stands for those that were lost. Ends when the directory is removed or gets another name,
 * or nobody is left to read.
 *
 * A directory that comes while another is watched is watched as soon as it is seen; what was made in it
 * before that is found by looking, so a thing may be told twice, never not at all. */
#include <dirent.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/inotify.h>

#include "files.h"
#include "sys.h"
#include "watched_directories.h"

#define EVENTS                                                                                     \
  (IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB | IN_ONLYDIR |      \
   IN_EXCL_UNLINK)
#define EVENTS_OF_ROOT (EVENTS | IN_DELETE_SELF | IN_MOVE_SELF)
/* The second half of a rename comes at once, but maybe after what was read. */
#define PAIR_TIMEOUT_MS 20

static struct {
  int fd;
  int root; /* its number */
  const char *root_path;
  bool recursive;
  bool ended;
  bool from_known; /* a first half waits for its second */
  bool from_is_directory;
  uint32_t from_cookie;
  char from[PATH_MAX + 1];
  char path[PATH_MAX + 1];
} watch; /* touched in children only */
static char events[65536] __attribute__((aligned(8)));

static int tell(enum venus_watch_kind kind, bool directory, const char *path, const char *target) {
  struct venus_watch_event event = {.kind = kind,
                                    .flags = directory ? VENUS_WATCH_DIRECTORY : 0,
                                    .path_size = (uint32_t)strlen(path),
                                    .target_size = (uint32_t)strlen(target)};
  event.size = (uint32_t)sizeof event + event.path_size + event.target_size;
  int error = output_put(&event, sizeof event);
  if (!error)
    error = output_put(path, event.path_size);
  return error ? error : output_put(target, event.target_size);
}

/* False when the path would be too long. */
static bool join(char out[PATH_MAX + 1], const char *directory, const char *name) {
  size_t size = strlen(directory), name_size = strlen(name);
  if (size + name_size + 2 > PATH_MAX)
    return false;
  memcpy(out, directory, size);
  if (size)
    out[size++] = '/';
  memcpy(out + size, name, name_size + 1);
  return true;
}

/* Not by way of a working directory, which would keep a removed one alive. */
static const char *full_path(const char *path) {
  static char full[2 * PATH_MAX + 2];
  size_t size = strlen(watch.root_path);
  if (size + strlen(path) + 2 > sizeof full)
    return NULL;
  memcpy(full, watch.root_path, size);
  full[size] = '/';
  strcpy(full + size + 1, path);
  return full;
}

static int add(const char *path, uint32_t mask, int *number) {
  const char *full = full_path(path);
  *number = full ? inotify_add_watch(watch.fd, full, mask) : -1;
  if (!full)
    return ENAMETOOLONG;
  if (*number < 0)
    return errno == ENOSPC ? EMFILE : errno; /* it means the number of watches, not the disk */
  int error = watched_enter(*number, path);
  if (error)
    inotify_rm_watch(watch.fd, *number);
  return error;
}

/* Watches the directories below `path`, which it is watched itself; `told`: what is there has come
 * since, and is told. What vanishes meanwhile is left out. */
static int add_below(const char *path, bool told) {
  const char *full = full_path(path);
  DIR *directory = full ? opendir(full) : NULL;
  if (!full)
    return ENAMETOOLONG;
  if (!directory)
    return errno == ENOMEM || errno == EMFILE ? errno : 0;
  int error = 0;
  struct dirent *entry;
  while (!error && (entry = readdir(directory))) {
    char below[PATH_MAX + 1];
    struct stat info;
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
        fstatat(dirfd(directory), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) < 0)
      continue;
    if (!join(below, path, entry->d_name)) {
      error = ENAMETOOLONG;
      break;
    }
    bool is_directory = S_ISDIR(info.st_mode);
    if (told)
      error = tell(VENUS_WATCH_CREATE, is_directory, below, "");
    if (error || !is_directory)
      continue;
    int number;
    error = add(below, EVENTS | IN_DONT_FOLLOW, &number);
    if (error == ENOENT || error == ENOTDIR || error == EACCES || error == ELOOP)
      error = 0;
    else if (!error)
      error = add_below(below, told);
  }
  closedir(directory);
  return error;
}

/* One that has come. Too many of them are no reason to stop: something is missed, and said so. */
static int directory_came(const char *path) {
  if (!watch.recursive)
    return 0;
  int number;
  int error = add(path, EVENTS | IN_DONT_FOLLOW, &number);
  if (!error)
    error = add_below(path, true);
  if (error == EMFILE || error == ENOMEM || error == ENAMETOOLONG)
    return tell(VENUS_WATCH_OVERFLOW, false, "", "");
  return error == ENOENT || error == ENOTDIR || error == EACCES || error == ELOOP ? 0 : error;
}

static void directory_went(const char *path) {
  int number;
  while (watch.recursive && (number = watched_below(path)) >= 0) {
    inotify_rm_watch(watch.fd, number);
    watched_drop(number);
  }
}

/* A first half that has no second: it was moved out of what is watched. */
static int settle_from(void) {
  if (!watch.from_known)
    return 0;
  watch.from_known = false;
  if (watch.from_is_directory)
    directory_went(watch.from);
  return tell(VENUS_WATCH_REMOVE, watch.from_is_directory, watch.from, "");
}

static int moved_here(bool is_directory) {
  int error;
  if (!watch.from_known) {
    error = tell(VENUS_WATCH_CREATE, is_directory, watch.path, "");
    return error || !is_directory ? error : directory_came(watch.path);
  }
  watch.from_known = false;
  error = tell(VENUS_WATCH_RENAME, is_directory, watch.from, watch.path);
  if (!error && is_directory && watched_move(watch.from, watch.path))
    error = tell(VENUS_WATCH_OVERFLOW, false, "", "");
  return error;
}

static int take_event(const struct inotify_event *event) {
  /* First: what was moved away is not watched any more. */
  bool is_second_half = event->mask & IN_MOVED_TO && watch.from_cookie == event->cookie;
  int error = is_second_half ? 0 : settle_from();
  if (error)
    return error;
  if (event->mask & IN_Q_OVERFLOW) {
    error = tell(VENUS_WATCH_OVERFLOW, false, "", "");
    return error || !watch.recursive ? error : add_below("", false);
  }
  const char *directory = watched_path(event->wd);
  if (!directory)
    return 0;
  if (event->wd == watch.root &&
      event->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED)) {
    if (watch.ended)
      return 0;
    watch.ended = true;
    return tell(VENUS_WATCH_REMOVE, true, "", "");
  }
  if (event->mask & IN_IGNORED) {
    watched_drop(event->wd);
    return 0;
  }
  /* The directory above says the same of it. */
  if (event->len == 0 && event->wd != watch.root)
    return 0;
  if (!join(watch.path, directory, event->len ? event->name : ""))
    return tell(VENUS_WATCH_OVERFLOW, false, "", "");
  if (event->len == 0)
    strcpy(watch.path, directory);
  bool is_directory = (event->mask & IN_ISDIR) != 0;
  if (event->mask & IN_MOVED_TO)
    return moved_here(is_directory);
  if (event->mask & IN_MOVED_FROM) {
    watch.from_known = true;
    watch.from_is_directory = is_directory;
    watch.from_cookie = event->cookie;
    strcpy(watch.from, watch.path);
    return 0;
  }
  if (event->mask & IN_CREATE) {
    error = tell(VENUS_WATCH_CREATE, is_directory, watch.path, "");
    return error || !is_directory ? error : directory_came(watch.path);
  }
  if (event->mask & IN_DELETE)
    return tell(VENUS_WATCH_REMOVE, is_directory, watch.path, "");
  return tell(event->mask & IN_MODIFY ? VENUS_WATCH_WRITE : VENUS_WATCH_CHMOD, is_directory,
              watch.path, "");
}

static int take_events(void) {
  ssize_t size = read(watch.fd, events, sizeof events);
  if (size < 0)
    return errno == EAGAIN || errno == EINTR ? 0 : errno;
  int error = 0;
  for (ssize_t at = 0; !error && at < size;) {
    const struct inotify_event *event = (const struct inotify_event *)(events + at);
    at += (ssize_t)(sizeof *event + event->len);
    error = take_event(event);
  }
  return error;
}

int files_watch(const char *path, uint32_t flags) {
  watch.recursive = (flags & VENUS_FILE_RECURSIVE) != 0;
  watch.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (watch.fd < 0)
    return errno;
  watch.root_path = path;
  int error = add("", EVENTS_OF_ROOT, &watch.root);
  if (!error && watch.recursive)
    error = add_below("", false);
  if (!error)
    error = tell(VENUS_WATCH_READY, true, "", "");
  while (!error && !(error = output_flush()) && !watch.ended) {
    struct pollfd fds[] = {{.fd = watch.fd, .events = POLLIN}, {.fd = STDOUT_FILENO}};
    int ready = poll(fds, 2, watch.from_known ? PAIR_TIMEOUT_MS : -1);
    if (fds[1].revents & (POLLERR | POLLHUP))
      return 0; /* nobody reads */
    if (ready == 0)
      error = settle_from();
    else if (fds[0].revents)
      error = take_events();
  }
  return error;
}
