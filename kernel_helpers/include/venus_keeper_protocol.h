/* What the daemon and pool-keeper say to each other (Python half: sandboxd/keeper/wire.py).
 *
 * An AF_UNIX SOCK_SEQPACKET connection; every request is one packet of exactly one vk_request and
 * gets exactly one answer, a vk_answer and what its type adds. A client waits for each answer: one
 * that lets answers pile up is dropped. Native byte order: both ends are on one machine.
 *
 * An entry is a name and an ordered list of sealed memory files. PUT, any number of PART with the
 * descriptors, COMMIT: before COMMIT nothing of it is visible, and a failed step, another PUT or the
 * end of the connection forgets it. Entries never change.
 */
#ifndef VENUS_KEEPER_PROTOCOL_H
#define VENUS_KEEPER_PROTOCOL_H

#include <stdint.h>

enum {
  VK_VERSION = 1,
  VK_MAX_NAME = 64,
  VK_BATCH = 64, /* descriptors in one packet */
  VK_MAX_CONNECTIONS = 8,
  VK_MAX_ENTRIES = 8192,
  VK_MAX_ENTRY_FILES = 8448,   /* of one entry */
  VK_MAX_REFERENCES = 1 << 18, /* of all entries; a file that several share counts for each */
  VK_MAX_FILES = 1 << 16,      /* different ones, at most: the limit on open files may be lower */
  VK_LIST_PAGE = 32,           /* entries in one answer */
};

enum vk_type {
  VK_HELLO = 1, /* adds a vk_state; answered whatever the version */
  VK_PUT,       /* `name` shall have `number` files */
  VK_PART,      /* 1 to VK_BATCH descriptors */
  VK_COMMIT,    /* the entry is there, whole */
  VK_GET,       /* files of `name` from position `number` on, as descriptors */
  VK_REMOVE,    /* forget `name` */
  VK_LIST,      /* `number`: 0, or the cursor that the page before gave */
  VK_END,       /* forget everything and end; obeyed whatever the version */
};

struct vk_request {
  uint32_t version;
  uint32_t type;
  uint32_t number;
  uint32_t name_size;
  char name[VK_MAX_NAME]; /* letters, digits, '.', '_', '-' */
};

struct vk_answer {
  uint32_t version;
  uint32_t type;  /* of the request */
  int32_t error;  /* 0 or an errno */
  uint32_t count; /* GET: files of the entry in all. LIST: how many vk_listed follow */
  uint64_t value; /* GET: number of the entry, which no other ever gets. LIST: cursor, 0 = the end */
};

struct vk_state {
  uint32_t entries;
  uint32_t references;
  uint32_t files;
  uint32_t max_files;
  int32_t pid;
  uint32_t pad;
};

struct vk_listed {
  uint64_t entry;
  uint32_t files;
  uint32_t name_size;
  char name[VK_MAX_NAME];
};

#endif
