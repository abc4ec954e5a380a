#include "users.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include "sys.h"

#define MAX_FILE_SIZE (4u << 20)
#define MAX_LINE_SIZE 65536u
#define MAX_FIELDS 7

struct lines {
  int fd;
  size_t total;
  size_t begin;
  size_t end;
};

static char buffer[MAX_LINE_SIZE]; /* touched in children only */

static bool lines_open(struct lines *lines, int fd) {
  *lines = (struct lines){.fd = fd};
  return fd >= 0 && lseek(fd, 0, SEEK_SET) == 0;
}

/* The next line, NUL terminated in place, or NULL at the end. A longer line than the buffer ends
 * the file. */
static char *lines_next(struct lines *lines) {
  for (;;) {
    char *start = buffer + lines->begin;
    char *newline = memchr(start, '\n', lines->end - lines->begin);
    if (newline) {
      *newline = 0;
      lines->begin = (size_t)(newline + 1 - buffer);
      return start;
    }
    memmove(buffer, start, lines->end - lines->begin);
    lines->end -= lines->begin;
    lines->begin = 0;
    size_t room = sizeof buffer - 1 - lines->end;
    ssize_t size = room && lines->total < MAX_FILE_SIZE ? read(lines->fd, buffer + lines->end, room)
                                                        : -1;
    if (size > 0) {
      lines->end += (size_t)size;
      lines->total += (size_t)size;
      continue;
    }
    if (size < 0 || lines->end == 0)
      return NULL;
    buffer[lines->end] = 0; /* a last line without newline */
    lines->end = 0;
    return buffer;
  }
}

static unsigned split(char *line, char *fields[MAX_FIELDS]) {
  unsigned count = 0;
  while (count < MAX_FIELDS) {
    fields[count++] = line;
    line = strchr(line, ':');
    if (!line)
      break;
    *line++ = 0;
  }
  return count;
}

/* Decimal below 2^32 - 1 (which means "no change" to the kernel). */
static bool parse_id(const char *text, size_t length, uint32_t *id) {
  uint64_t value = 0;
  if (length == 0 || length > 10)
    return false;
  for (size_t i = 0; i < length; i++) {
    if (text[i] < '0' || text[i] > '9')
      return false;
    value = value * 10 + (uint64_t)(text[i] - '0');
  }
  if (value >= UINT32_MAX)
    return false;
  *id = (uint32_t)value;
  return true;
}

static void copy_bounded(char *out, size_t size, const char *text) {
  size_t length = strlen(text);
  if (length >= size)
    length = 0; /* a cut path would be another path */
  memcpy(out, text, length);
  out[length] = 0;
}

/* Finds the user by name, or by uid when `name` is NULL. */
static bool find_user(int passwd, const char *name, struct identity *identity) {
  struct lines lines;
  if (!lines_open(&lines, passwd))
    return false;
  bool found = false;
  char *line;
  while (!found && (line = lines_next(&lines))) {
    char *fields[MAX_FIELDS];
    uint32_t uid, gid;
    if (split(line, fields) < 6 || !parse_id(fields[2], strlen(fields[2]), &uid) ||
        !parse_id(fields[3], strlen(fields[3]), &gid))
      continue;
    if (name ? strcmp(name, fields[0]) != 0 : uid != identity->uid)
      continue;
    identity->uid = uid;
    identity->gid = gid;
    copy_bounded(identity->name, sizeof identity->name, fields[0]);
    copy_bounded(identity->home, sizeof identity->home, fields[5]);
    found = true;
  }
  return found;
}

static bool is_member(char *members, const char *name) {
  size_t length = strlen(name);
  while (*members) {
    size_t size = strcspn(members, ",");
    if (size == length && memcmp(members, name, length) == 0)
      return true;
    members += size + (members[size] != 0);
  }
  return false;
}

static bool find_group(int group, const char *name, gid_t *gid) {
  struct lines lines;
  if (!lines_open(&lines, group))
    return false;
  bool found = false;
  char *line;
  while (!found && (line = lines_next(&lines))) {
    char *fields[MAX_FIELDS];
    found = split(line, fields) >= 3 && strcmp(fields[0], name) == 0 &&
            parse_id(fields[2], strlen(fields[2]), gid);
  }
  return found;
}

static void add_member_groups(int group, struct identity *identity) {
  struct lines lines;
  if (!*identity->name || !lines_open(&lines, group))
    return;
  char *line;
  while (identity->group_count < USERS_MAX_GROUPS && (line = lines_next(&lines))) {
    char *fields[MAX_FIELDS];
    uint32_t gid;
    if (split(line, fields) >= 4 && parse_id(fields[2], strlen(fields[2]), &gid) &&
        is_member(fields[3], identity->name))
      identity->groups[identity->group_count++] = gid;
  }
}

int users_lookup_in(const struct user_files *files, const char *user, struct identity *identity) {
  memset(identity, 0, sizeof *identity);
  const char *colon = strchr(user, ':');
  size_t length = colon ? (size_t)(colon - user) : strlen(user);
  const char *group = colon ? colon + 1 : NULL;
  char name[sizeof identity->name];
  if (length >= sizeof name || (group && (!*group || strchr(group, ':'))))
    return EINVAL;
  memcpy(name, user, length);
  name[length] = 0;

  if (length == 0 || parse_id(name, length, &identity->uid))
    find_user(files->passwd, NULL, identity);
  else if (!find_user(files->passwd, name, identity))
    return ENOENT;

  if (!group) {
    add_member_groups(files->group, identity);
    return 0;
  }
  if (!parse_id(group, strlen(group), &identity->gid) && !find_group(files->group, group, &identity->gid))
    return ENOENT;
  return 0;
}

/* A FIFO or device here could hold the exec for ever. */
static int open_regular(const char *path) {
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  struct stat info;
  if (fd >= 0 && (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode)))
    close_fd(&fd);
  return fd;
}

int users_lookup(const char *user, struct identity *identity) {
  struct user_files files = {open_regular("/etc/passwd"), open_regular("/etc/group")};
  int error = users_lookup_in(&files, user, identity);
  close_fd(&files.passwd);
  close_fd(&files.group);
  return error;
}
