/* A directory as a tar archive on stdout. The walk holds one descriptor per level and follows no
 * symbolic link. What vanishes meanwhile is left out; what may not be read is an error, because an
 * archive that silently lacks something is worse than none. */
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "files.h"
#include "sys.h"
#include "tar_format.h"

#define MAX_DEPTH 256
#define MAX_SEGMENTS 65536u
#define PAX_SIZE (256u << 10)
#define MAX_XATTR_LIST 65536u
#define MAX_XATTR_VALUE 65536u

struct segment {
  uint64_t offset;
  uint64_t size;
};

/* Where a file with several names was written first. */
struct linked {
  dev_t device;
  ino_t inode;
  char *path;
};

static struct {
  dev_t device; /* of the directory: other filesystems below it stay closed */
  size_t path_size;
  char path[PATH_MAX + 1]; /* below the directory; "" itself */
  size_t linked_count;
  size_t linked_room; /* a power of two, or 0 */
  struct linked *linked;
  size_t segment_count;
  size_t segment_room;
  struct segment *segments;
  size_t pax_size;
} walk; /* touched in children only, as are these */
static char pax[PAX_SIZE];
static char content[65536];
static char link_target[PATH_MAX + 1];
static char attribute_names[MAX_XATTR_LIST];
static char attribute[MAX_XATTR_VALUE];

static int put_padding(uint64_t size) {
  static const char zeros[TAR_BLOCK];
  size_t rest = (size_t)(size % TAR_BLOCK);
  return rest ? output_put(zeros, TAR_BLOCK - rest) : 0;
}

static int add_record(const char *key, const void *value, size_t size) {
  return pax_append(pax, sizeof pax, &walk.pax_size, key, value, size) ? 0 : E2BIG;
}

static int add_number(const char *key, uint64_t number) {
  char digits[21];
  return add_record(key, digits, format_number(digits, number));
}

static int add_time(const struct timespec *time) {
  char text[64];
  char fraction[21];
  /* Before 1970 a timespec counts its fraction upwards; whole seconds are enough there. */
  bool before = time->tv_sec < 0;
  size_t size = before ? 1 : 0;
  text[0] = '-';
  size += format_number(text + size, before ? -(uint64_t)time->tv_sec : (uint64_t)time->tv_sec);
  if (!before && time->tv_nsec) {
    text[size] = '.';
    size_t digits = format_number(fraction, 1000000000u + (uint64_t)time->tv_nsec);
    memcpy(text + size + 1, fraction + 1, digits - 1);
    size += digits;
  }
  return add_record("mtime", text, size);
}

/* Those of the user's namespace; the others mean something to this system only. */
static int add_attributes(int fd) {
  ssize_t names_size = flistxattr(fd, attribute_names, sizeof attribute_names);
  if (names_size < 0)
    return errno == ENOTSUP || errno == ENOSYS ? 0 : errno;
  for (char *name = attribute_names; name < attribute_names + names_size;
       name += strlen(name) + 1) {
    static char key[13 + 256] = "SCHILY.xattr.";
    if (strncmp(name, "user.", 5) || strlen(name) > 255)
      continue;
    ssize_t size = fgetxattr(fd, name, attribute, sizeof attribute);
    if (size < 0)
      continue; /* removed meanwhile */
    strcpy(key + 13, name);
    int error = memchr(name, '=', strlen(name)) ? 0 : add_record(key, attribute, (size_t)size);
    if (error)
      return error;
  }
  return 0;
}

/* The header of a member, before it pax records for what it cannot say. `size` of the data that
 * follows. */
static int put_header(char type, const char *path, const char *link, const struct stat *info,
                      uint64_t size) {
  struct tar_header header = {.type = type,
                              .mode = info->st_mode & 07777,
                              .uid = info->st_uid,
                              .gid = info->st_gid,
                              .size = size,
                              .mtime_s = info->st_mtim.tv_sec};
  uint8_t block[TAR_BLOCK];
  int error = 0;
  size_t path_size = strlen(path), link_size = link ? strlen(link) : 0;
  if (path_size > 100)
    error = add_record("path", path, path_size);
  if (!error && link_size > 100)
    error = add_record("linkpath", link, link_size);
  if (!error && size > TAR_MAX_SIZE)
    error = add_number("size", size);
  if (!error && header.uid > TAR_MAX_ID)
    error = add_number("uid", header.uid);
  if (!error && header.gid > TAR_MAX_ID)
    error = add_number("gid", header.gid);
  if (!error && (info->st_mtim.tv_nsec || header.mtime_s < 0))
    error = add_time(&info->st_mtim);
  if (error)
    return error;
  if (walk.pax_size) {
    struct tar_header records = {.type = TAR_PAX, .mode = 0644, .size = walk.pax_size};
    strcpy(records.name, "PaxHeaders/member");
    tar_encode(&records, block);
    if ((error = output_put(block, sizeof block)) || (error = output_put(pax, walk.pax_size)) ||
        (error = put_padding(walk.pax_size)))
      return error;
    walk.pax_size = 0;
  }
  memcpy(header.name, path, path_size < 100 ? path_size : 100);
  if (link)
    memcpy(header.link, link, link_size < 100 ? link_size : 100);
  tar_encode(&header, block);
  return output_put(block, sizeof block);
}

