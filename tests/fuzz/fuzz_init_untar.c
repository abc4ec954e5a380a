/* Archives that sandbox-init unpacks, into a real directory, out of which nothing may come. First byte:
 * whether owners are kept, and whether the rest is frames or what one of them carries. */
#include "init/tar_read.c" /* for what it holds: a child unpacks once */

#include <dirent.h>
#include <stdio.h>

#include "confined.h"
#include "fuzz.h"

static const char kept[] = "kept";

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  confine();
  set_stdin(NULL, 0); /* which makes the file, once */
  REQUIRE(mkdir("outside", 0755) == 0);
  int fd = open("outside/kept", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(fd >= 0 && write(fd, kept, sizeof kept) == sizeof kept);
  close(fd);
  return 0;
}

static unsigned entries(const char *path) {
  DIR *directory = opendir(path);
  REQUIRE(directory);
  unsigned count = 0;
  while (readdir(directory))
    count++;
  closedir(directory);
  return count - 2;
}

static void require_outside_untouched(void) {
  char bytes[sizeof kept + 1];
  struct stat info;
  REQUIRE(entries(".") == 2 && entries("outside") == 1);
  REQUIRE(lstat("outside", &info) == 0 && info.st_mode == (S_IFDIR | 0755));
  REQUIRE(lstat("outside/kept", &info) == 0 && info.st_mode == (S_IFREG | 0600));
  REQUIRE(info.st_nlink == 1 && info.st_size == sizeof kept);
  int fd = open("outside/kept", O_RDONLY | O_CLOEXEC);
  REQUIRE(read(fd, bytes, sizeof bytes) == sizeof kept && memcmp(bytes, kept, sizeof kept) == 0);
  close(fd);
}

/* Else hardly any change of a header would be more than a wrong sum. */
static void mend_checksums(uint8_t *bytes, size_t size) {
  enum { MAGIC = 257, SUM = 148, SUM_SIZE = 8 };
  for (; size >= TAR_BLOCK; bytes += TAR_BLOCK, size -= TAR_BLOCK) {
    if (memcmp(bytes + MAGIC, "ustar", 5))
      continue;
    unsigned sum = 0;
    memset(bytes + SUM, ' ', SUM_SIZE);
    for (unsigned i = 0; i < TAR_BLOCK; i++)
      sum += bytes[i];
    snprintf((char *)bytes + SUM, SUM_SIZE - 1, "%06o", sum);
  }
}

static void set_frames(const uint8_t *bytes, size_t size) {
  uint8_t *framed = malloc(size + 2 * sizeof(uint32_t));
  REQUIRE(framed);
  uint32_t length = (uint32_t)size, end = 0;
  memcpy(framed, &length, sizeof length);
  memcpy(framed + sizeof length, bytes, size);
  mend_checksums(framed + sizeof length, size);
  memcpy(framed + sizeof length + size, &end, sizeof end);
  set_stdin(framed, size ? size + 2 * sizeof length : sizeof end);
  free(framed);
}

static void forget(void) {
  REQUIRE(unpack.directory_count == 0);
  close(unpack.root);
  free(unpack.records);
  free(unpack.directories);
  memset(&unpack, 0, sizeof unpack);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  if (size == 0)
    return 0;
  unsigned before = open_descriptors();
  if (bytes[0] & 2)
    set_stdin(bytes + 1, size - 1);
  else
    set_frames(bytes + 1, size - 1);
  files_untar("root", bytes[0] & 1 ? VENUS_FILE_OWNERS : 0);
  forget();
  require_outside_untouched();
  REQUIRE(files_remove("root", 1) == 0);
  REQUIRE(open_descriptors() == before);
  return 0;
}
