#include "tar_format.h"

#include <string.h>

/* Offset and size of the fields of a header. */
enum {
  NAME = 0,
  NAME_SIZE = 100,
  MODE = 100,
  UID = 108,
  GID = 116,
  ID_SIZE = 8,
  SIZE = 124,
  MTIME = 136,
  SIZE_SIZE = 12,
  CHECKSUM = 148,
  CHECKSUM_SIZE = 8,
  TYPE = 156,
  LINK = 157,
  MAGIC = 257,
  PREFIX = 345,
  PREFIX_SIZE = 155,
};

static void put_octal(uint8_t *field, size_t size, uint64_t number) {
  field[size - 1] = 0;
  for (size_t i = size - 1; i-- > 0; number >>= 3)
    field[i] = (uint8_t)('0' + (number & 7));
}

/* Octal in spaces and NULs, or, with the first bit set, big-endian two's complement. */
static bool take_number(const uint8_t *field, size_t size, int64_t *number) {
  if (field[0] & 0x80) {
    uint64_t value = field[0] & 0x40 ? UINT64_MAX << 6 : 0;
    value |= field[0] & 0x3f;
    for (size_t i = 1; i < size; i++) {
      /* The bytes above the lowest eight only carry the sign. */
      if (size - i >= 8 && value != 0 && value != UINT64_MAX)
        return false;
      value = value << 8 | field[i];
    }
    *number = (int64_t)value;
    return (field[0] & 0x40 ? *number < 0 : *number >= 0);
  }
  size_t at = 0;
  while (at < size && field[at] == ' ')
    at++;
  uint64_t value = 0;
  for (; at < size && field[at] >= '0' && field[at] <= '7'; at++)
    value = value << 3 | (uint64_t)(field[at] - '0'); /* 12 digits at most: cannot overflow */
  for (; at < size; at++)
    if (field[at] != ' ' && field[at] != 0)
      return false;
  *number = (int64_t)value;
  return true;
}

static uint32_t checksum(const uint8_t block[TAR_BLOCK], bool is_signed) {
  int64_t sum = 0;
  for (size_t i = 0; i < TAR_BLOCK; i++) {
    uint8_t byte = i >= CHECKSUM && i < CHECKSUM + CHECKSUM_SIZE ? ' ' : block[i];
    sum += is_signed ? (int8_t)byte : byte; /* some old programs had signed bytes */
  }
  return (uint32_t)sum;
}

void tar_encode(const struct tar_header *header, uint8_t block[TAR_BLOCK]) {
  memset(block, 0, TAR_BLOCK);
  size_t name_size = strlen(header->name);
  memcpy(block + NAME, header->name, name_size < NAME_SIZE ? name_size : NAME_SIZE);
  size_t link_size = strlen(header->link);
  memcpy(block + LINK, header->link, link_size < NAME_SIZE ? link_size : NAME_SIZE);
  put_octal(block + MODE, ID_SIZE, header->mode);
  put_octal(block + UID, ID_SIZE, header->uid <= TAR_MAX_ID ? header->uid : 0);
  put_octal(block + GID, ID_SIZE, header->gid <= TAR_MAX_ID ? header->gid : 0);
  put_octal(block + SIZE, SIZE_SIZE, header->size <= TAR_MAX_SIZE ? header->size : 0);
  uint64_t mtime = header->mtime_s < 0 ? 0 : (uint64_t)header->mtime_s;
  put_octal(block + MTIME, SIZE_SIZE, mtime <= TAR_MAX_SIZE ? mtime : 0);
  block[TYPE] = (uint8_t)header->type;
  memcpy(block + MAGIC, "ustar\00000", 8);
  put_octal(block + CHECKSUM, CHECKSUM_SIZE - 1, checksum(block, false));
  block[CHECKSUM + CHECKSUM_SIZE - 1] = ' ';
}

static size_t bounded_length(const uint8_t *field, size_t size) {
  const uint8_t *end = memchr(field, 0, size);
  return end ? (size_t)(end - field) : size;
}

