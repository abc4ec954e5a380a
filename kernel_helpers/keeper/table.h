/* What the keeper holds: entries of sealed files. A file that several entries have is held once,
 * known by its inode, so that templates which share extents cost one descriptor for each extent. */
#ifndef VENUS_KEEPER_TABLE_H
#define VENUS_KEEPER_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "venus_keeper_protocol.h"

struct entry {
  uint64_t number; /* 0: free */
  uint32_t name_size;
  uint32_t wanted; /* files that it will have */
  uint32_t have;
  int *files; /* descriptors, each with one reference of this entry */
  char name[VK_MAX_NAME];
};

/* Descriptors up to the process's limit, less what the keeper needs itself. */
void table_init(void);

/* 0 or an errno. `entry` is not in the table: it is being put. */
int table_begin(struct entry *entry, const char *name, uint32_t name_size, uint32_t wanted);
/* Consumes the descriptors, whatever the result. */
int table_add(struct entry *entry, const int *fds, unsigned count);
int table_commit(struct entry *entry);
/* Drops what `entry` has so far; nothing for one that was never begun. */
void table_abandon(struct entry *entry);

/* NULL when there is none. */
const struct entry *table_find(const char *name, uint32_t name_size);
int table_remove(const char *name, uint32_t name_size);
/* The next entry in slot `*cursor` or behind, NULL at the end; moves the cursor behind it. */
const struct entry *table_next(uint32_t *cursor);

struct vk_state table_state(void);

#endif
