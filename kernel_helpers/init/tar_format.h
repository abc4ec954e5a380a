/* Headers of tar archives, as bytes: POSIX ustar with pax records, and of GNU's what is common. Pure:
 * no I/O here, and nothing of an archive is trusted.
 *
 * Does not handle: GNU's old sparse files (type S), multi-volume archives. */
#ifndef VENUS_INIT_TAR_FORMAT_H
#define VENUS_INIT_TAR_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TAR_BLOCK 512u
#define TAR_NAME_SIZE 257 /* prefix, slash and name of a header, and NUL */
#define TAR_LINK_SIZE 101

/* 'x', 'g': pax records for the next member, for all; 'L', 'K': GNU's long name, long link. */
enum tar_type {
  TAR_FILE = '0',
  TAR_LINK = '1',
  TAR_SYMLINK = '2',
  TAR_CHARACTER_DEVICE = '3',
  TAR_BLOCK_DEVICE = '4',
  TAR_DIRECTORY = '5',
  TAR_FIFO = '6',
  TAR_CONTIGUOUS = '7',
  TAR_PAX = 'x',
  TAR_PAX_GLOBAL = 'g',
  TAR_GNU_NAME = 'L',
  TAR_GNU_LINK = 'K',
};

struct tar_header {
  char type;
  uint32_t mode;
  uint64_t uid;
  uint64_t gid;
  uint64_t size;
  int64_t mtime_s;
  char name[TAR_NAME_SIZE];
  char link[TAR_LINK_SIZE];
};

/* Fills the block. What does not fit its field is cut, and 0 where that would be wrong: a pax record
 * must say it. */
void tar_encode(const struct tar_header *header, uint8_t block[TAR_BLOCK]);

/* False for a block that is no header: wrong checksum, or a number that is none. */
bool tar_decode(const uint8_t block[TAR_BLOCK], struct tar_header *header);

bool tar_is_zero(const uint8_t block[TAR_BLOCK]);

/* Whether the number fits the field of 8 bytes (ids) or of 12 (sizes, times). */
#define TAR_MAX_ID 07777777u
#define TAR_MAX_SIZE UINT64_C(077777777777)

/* One pax record, "LENGTH KEY=VALUE\n". The value may hold anything. */
struct pax_record {
  const char *key;
  size_t key_size;
  const char *value;
  size_t value_size;
};

/* Takes the record at `*at` and steps on. False at the end, and with `*at` < `size` at nonsense. */
bool pax_next(const char *bytes, size_t size, size_t *at, struct pax_record *record);

bool pax_is(const struct pax_record *record, const char *key);

/* Appends a record; false when there is no room. */
bool pax_append(char *bytes, size_t capacity, size_t *size, const char *key, const void *value,
                size_t value_size);

/* A decimal number that is the whole value; false for anything else. */
bool pax_number(const struct pax_record *record, uint64_t *number);

/* Seconds with an optional sign and fraction. */
bool pax_time(const struct pax_record *record, int64_t *seconds, uint32_t *nanoseconds);

/* Decimal digits and a NUL into `out`; the number of digits. */
size_t format_number(char out[21], uint64_t number);

#endif
