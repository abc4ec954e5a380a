/* Blocks of a tar archive as headers, and all of it as pax records. */
#include <string.h>

#include "fuzz.h"
#include "init/tar_format.h"

static void read_headers(const uint8_t *bytes, size_t size) {
  for (; size >= TAR_BLOCK; bytes += TAR_BLOCK, size -= TAR_BLOCK) {
    struct tar_header header, again;
    uint8_t block[TAR_BLOCK];
    if (tar_is_zero(bytes) || !tar_decode(bytes, &header))
      continue;
    REQUIRE(memchr(header.name, 0, sizeof header.name) && memchr(header.link, 0, sizeof header.link));
    tar_encode(&header, block);
    REQUIRE(tar_decode(block, &again) && again.mode == header.mode);
  }
}

static void read_records(const char *bytes, size_t size) {
  struct pax_record record;
  for (size_t at = 0, before = 0; pax_next(bytes, size, &at, &record); before = at) {
    char copy[512];
    size_t used = 0;
    uint64_t number;
    int64_t seconds;
    uint32_t nanoseconds;
    REQUIRE(at > before && record.value + record.value_size < bytes + size);
    pax_number(&record, &number);
    if (pax_time(&record, &seconds, &nanoseconds))
      REQUIRE(nanoseconds < 1000000000u);
    if (pax_append(copy, sizeof copy, &used, "key", record.value, record.value_size)) {
      struct pax_record again;
      size_t start = 0;
      REQUIRE(pax_next(copy, used, &start, &again) && start == used && pax_is(&again, "key"));
      REQUIRE(again.value_size == record.value_size);
    }
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  read_headers(bytes, size);
  read_records((const char *)bytes, size);
  return 0;
}