static int add_segment(uint64_t offset, uint64_t size) {
  if (walk.segment_count == walk.segment_room) {
    size_t room = walk.segment_room ? 2 * walk.segment_room : 64;
    struct segment *grown = realloc(walk.segments, room * sizeof *grown);
    if (!grown)
      return ENOMEM;
    walk.segments = grown;
    walk.segment_room = room;
  }
  walk.segments[walk.segment_count++] = (struct segment){offset, size};
  return 0;
}

/* The data of a file of `size` bytes, between its holes. A file without holes is one segment. */
static int find_segments(int fd, uint64_t size) {
  walk.segment_count = 0;
  uint64_t at = 0;
  while (at < size && walk.segment_count < MAX_SEGMENTS) {
    off_t data = lseek(fd, (off_t)at, SEEK_DATA);
    if (data < 0 && errno == ENXIO)
      return 0; /* nothing but a hole to the end */
    off_t hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
    if (hole < 0)
      break; /* this filesystem does not tell */
    if ((uint64_t)data >= size)
      return 0;
    uint64_t end = (uint64_t)hole < size ? (uint64_t)hole : size;
    int error = add_segment((uint64_t)data, end - (uint64_t)data);
    if (error)
      return error;
    at = end;
  }
  return at < size ? add_segment(at, size - at) : 0;
}

static int put_content(int fd, uint64_t offset, uint64_t size) {
  while (size) {
    size_t want = size < sizeof content ? (size_t)size : sizeof content;
    ssize_t got = pread(fd, content, want, (off_t)offset);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return errno;
    if (got == 0) { /* it became shorter: its length is promised */
      memset(content, 0, want);
      got = (ssize_t)want;
    }
    int error = output_put(content, (size_t)got);
    if (error)
      return error;
    offset += (uint64_t)got;
    size -= (uint64_t)got;
  }
  return 0;
}

/* GNU's sparse format 1.0: a map of decimal numbers before the data. In two passes: its size counts. */
static int put_map(bool count_only, uint64_t *size) {
  char line[22];
  *size = 0;
  for (size_t i = 0; i <= 2 * walk.segment_count; i++) {
    const struct segment *segment = i ? &walk.segments[(i - 1) / 2] : NULL;
    uint64_t number = !segment ? walk.segment_count : i % 2 ? segment->offset : segment->size;
    size_t length = format_number(line, number);
    line[length++] = '\n';
    *size += length;
    int error = count_only ? 0 : output_put(line, length);
    if (error)
      return error;
  }
  return count_only ? 0 : put_padding(*size);
}

