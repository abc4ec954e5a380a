/* Unpacks a tar archive from the upload on stdin below a directory. Nothing of the archive leads out
 * of it: every path is resolved beneath it by the kernel, symbolic links on the way included. Members
 * come to be one after the other; one that is cut in the middle is removed again. */
#include <limits.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "files.h"
#include "sys.h"
#include "tar_format.h"
#include "upload.h"

#define MAX_PAX_SIZE (1u << 20)
#define MAX_SEGMENTS 65536u
#define MAX_XATTRS 64

struct segment {
  uint64_t offset;
  uint64_t size;
};

/* What the headers before a member, and its own, say of it. */
struct member {
  struct tar_header header;
  char path[PATH_MAX];
  char link[PATH_MAX];
  int64_t mtime_s;
  uint32_t mtime_ns;
  bool sparse;
  uint64_t real_size;
  uint32_t xattr_count;
  struct pax_record xattrs[MAX_XATTRS]; /* of the records in `records`; keys without their prefix */
};

/* Gets its attributes last: writing below it changes its time, and may need its mode. */
struct directory {
  char *path;
  uint32_t mode;
  uint64_t uid;
  uint64_t gid;
  struct timespec mtime;
};

static struct {
  int root;
  bool keep_owners;
  struct upload_stream stream;
  struct member member;
  char *records;
  size_t records_size;
  size_t directory_count;
  size_t directory_room;
  struct directory *directories;
} unpack; /* touched in children only */
static char content[65536];

/* Headers before a member say that more of it is to come. */
enum step { MEMBER, MORE, END };

