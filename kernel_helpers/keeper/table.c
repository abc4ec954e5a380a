#include "table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
/* Standard files, lock, socket, connections and one packet that is being received. */
#define OWN_FILES (8u + VK_MAX_CONNECTIONS + VK_BATCH)

/* Indexed by descriptor. Large arrays cost memory only where they are touched. */
static struct {
  dev_t device;
  ino_t inode;
  uint32_t references;
} held[VK_MAX_FILES];
static int highest_held = -1;

static struct entry entries[VK_MAX_ENTRIES];
static uint32_t used_slots; /* all behind are free */
static uint64_t last_number;
static struct vk_state state;

void table_init(void) {
  struct rlimit limit = {0, 0};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  uint64_t usable = limit.rlim_cur < VK_MAX_FILES ? limit.rlim_cur : VK_MAX_FILES;
  state.max_files = usable > OWN_FILES ? (uint32_t)(usable - OWN_FILES) : 0;
  state.pid = getpid();
}

struct vk_state table_state(void) { return state; }

static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

static bool is_name(const char *name, uint32_t size) {
  if (size == 0 || size > VK_MAX_NAME)
    return false;
  for (uint32_t i = 0; i < size; i++)
    if (!is_letter(name[i]))
      return false;
  return true;
}

static struct entry *find(const char *name, uint32_t size) {
  for (uint32_t i = 0; i < used_slots; i++)
    if (entries[i].number && entries[i].name_size == size && !memcmp(entries[i].name, name, size))
      return &entries[i];
  return NULL;
}

const struct entry *table_find(const char *name, uint32_t name_size) {
  return name_size <= VK_MAX_NAME ? find(name, name_size) : NULL;
}

static void release(int fd) {
  if (--held[fd].references)
    return;
  close(fd);
  state.files--;
}

/* The descriptor under which the file is held from now on, or -errno. Consumes `fd`. */
static int hold(int fd) {
  struct stat status;
  int seals = fcntl(fd, F_GET_SEALS);
  int error = 0;
  if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &status) < 0)
    error = EINVAL; /* only what nobody can change is the same for all who share it */
  for (int i = 0; !error && i <= highest_held; i++)
    if (held[i].references && held[i].inode == status.st_ino && held[i].device == status.st_dev) {
      close(fd);
      held[i].references++;
      return i;
    }
  if (!error && (fd >= VK_MAX_FILES || state.files >= state.max_files))
    error = EMFILE;
  if (error) {
    close(fd);
    return -error;
  }
  held[fd].device = status.st_dev;
  held[fd].inode = status.st_ino;
  held[fd].references = 1;
  state.files++;
  if (fd > highest_held)
    highest_held = fd;
  return fd;
}

int table_begin(struct entry *entry, const char *name, uint32_t name_size, uint32_t wanted) {
  table_abandon(entry);
  if (!is_name(name, name_size) || wanted == 0)
    return EINVAL;
  if (wanted > VK_MAX_ENTRY_FILES)
    return E2BIG;
  if (find(name, name_size))
    return EEXIST;
  if (wanted > VK_MAX_REFERENCES - state.references)
    return ENOSPC;
  entry->files = malloc(wanted * sizeof *entry->files);
  if (!entry->files)
    return ENOMEM;
  memcpy(entry->name, name, name_size);
  entry->name_size = name_size;
  entry->wanted = wanted;
  state.references += wanted; /* reserved: entries that are being put count against the bound too */
  return 0;
}

void table_abandon(struct entry *entry) {
  for (uint32_t i = 0; i < entry->have; i++)
    release(entry->files[i]);
  free(entry->files);
  state.references -= entry->wanted;
  memset(entry, 0, sizeof *entry);
}

int table_add(struct entry *entry, const int *fds, unsigned count) {
  int error = count == 0 || count > entry->wanted - entry->have ? EBADMSG : 0;
  for (unsigned i = 0; i < count; i++) {
    if (error) {
      close(fds[i]);
      continue;
    }
    int fd = hold(fds[i]);
    if (fd < 0)
      error = -fd;
    else
      entry->files[entry->have++] = fd;
  }
  return error;
}

int table_commit(struct entry *entry) {
  if (entry->wanted == 0 || entry->have != entry->wanted)
    return EBADMSG;
  if (find(entry->name, entry->name_size))
    return EEXIST;
  uint32_t slot = 0;
  while (slot < used_slots && entries[slot].number)
    slot++;
  if (slot == VK_MAX_ENTRIES)
    return ENOSPC;
  if (slot == used_slots)
    used_slots++;
  entry->number = ++last_number;
  entries[slot] = *entry;
  memset(entry, 0, sizeof *entry);
  state.entries++;
  return 0;
}

int table_remove(const char *name, uint32_t name_size) {
  struct entry *entry = name_size <= VK_MAX_NAME ? find(name, name_size) : NULL;
  if (!entry)
    return ENOENT;
  table_abandon(entry);
  state.entries--;
  while (used_slots && !entries[used_slots - 1].number)
    used_slots--;
  return 0;
}

const struct entry *table_next(uint32_t *cursor) {
  while (*cursor < used_slots) {
    const struct entry *entry = &entries[(*cursor)++];
    if (entry->number)
      return entry;
  }
  return NULL;
}