bool tar_decode(const uint8_t block[TAR_BLOCK], struct tar_header *header) {
  memset(header, 0, sizeof *header);
  int64_t sum, mode, uid, gid, size;
  if (!take_number(block + CHECKSUM, CHECKSUM_SIZE, &sum) ||
      ((uint32_t)sum != checksum(block, false) && (uint32_t)sum != checksum(block, true)) ||
      !take_number(block + MODE, ID_SIZE, &mode) || !take_number(block + UID, ID_SIZE, &uid) ||
      !take_number(block + GID, ID_SIZE, &gid) || !take_number(block + SIZE, SIZE_SIZE, &size) ||
      !take_number(block + MTIME, SIZE_SIZE, &header->mtime_s) || uid < 0 || gid < 0 || size < 0)
    return false;
  header->mode = (uint32_t)mode & 07777;
  header->uid = (uint64_t)uid;
  header->gid = (uint64_t)gid;
  header->size = (uint64_t)size;
  header->type = block[TYPE] ? (char)block[TYPE] : TAR_FILE;
  memcpy(header->link, block + LINK, bounded_length(block + LINK, NAME_SIZE));
  size_t at = 0;
  /* GNU's own format has other things where POSIX has the prefix. */
  if (!memcmp(block + MAGIC, "ustar", 6) && block[PREFIX]) {
    at = bounded_length(block + PREFIX, PREFIX_SIZE);
    memcpy(header->name, block + PREFIX, at);
    header->name[at++] = '/';
  }
  size_t name_size = bounded_length(block + NAME, NAME_SIZE);
  memcpy(header->name + at, block + NAME, name_size);
  /* Before POSIX a directory was a file whose name ends so. */
  at += name_size;
  if (header->type == TAR_FILE && at > 0 && header->name[at - 1] == '/')
    header->type = TAR_DIRECTORY;
  return true;
}

bool tar_is_zero(const uint8_t block[TAR_BLOCK]) {
  for (size_t i = 0; i < TAR_BLOCK; i++)
    if (block[i])
      return false;
  return true;
}

size_t format_number(char out[21], uint64_t number) {
  char digits[20];
  size_t count = 0;
  do
    digits[count++] = (char)('0' + number % 10);
  while (number /= 10);
  for (size_t i = 0; i < count; i++)
    out[i] = digits[count - 1 - i];
  out[count] = 0;
  return count;
}

static bool take_decimal(const char *bytes, size_t size, uint64_t *number) {
  *number = 0;
  if (size == 0 || size > 18)
    return false;
  for (size_t i = 0; i < size; i++) {
    if (bytes[i] < '0' || bytes[i] > '9')
      return false;
    *number = *number * 10 + (uint64_t)(bytes[i] - '0');
  }
  return true;
}

bool pax_next(const char *bytes, size_t size, size_t *at, struct pax_record *record) {
  if (*at >= size)
    return false;
  const char *start = bytes + *at;
  size_t left = size - *at;
  const char *space = memchr(start, ' ', left < 20 ? left : 20);
  uint64_t length;
  if (!space || !take_decimal(start, (size_t)(space - start), &length) || length > left)
    return false;
  const char *end = start + length; /* one behind the newline */
  const char *key = space + 1;
  if (end <= key || end[-1] != '\n')
    return false;
  const char *equals = memchr(key, '=', (size_t)(end - key));
  if (!equals)
    return false;
  *record = (struct pax_record){.key = key,
                                .key_size = (size_t)(equals - key),
                                .value = equals + 1,
                                .value_size = (size_t)(end - 1 - (equals + 1))};
  *at += length;
  return true;
}

bool pax_is(const struct pax_record *record, const char *key) {
  return record->key_size == strlen(key) && !memcmp(record->key, key, record->key_size);
}

bool pax_append(char *bytes, size_t capacity, size_t *size, const char *key, const void *value,
                size_t value_size) {
  size_t key_size = strlen(key);
  size_t rest = key_size + value_size + 3; /* space, equals, newline */
  char digits[21];
  /* The length counts its own digits. */
  size_t length = rest + format_number(digits, rest);
  length = rest + format_number(digits, length);
  size_t digit_count = format_number(digits, length);
  if (rest + digit_count != length)
    digit_count = format_number(digits, ++length);
  if (length > capacity - *size)
    return false;
  char *at = bytes + *size;
  memcpy(at, digits, digit_count);
  at += digit_count;
  *at++ = ' ';
  memcpy(at, key, key_size);
  at += key_size;
  *at++ = '=';
  memcpy(at, value, value_size);
  at[value_size] = '\n';
  *size += length;
  return true;
}

bool pax_number(const struct pax_record *record, uint64_t *number) {
  return take_decimal(record->value, record->value_size, number);
}

bool pax_time(const struct pax_record *record, int64_t *seconds, uint32_t *nanoseconds) {
  const char *at = record->value;
  size_t size = record->value_size;
  bool negative = size > 0 && *at == '-';
  if (negative) {
    at++;
    size--;
  }
  const char *point = memchr(at, '.', size);
  size_t whole_size = point ? (size_t)(point - at) : size;
  uint64_t whole;
  if (!take_decimal(at, whole_size, &whole))
    return false;
  uint32_t fraction = 0, weight = 100000000;
  for (size_t i = whole_size + 1; i < size; i++, weight /= 10) {
    if (at[i] < '0' || at[i] > '9')
      return false;
    fraction += (uint32_t)(at[i] - '0') * weight;
  }
  *seconds = negative ? -(int64_t)whole : (int64_t)whole;
  *nanoseconds = fraction;
  if (negative && fraction) { /* a timespec counts its fraction upwards */
    *seconds -= 1;
    *nanoseconds = 1000000000u - fraction;
  }
  return true;
}