static int open_beneath(const char *path, uint64_t flags) {
  struct open_how how = {.flags = flags | O_CLOEXEC,
                         .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
  return (int)syscall(SYS_openat2, unpack.root, *path ? path : ".", &how, sizeof how);
}

static int skip(uint64_t size) {
  while (size) {
    size_t piece = size < sizeof content ? (size_t)size : sizeof content;
    int error = upload_exactly(&unpack.stream, content, piece);
    if (error)
      return error;
    size -= piece;
  }
  return 0;
}

static uint64_t padding(uint64_t size) { return (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK; }

/* Below the root, without a slash at either end. False for a path that goes up. */
static bool normalize(const char *path, size_t size, char out[PATH_MAX]) {
  size_t used = 0;
  for (size_t at = 0; at < size;) {
    const char *slash = memchr(path + at, '/', size - at);
    size_t length = slash ? (size_t)(slash - (path + at)) : size - at;
    const char *part = path + at;
    at += length + 1;
    if (length == 0 || (length == 1 && part[0] == '.'))
      continue;
    if ((length == 2 && part[0] == '.' && part[1] == '.') || memchr(part, 0, length) ||
        used + length + 2 > PATH_MAX)
      return false;
    if (used)
      out[used++] = '/';
    memcpy(out + used, part, length);
    used += length;
  }
  out[used] = 0;
  return true;
}

static bool copy_text(const char *text, size_t size, char out[PATH_MAX]) {
  if (size == 0 || size >= PATH_MAX || memchr(text, 0, size))
    return false;
  memcpy(out, text, size);
  out[size] = 0;
  return true;
}

/* What a header before the member brings: `records` holds it until the member is done. */
static int read_records(uint64_t size) {
  if (size > MAX_PAX_SIZE)
    return E2BIG;
  unpack.member.xattr_count = 0; /* they point into what is replaced */
  char *grown = realloc(unpack.records, (size_t)size + 1);
  if (!grown)
    return ENOMEM;
  unpack.records = grown;
  unpack.records_size = (size_t)size;
  int error = upload_exactly(&unpack.stream, grown, (size_t)size);
  grown[size] = 0;
  return error ? error : skip(padding(size));
}

struct overrides {
  char path[PATH_MAX]; /* "" none */
  char link[PATH_MAX];
  bool has_size, has_uid, has_gid, has_mtime, sparse_major, sparse_minor;
  uint64_t size, uid, gid, real_size;
  int64_t mtime_s;
  uint32_t mtime_ns;
};

static struct overrides overrides;

static int take_record(const struct pax_record *record) {
  struct member *member = &unpack.member;
  static const char xattr[] = "SCHILY.xattr.user.";
  uint64_t number;
  if (pax_is(record, "path") || pax_is(record, "GNU.sparse.name"))
    return copy_text(record->value, record->value_size, overrides.path) ? 0 : ENAMETOOLONG;
  if (pax_is(record, "linkpath"))
    return copy_text(record->value, record->value_size, overrides.link) ? 0 : ENAMETOOLONG;
  if (pax_is(record, "mtime")) {
    overrides.has_mtime = true;
    return pax_time(record, &overrides.mtime_s, &overrides.mtime_ns) ? 0 : EBADMSG;
  }
  if (pax_is(record, "size") || pax_is(record, "uid") || pax_is(record, "gid") ||
      pax_is(record, "GNU.sparse.realsize")) {
    if (!pax_number(record, &number))
      return EBADMSG;
    if (pax_is(record, "size"))
      overrides.has_size = true, overrides.size = number;
    else if (pax_is(record, "uid"))
      overrides.has_uid = true, overrides.uid = number;
    else if (pax_is(record, "gid"))
      overrides.has_gid = true, overrides.gid = number;
    else
      overrides.real_size = number;
    return 0;
  }
  if (pax_is(record, "GNU.sparse.major")) {
    overrides.sparse_major = pax_number(record, &number) && number == 1;
    return overrides.sparse_major ? 0 : EOPNOTSUPP;
  }
  if (pax_is(record, "GNU.sparse.minor")) {
    overrides.sparse_minor = pax_number(record, &number) && number == 0;
    return overrides.sparse_minor ? 0 : EOPNOTSUPP;
  }
  if (record->key_size > 11 && !memcmp(record->key, "GNU.sparse.", 11))
    return EOPNOTSUPP; /* the older formats 0.0 and 0.1 */
  size_t prefix = sizeof xattr - 1;
  if (record->key_size > prefix && !memcmp(record->key, xattr, prefix)) {
    if (member->xattr_count == MAX_XATTRS || record->key_size - 13 > 255)
      return E2BIG;
    struct pax_record *attribute = &member->xattrs[member->xattr_count++];
    *attribute = *record;
    attribute->key += 13;
    attribute->key_size -= 13;
  }
  return 0;
}

static int take_records(void) {
  struct pax_record record;
  size_t at = 0;
  int error = 0;
  while (!error && pax_next(unpack.records, unpack.records_size, &at, &record))
    error = take_record(&record);
  return error ? error : at < unpack.records_size ? EBADMSG : 0;
}

/* Reads one header, and with it the member, or something about the one that follows. */
static int next_header(enum step *step) {
  struct member *member = &unpack.member;
  struct tar_header *header = &member->header;
  uint8_t block[TAR_BLOCK];
  *step = MORE;
  size_t got;
  int error = upload_some(&unpack.stream, block, 1, &got);
  if (error || got == 0) { /* some programs leave the end out */
    *step = END;
    return error;
  }
  if ((error = upload_exactly(&unpack.stream, block + 1, sizeof block - 1)))
    return error;
  if (tar_is_zero(block)) {
    *step = END;
    return 0;
  }
  if (!tar_decode(block, header))
    return EBADMSG;
  switch (header->type) {
  case TAR_PAX:
    if ((error = read_records(header->size)))
      return error;
    return take_records();
  case TAR_PAX_GLOBAL: /* says nothing that matters here */
    error = skip(header->size);
    return error ? error : skip(padding(header->size));
  case TAR_GNU_NAME:
  case TAR_GNU_LINK:
    if ((error = read_records(header->size)))
      return error;
    return copy_text(unpack.records, strlen(unpack.records),
                     header->type == TAR_GNU_NAME ? overrides.path : overrides.link)
               ? 0
               : ENAMETOOLONG;
  default:
    *step = MEMBER;
    return 0;
  }
}

static int complete_member(void) {
  struct member *member = &unpack.member;
  struct tar_header *header = &member->header;
  const char *path = *overrides.path ? overrides.path : header->name;
  const char *link = *overrides.link ? overrides.link : header->link;
  files_failed_at(path);
  if (!normalize(path, strlen(path), member->path))
    return EINVAL;
  strcpy(member->link, link);
  if (overrides.has_size)
    header->size = overrides.size;
  if (overrides.has_uid)
    header->uid = overrides.uid;
  if (overrides.has_gid)
    header->gid = overrides.gid;
  member->mtime_s = overrides.has_mtime ? overrides.mtime_s : header->mtime_s;
  member->mtime_ns = overrides.has_mtime ? overrides.mtime_ns : 0;
  member->sparse = overrides.sparse_major && overrides.sparse_minor;
  member->real_size = overrides.real_size;
  if (header->uid >= UINT32_MAX || header->gid >= UINT32_MAX)
    return EINVAL; /* the last one means "no change" */
  return 0;
}

static int make_parents(const char *path) {
  char part[PATH_MAX];
  size_t length = strlen(path);
  for (size_t i = 1; i <= length; i++) {
    if (path[i] != '/' && path[i] != 0)
      continue;
    memcpy(part, path, i);
    part[i] = 0;
    int fd = open_beneath(part, O_PATH | O_DIRECTORY);
    if (fd < 0 && errno != ENOENT)
      return errno;
    if (fd >= 0) {
      close(fd);
      continue;
    }
    char *slash = strrchr(part, '/');
    if (slash)
      *slash = 0;
    fd = open_beneath(slash ? part : "", O_PATH | O_DIRECTORY);
    if (fd < 0)
      return errno;
    int error = mkdirat(fd, slash ? slash + 1 : part, 0755) < 0 && errno != EEXIST ? errno : 0;
    close(fd);
    if (error)
      return error;
  }
  return 0;
}

/* The directory that the path's last part lies in, and that part. */
static int open_parent(const char *path, int *fd, const char **name) {
  char parent[PATH_MAX];
  const char *slash = strrchr(path, '/');
  size_t length = slash ? (size_t)(slash - path) : 0;
  memcpy(parent, path, length);
  parent[length] = 0;
  *name = slash ? slash + 1 : path;
  *fd = open_beneath(parent, O_PATH | O_DIRECTORY);
  if (*fd < 0 && errno == ENOENT) {
    int error = make_parents(parent);
    if (error)
      return error;
    *fd = open_beneath(parent, O_PATH | O_DIRECTORY);
  }
  return *fd < 0 ? errno : 0;
}

/* Attributes of what `fd` has open; the owner first, because it clears the set-id bits. */
static int set_attributes(int fd, const struct directory *wanted) {
  struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, wanted->mtime};
  if (unpack.keep_owners && fchown(fd, (uid_t)wanted->uid, (gid_t)wanted->gid) < 0)
    return errno;
  if (fchmod(fd, wanted->mode) < 0 || futimens(fd, times) < 0)
    return errno;
  return 0;
}

static struct directory attributes(void) {
  const struct member *member = &unpack.member;
  return (struct directory){.mode = member->header.mode,
                            .uid = member->header.uid,
                            .gid = member->header.gid,
                            .mtime = {member->mtime_s, member->mtime_ns}};
}

static int set_xattrs(int fd) {
  const struct member *member = &unpack.member;
  for (uint32_t i = 0; i < member->xattr_count; i++) {
    char name[256];
    memcpy(name, member->xattrs[i].key, member->xattrs[i].key_size);
    name[member->xattrs[i].key_size] = 0;
    if (fsetxattr(fd, name, member->xattrs[i].value, member->xattrs[i].value_size, 0) < 0 &&
        errno != ENOTSUP)
      return errno;
  }
  return 0;
}

static int copy_content(int fd, uint64_t offset, uint64_t size) {
  while (size) {
    size_t piece = size < sizeof content ? (size_t)size : sizeof content;
    int error = upload_exactly(&unpack.stream, content, piece);
    if (error)
      return error;
    for (size_t done = 0; done < piece;) {
      ssize_t written = pwrite(fd, content + done, piece - done, (off_t)(offset + done));
      if (written < 0 && errno != EINTR)
        return errno;
      done += written < 0 ? 0 : (size_t)written;
    }
    offset += piece;
    size -= piece;
  }
  return 0;
}

/* A number of the map, and its newline. `left` of the member's data. */
static int map_number(uint64_t *left, uint64_t *used, uint64_t *number) {
  *number = 0;
  for (unsigned digits = 0; digits < 19; digits++) {
    char byte;
    if (*left == 0)
      return EBADMSG;
    int error = upload_exactly(&unpack.stream, &byte, 1);
    if (error)
      return error;
    --*left;
    ++*used;
    if (byte == '\n')
      return digits ? 0 : EBADMSG;
    if (byte < '0' || byte > '9')
      return EBADMSG;
    *number = *number * 10 + (uint64_t)(byte - '0');
  }
  return EBADMSG;
}

static int copy_sparse(int fd, uint64_t size) {
  uint64_t left = size, used = 0, count;
  int error = map_number(&left, &used, &count);
  if (error || count > MAX_SEGMENTS)
    return error ? error : E2BIG;
  struct segment *segments = calloc(count ? count : 1, sizeof *segments);
  if (!segments)
    return ENOMEM;
  for (uint64_t i = 0; i < count && !error; i++)
    if (!(error = map_number(&left, &used, &segments[i].offset)))
      error = map_number(&left, &used, &segments[i].size);
  if (!error && padding(used) > left)
    error = EBADMSG;
  if (!error)
    error = skip(padding(used));
  left -= error ? 0 : padding(used);
  uint64_t real_size = unpack.member.real_size;
  for (uint64_t i = 0; i < count && !error; i++) {
    if (segments[i].size > left || segments[i].offset > real_size ||
        segments[i].size > real_size - segments[i].offset)
      error = EBADMSG;
    else
      error = copy_content(fd, segments[i].offset, segments[i].size);
    left -= error ? 0 : segments[i].size;
  }
  free(segments);
  if (!error && ftruncate(fd, (off_t)real_size) < 0)
    error = errno;
  return error ? error : skip(left);
}

static int make_file(int parent, const char *name) {
  const struct member *member = &unpack.member;
  uint64_t size = member->header.size;
  if (unlinkat(parent, name, 0) < 0 && errno != ENOENT)
    return errno;
  int fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0)
    return errno;
  int error = member->sparse ? copy_sparse(fd, size) : copy_content(fd, 0, size);
  struct directory wanted = attributes();
  if (!error && !(error = set_xattrs(fd)))
    error = set_attributes(fd, &wanted);
  close(fd);
  if (error)
    unlinkat(parent, name, 0);
  return error ? error : skip(padding(size));
}

