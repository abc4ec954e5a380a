/* Headers of tar archives: what is written is read back, and no bytes whatever make the reader step
 * outside of what it was given (records are parsed from a heap block of exactly their size). */
#include <string.h>

#include "check.h"
#include "init/tar_format.h"

static uint32_t random_state = 1;

static uint32_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 17;
  random_state ^= random_state << 5;
  return random_state;
}

static const struct tar_header sample = {.type = TAR_FILE,
                                         .mode = 04751,
                                         .uid = 1000,
                                         .gid = TAR_MAX_ID,
                                         .size = TAR_MAX_SIZE,
                                         .mtime_s = 1234567890,
                                         .name = "a/name",
                                         .link = "elsewhere"};

static void test_round_trip(void) {
  uint8_t block[TAR_BLOCK];
  struct tar_header header;
  tar_encode(&sample, block);
  CHECK(tar_decode(block, &header) && !memcmp(&header, &sample, sizeof header));
  CHECK(!tar_is_zero(block));
  block[0] ^= 1;
  CHECK(!tar_decode(block, &header));
}

static void test_base_256(void) {
  uint8_t block[TAR_BLOCK];
  struct tar_header header;
  tar_encode(&sample, block);
  /* 2^40 as GNU writes it, and the checksum for it. */
  memcpy(block + 124, "\200\0\0\0\0\0\1\0\0\0\0\0", 12);
  uint32_t sum = 0;
  memset(block + 148, ' ', 8);
  for (unsigned i = 0; i < TAR_BLOCK; i++)
    sum += block[i];
  snprintf((char *)block + 148, 7, "%06o", sum);
  CHECK(tar_decode(block, &header) && header.size == UINT64_C(1) << 40);
}

static void test_records(void) {
  char bytes[400];
  size_t size = 0, at = 0;
  struct pax_record record;
  char long_value[120];
  memset(long_value, 'v', sizeof long_value);
  CHECK(pax_append(bytes, sizeof bytes, &size, "path", "a\0=\n", 4));
  /* Where the length itself becomes longer: 9 to 10, 99 to 100. */
  for (size_t length = 0; length < sizeof long_value; length++) {
    size_t used = 0;
    char one[200];
    CHECK(pax_append(one, sizeof one, &used, "k", long_value, length));
    at = 0;
    CHECK(pax_next(one, used, &at, &record) && at == used && record.value_size == length);
  }
  CHECK(pax_append(bytes, sizeof bytes, &size, "mtime", "-1.25", 5));
  CHECK(!pax_append(bytes, size + 8, &size, "path", "long", 4));
  at = 0;
  CHECK(pax_next(bytes, size, &at, &record) && pax_is(&record, "path"));
  CHECK(record.value_size == 4 && !memcmp(record.value, "a\0=\n", 4));
  CHECK(pax_next(bytes, size, &at, &record) && pax_is(&record, "mtime"));
  int64_t seconds;
  uint32_t nanoseconds;
  CHECK(pax_time(&record, &seconds, &nanoseconds) && seconds == -2 && nanoseconds == 750000000);
  uint64_t number;
  CHECK(!pax_number(&record, &number));
  CHECK(!pax_next(bytes, size, &at, &record) && at == size);
}

static void test_mutations(void) {
  static const uint8_t interesting[] = {0, ' ', '0', '1', '9', '=', '\n', 127, 128, 255};
  unsigned accepted = 0, records = 0;
  for (int round = 0; round < 300000; round++) {
    uint8_t block[TAR_BLOCK];
    struct tar_header header;
    tar_encode(&sample, block);
    for (unsigned i = next_random() % 3; i > 0; i--)
      block[next_random() % TAR_BLOCK] = interesting[next_random() % sizeof interesting];
    if (tar_decode(block, &header)) {
      accepted++;
      CHECK(strlen(header.name) < TAR_NAME_SIZE && strlen(header.link) < TAR_LINK_SIZE);
    }
    char bytes[200];
    size_t size = 0, at = 0;
    pax_append(bytes, sizeof bytes, &size, "path", "value", 5);
    pax_append(bytes, sizeof bytes, &size, "mtime", "12.5", 4);
    for (unsigned i = next_random() % 3; i > 0; i--)
      bytes[next_random() % size] = (char)interesting[next_random() % sizeof interesting];
    size = next_random() % 4 ? size : next_random() % (size + 1);
    char *exact = malloc(size ? size : 1);
    memcpy(exact, bytes, size);
    struct pax_record record;
    while (pax_next(exact, size, &at, &record)) {
      int64_t seconds;
      uint32_t nanoseconds;
      records += pax_time(&record, &seconds, &nanoseconds);
      CHECK(record.value + record.value_size < exact + size && at <= size);
    }
    free(exact);
  }
  CHECK(accepted > 1000 && records > 1000); /* otherwise the mutations prove nothing */
}

int main(void) {
  test_round_trip();
  test_base_256();
  test_records();
  test_mutations();
  return 0;
}
