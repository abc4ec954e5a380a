#include "pool_vmas.h"

#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>

#include "sys.h"

/* include/uapi/linux/fs.h since 6.11 */
struct procmap_query {
  uint64_t size, query_flags, query_addr;
  uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
  uint32_t dev_major, dev_minor;
  uint32_t vma_name_size, build_id_size;
  uint64_t vma_name_addr, build_id_addr;
};
#define QUERY_READABLE 1u
#define QUERY_WRITABLE 2u
#define QUERY_EXECUTABLE 4u
#define QUERY_SHARED 8u
#define QUERY_COVERING_OR_NEXT 16u
#define QUERY_FILE_BACKED 32u
#define PROCMAP_QUERY _IOWR('f', 17, struct procmap_query)

struct vma {
  struct pool_part part;
  bool pool, anonymous;
};

int pool_open(pid_t tid, const char *name, int flags) {
  char path[40];
  snprintf(path, sizeof path, "/proc/%d/%s", tid, name);
  return open(path, flags | O_CLOEXEC);
}

static bool is_pool(const struct pool_identity *identity, const struct procmap_query *query) {
  if (query->vma_flags & QUERY_SHARED ||
      makedev(query->dev_major, query->dev_minor) != identity->device)
    return false;
  for (uint32_t i = 0; i < identity->count; i++)
    if (identity->inodes[i] == query->inode)
      return true;
  return false;
}

/* The mapping at `at`, or the next one, as far as it lies in [at, end). */
static bool query_vma(int maps_fd, const struct pool_identity *identity, uint64_t flags, uint64_t at,
                      uint64_t end, struct vma *vma) {
  struct procmap_query query = {
      .size = sizeof query, .query_flags = QUERY_COVERING_OR_NEXT | flags, .query_addr = at};
  if (at >= end || ioctl(maps_fd, PROCMAP_QUERY, &query) < 0 || query.vma_start >= end)
    return false;
  vma->part.start = query.vma_start > at ? query.vma_start : at;
  vma->part.end = query.vma_end < end ? query.vma_end : end;
  vma->part.protection = (query.vma_flags & QUERY_READABLE ? PROT_READ : 0) |
                         (query.vma_flags & QUERY_WRITABLE ? PROT_WRITE : 0) |
                         (query.vma_flags & QUERY_EXECUTABLE ? PROT_EXEC : 0);
  vma->pool = query.inode != 0 && is_pool(identity, &query);
  vma->anonymous = query.inode == 0 && !(query.vma_flags & QUERY_SHARED);
  return true;
}

bool pool_next_part(int maps_fd, const struct pool_identity *identity, uint64_t at, uint64_t end,
                    struct pool_part *part) {
  struct vma vma;
  while (query_vma(maps_fd, identity, QUERY_FILE_BACKED, at, end, &vma)) {
    *part = vma.part;
    if (vma.pool)
      return true;
    at = vma.part.end;
  }
  return false;
}

bool pool_next_memory(int maps_fd, const struct pool_identity *identity, uint64_t at, uint64_t end,
                      struct pool_part *part) {
  struct vma vma;
  while (query_vma(maps_fd, identity, 0, at, end, &vma)) {
    *part = vma.part;
    if (vma.pool || vma.anonymous)
      return true;
    at = vma.part.end;
  }
  return false;
}

bool pool_whole(int maps_fd, const struct pool_identity *identity, uint64_t at, uint64_t end,
                struct pool_part *part) {
  struct vma vma;
  bool first = true, single = false;
  part->start = at;
  part->end = end;
  while (at < end) {
    if (!query_vma(maps_fd, identity, 0, at, end, &vma) || vma.part.start != at ||
        !(vma.pool || vma.anonymous) || (!first && vma.part.protection != part->protection))
      return false;
    single = first && vma.anonymous;
    part->protection = vma.part.protection;
    first = false;
    at = vma.part.end;
  }
  return !first && !single;
}