static int make_link(int parent, const char *name) {
  char path[PATH_MAX];
  int from;
  const char *from_name;
  const char *link = unpack.member.link;
  if (!normalize(link, strlen(link), path) || !*path)
    return EINVAL;
  int error = open_parent(path, &from, &from_name);
  if (error)
    return error;
  if (unlinkat(parent, name, 0) < 0 && errno != ENOENT)
    error = errno;
  else if (linkat(from, from_name, parent, name, 0) < 0)
    error = errno;
  close(from);
  return error;
}

static int make_other(int parent, const char *name) {
  const struct member *member = &unpack.member;
  const struct tar_header *header = &member->header;
  struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {member->mtime_s, member->mtime_ns}};
  if (unlinkat(parent, name, 0) < 0 && errno != ENOENT)
    return errno;
  if (header->type == TAR_SYMLINK ? symlinkat(member->link, parent, name) < 0
                                  : mkfifoat(parent, name, header->mode) < 0)
    return errno;
  if (unpack.keep_owners && fchownat(parent, name, (uid_t)header->uid, (gid_t)header->gid,
                                     AT_SYMLINK_NOFOLLOW) < 0)
    return errno;
  return utimensat(parent, name, times, AT_SYMLINK_NOFOLLOW) < 0 ? errno : 0;
}