static int put_sparse(int fd, const struct stat *info) {
  uint64_t map_size, data_size = 0;
  put_map(true, &map_size);
  for (size_t i = 0; i < walk.segment_count; i++)
    data_size += walk.segments[i].size;
  uint64_t size = (map_size + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK + data_size;
  int error;
  if ((error = add_record("GNU.sparse.major", "1", 1)) ||
      (error = add_record("GNU.sparse.minor", "0", 1)) ||
      (error = add_record("GNU.sparse.name", walk.path, walk.path_size)) ||
      (error = add_number("GNU.sparse.realsize", (uint64_t)info->st_size)) ||
      (error = put_header(TAR_FILE, walk.path, NULL, info, size)) ||
      (error = put_map(false, &map_size)))
    return error;
  for (size_t i = 0; i < walk.segment_count && !error; i++)
    error = put_content(fd, walk.segments[i].offset, walk.segments[i].size);
  return error ? error : put_padding(size);
}

static int put_file(int fd, const struct stat *info) {
  uint64_t size = (uint64_t)info->st_size;
  int error = add_attributes(fd);
  if (error)
    return error;
  if ((uint64_t)info->st_blocks * 512 < size) {
    if ((error = find_segments(fd, size)))
      return error;
    if (walk.segment_count != 1 || walk.segments[0].size != size)
      return put_sparse(fd, info);
  }
  if ((error = put_header(TAR_FILE, walk.path, NULL, info, size)) ||
      (error = put_content(fd, 0, size)))
    return error;
  return put_padding(size);
}

static struct linked *linked_slot(struct linked *table, size_t room, dev_t device, ino_t inode) {
  size_t at = ((size_t)inode * 0x9e3779b97f4a7c15u ^ (size_t)device) & (room - 1);
  while (table[at].path && (table[at].device != device || table[at].inode != inode))
    at = (at + 1) & (room - 1);
  return &table[at];
}

/* The name under which the file was written before, NULL if this is the first. */
static int remember_link(const struct stat *info, const char **earlier) {
  *earlier = NULL;
  if (4 * walk.linked_count >= 3 * walk.linked_room) {
    size_t room = walk.linked_room ? 2 * walk.linked_room : 256;
    struct linked *grown = calloc(room, sizeof *grown);
    if (!grown)
      return ENOMEM;
    for (size_t i = 0; i < walk.linked_room; i++)
      if (walk.linked[i].path)
        *linked_slot(grown, room, walk.linked[i].device, walk.linked[i].inode) = walk.linked[i];
    free(walk.linked);
    walk.linked = grown;
    walk.linked_room = room;
  }
  struct linked *slot = linked_slot(walk.linked, walk.linked_room, info->st_dev, info->st_ino);
  if (slot->path) {
    *earlier = slot->path;
    return 0;
  }
  char *path = strdup(walk.path);
  if (!path)
    return ENOMEM;
  *slot = (struct linked){info->st_dev, info->st_ino, path};
  walk.linked_count++;
  return 0;
}

static int put_children(int fd, unsigned depth);

static int put_directory(int parent, const char *name, unsigned depth) {
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat info;
  if (fd < 0)
    return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : errno;
  int error = fstat(fd, &info) < 0 ? errno : add_attributes(fd);
  walk.path[walk.path_size++] = '/';
  walk.path[walk.path_size] = 0;
  if (!error)
    error = put_header(TAR_DIRECTORY, walk.path, NULL, &info, 0);
  if (!error && info.st_dev == walk.device)
    return depth < MAX_DEPTH ? put_children(fd, depth + 1) : ENAMETOOLONG;
  close(fd);
  return error;
}

static int put_regular(int parent, const char *name, const struct stat *found) {
  const char *earlier;
  int error = found->st_nlink > 1 ? remember_link(found, &earlier) : (earlier = NULL, 0);
  if (error)
    return error;
  if (earlier)
    return put_header(TAR_LINK, walk.path, earlier, found, 0);
  int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  struct stat info;
  if (fd < 0)
    return errno == ENOENT || errno == ELOOP ? 0 : errno;
  if (fstat(fd, &info) < 0)
    error = errno;
  else if (S_ISREG(info.st_mode)) /* else another one took its name */
    error = put_file(fd, &info);
  close(fd);
  return error;
}

static int put_member(int parent, const char *name, unsigned depth) {
  struct stat info;
  if (fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) < 0)
    return errno == ENOENT ? 0 : errno;
  ssize_t size;
  switch (info.st_mode & S_IFMT) {
  case S_IFDIR:
    return put_directory(parent, name, depth);
  case S_IFREG:
    return put_regular(parent, name, &info);
  case S_IFLNK:
    size = readlinkat(parent, name, link_target, sizeof link_target - 1);
    if (size < 0)
      return errno == ENOENT || errno == EINVAL ? 0 : errno;
    link_target[size] = 0;
    return put_header(TAR_SYMLINK, walk.path, link_target, &info, 0);
  case S_IFIFO:
    return put_header(TAR_FIFO, walk.path, NULL, &info, 0);
  default: /* devices and sockets mean nothing elsewhere */
    return 0;
  }
}

/* Takes over `fd`. */
static int put_children(int fd, unsigned depth) {
  DIR *directory = fdopendir(fd);
  if (!directory) {
    int error = errno;
    close(fd);
    return error;
  }
  int error = 0;
  size_t base = walk.path_size;
  struct dirent *entry;
  while (!error && (entry = readdir(directory))) {
    const char *name = entry->d_name;
    size_t name_size = strlen(name);
    if (!strcmp(name, ".") || !strcmp(name, ".."))
      continue;
    /* One more for the slash of a directory. */
    if (base + name_size + 2 > sizeof walk.path) {
      error = ENAMETOOLONG;
      break;
    }
    memcpy(walk.path + base, name, name_size + 1);
    walk.path_size = base + name_size;
    error = put_member(fd, name, depth);
    if (error)
      break; /* the path says where */
    walk.path_size = base;
  }
  closedir(directory);
  return error;
}

int files_tar(const char *path) {
  static const char end[2 * TAR_BLOCK];
  struct stat info;
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &info) < 0)
    return errno;
  walk.device = info.st_dev;
  int error = add_attributes(fd);
  if (!error)
    error = put_header(TAR_DIRECTORY, "./", NULL, &info, 0);
  if (!error)
    error = put_children(fd, 1);
  if (!error)
    error = output_put(end, sizeof end);
  if (error)
    files_failed_at(walk.path);
  return error ? error : output_flush();
}
