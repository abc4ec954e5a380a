/* What lies at an address of a process: PROCMAP_QUERY on its maps, by the identity of files, never by
 * their names. */
#ifndef VENUS_INIT_POOL_VMAS_H
#define VENUS_INIT_POOL_VMAS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "venus_restore_format.h"

#define POOL_ADDRESS_MASK UINT64_C(0x7fffffffffff)

struct pool_identity {
  uint64_t device;
  uint32_t count;
  uint64_t inodes[VR_MAX_POOL_EXTENTS];
};

struct pool_part {
  uint64_t start, end;
  int protection;
};

static inline uint64_t pool_round_up(uint64_t bytes) {
  return (bytes + VR_PAGE - 1) & ~(uint64_t)(VR_PAGE - 1);
}

/* /proc/TID/NAME; -1 and errno. */
int pool_open(pid_t tid, const char *name, int flags);

/* The first part of [at, end) that is pool memory. */
bool pool_next_part(int maps_fd, const struct pool_identity *identity, uint64_t at, uint64_t end,
                    struct pool_part *part);

/* The first part that is pool memory or anonymous and private. */
bool pool_next_memory(int maps_fd, const struct pool_identity *identity, uint64_t at, uint64_t end,
                      struct pool_part *part);

/* Whether [at, end) was one anonymous area of the original that now lies in several pieces: it is
 * covered by pool and anonymous memory of one protection, and not by a single anonymous mapping. */
bool pool_whole(int maps_fd, const struct pool_identity *identity, uint64_t at, uint64_t end,
                struct pool_part *part);

#endif