static int remember_directory(void) {
  if (unpack.directory_count == unpack.directory_room) {
    size_t room = unpack.directory_room ? 2 * unpack.directory_room : 64;
    struct directory *grown = realloc(unpack.directories, room * sizeof *grown);
    if (!grown)
      return ENOMEM;
    unpack.directories = grown;
    unpack.directory_room = room;
  }
  struct directory added = attributes();
  if (!(added.path = strdup(unpack.member.path)))
    return ENOMEM;
  unpack.directories[unpack.directory_count++] = added;
  return 0;
}

/* One that is there already stays, also by way of a symbolic link that leads to one below. */
static int make_directory(int parent, const char *name) {
  if (*name && mkdirat(parent, name, 0700) < 0 && errno != EEXIST)
    return errno;
  int fd = open_beneath(unpack.member.path, O_RDONLY | O_DIRECTORY);
  if (fd < 0)
    return errno;
  int error = set_xattrs(fd);
  close(fd);
  return error ? error : remember_directory();
}

static int make_member(void) {
  const struct member *member = &unpack.member;
  int parent;
  const char *name;
  char type = member->header.type;
  if (type == TAR_CHARACTER_DEVICE || type == TAR_BLOCK_DEVICE)
    return 0; /* a sandbox makes no nodes */
  if (!*member->path && type != TAR_DIRECTORY)
    return EINVAL;
  int error = open_parent(member->path, &parent, &name);
  if (error)
    return error;
  switch (type) {
  case TAR_FILE:
  case TAR_CONTIGUOUS:
    error = make_file(parent, name);
    break;
  case TAR_LINK:
    error = make_link(parent, name);
    break;
  case TAR_SYMLINK:
  case TAR_FIFO:
    error = make_other(parent, name);
    break;
  case TAR_DIRECTORY:
    error = make_directory(parent, name);
    break;
  default:
    error = EOPNOTSUPP;
  }
  close(parent);
  return error;
}

/* From the last to the first, so that no directory is closed before those in it. `error` is what went
 * wrong before: what has come to be is finished even so. */
static int finish_directories(int error) {
  while (unpack.directory_count) {
    struct directory *each = &unpack.directories[--unpack.directory_count];
    int fd = open_beneath(each->path, O_RDONLY | O_DIRECTORY);
    if (fd >= 0) { /* else a later member took its place */
      int failed = set_attributes(fd, each);
      close(fd);
      if (failed && !error) {
        error = failed;
        files_failed_at(each->path);
      }
    }
    free(each->path);
  }
  return error;
}

static int read_to_end(void) {
  size_t got;
  int error;
  do
    error = upload_some(&unpack.stream, content, sizeof content, &got);
  while (!error && got);
  return error;
}

int files_untar(const char *path, uint32_t flags) {
  int error = files_make_directory(path, 0755, 1);
  if (error)
    return error;
  unpack.keep_owners = (flags & VENUS_FILE_OWNERS) != 0;
  unpack.root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (unpack.root < 0)
    return errno;
  enum step step = MORE;
  while (!error && step != END) {
    memset(&overrides, 0, sizeof overrides);
    unpack.member.xattr_count = 0;
    do
      error = next_header(&step);
    while (!error && step == MORE);
    if (!error && step == MEMBER && !(error = complete_member()))
      error = make_member();
  }
  error = finish_directories(error);
  return error ? error : read_to_end();
}
