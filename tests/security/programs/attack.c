/* Commands, one a line: "check" says whether all that the template held is as it was, "attack" tries,
 * "all" writes to every page of the large area. The answers are lines. */
#include "attack.h"

#include <sys/xattr.h>

#define LARGE (48ul << 20)

char *writable, *read_only, *program_data, *large;
size_t writable_bytes = ATTEMPTS * EACH * PAGE, large_bytes = LARGE;
static char data_area[8 * PAGE] __attribute__((aligned(4096))) = {1};
static char *shared, *from_file;
static int memory_file, open_file;
static unsigned used, used_read_only, used_files;
static FILE *reports;

static void pattern(char *memory, size_t bytes, uint64_t seed) {
  for (size_t at = 0; at < bytes; at += 8) {
    uint64_t word = (at / 8 + seed) * UINT64_C(0x9e3779b97f4a7c15);
    memcpy(memory + at, &word, 8);
  }
}

static int is_pattern(const char *memory, size_t bytes, uint64_t seed) {
  for (size_t at = 0; at < bytes; at += 8) {
    uint64_t word = (at / 8 + seed) * UINT64_C(0x9e3779b97f4a7c15);
    if (memcmp(memory + at, &word, 8) != 0)
      return 0;
  }
  return 1;
}

char *next_pages(void) {
  if (used == ATTEMPTS)
    abort();
  return writable + used++ * EACH * PAGE;
}

char *next_read_only(void) {
  if (used_read_only == ATTEMPTS)
    abort();
  return read_only + used_read_only++ * EACH * PAGE;
}

const char *lower_file(unsigned number) {
  static char path[64];
  snprintf(path, sizeof path, PLACE "/file-%u", number);
  return path;
}

unsigned next_file(void) {
  if (used_files == LOWER_FILES)
    abort();
  return used_files++;
}

void report(const char *name, long result) {
  fprintf(reports, "%s %ld %d\n", name, result, result < 0 ? errno : 0);
  fflush(reports);
}

static char *map(size_t bytes, int flags) {
  char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    abort();
  return memory;
}

static void write_file(const char *path, uint64_t seed) {
  static char content[FILE_BYTES];
  pattern(content, sizeof content, seed);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0640);
  if (fd < 0 || write(fd, content, sizeof content) != sizeof content || close(fd) < 0)
    abort();
}

static void set_up(void) {
  writable = map(writable_bytes, MAP_PRIVATE);
  read_only = map(writable_bytes, MAP_PRIVATE);
  large = map(large_bytes, MAP_PRIVATE);
  shared = map(8 * PAGE, MAP_SHARED);
  program_data = data_area;
  pattern(writable, writable_bytes, 1);
  pattern(read_only, writable_bytes, 2);
  pattern(data_area, sizeof data_area, 3);
  pattern(large, large_bytes, 4);
  pattern(shared, 8 * PAGE, 5);
  mprotect(read_only, writable_bytes, PROT_READ);
  memory_file = memfd_create("fortress", MFD_ALLOW_SEALING);
  if (ftruncate(memory_file, 8 * PAGE) < 0)
    abort();
  pattern(mmap(NULL, 8 * PAGE, PROT_WRITE, MAP_SHARED, memory_file, 0), 8 * PAGE, 6);
  mkdir(PLACE, 0755);
  for (unsigned number = 0; number < LOWER_FILES; number++)
    write_file(lower_file(number), 100 + number);
  if (setxattr(lower_file(0), "user.mark", "as it was", 9, 0) < 0)
    abort();
  write_file("/tmp/in-memory", 200);
  /* One stays open for reading, and mapped. */
  open_file = open(lower_file(LOWER_FILES - 1), O_RDONLY);
  from_file = mmap(NULL, FILE_BYTES, PROT_READ, MAP_PRIVATE, open_file, 0);
}

static int file_is_whole(const char *path, uint64_t seed) {
  static char content[FILE_BYTES + 1];
  struct stat status;
  int fd = open(path, O_RDONLY);
  ssize_t got = fd < 0 ? -1 : read(fd, content, sizeof content);
  int whole = got == (ssize_t)FILE_BYTES && is_pattern(content, FILE_BYTES, seed) &&
              fstat(fd, &status) == 0 && (status.st_mode & 0777) == 0640 && status.st_nlink == 1;
  close(fd);
  return whole;
}

static void check(void) {
  char mark[16] = "", content[PAGE];
  int ok = is_pattern(writable, writable_bytes, 1) && is_pattern(read_only, writable_bytes, 2) &&
           is_pattern(data_area, sizeof data_area, 3) && is_pattern(large, large_bytes, 4);
  int memory = is_pattern(shared, 8 * PAGE, 5);
  for (unsigned page = 0; page < 8; page++)
    memory &= pread(memory_file, content, PAGE, (off_t)(page * PAGE)) == (ssize_t)PAGE &&
              is_pattern(content, PAGE, 6 + page * PAGE / 8);
  unsigned files = 0;
  for (unsigned number = 0; number < LOWER_FILES; number++)
    files += file_is_whole(lower_file(number), 100 + number);
  int mapped = is_pattern(from_file, FILE_BYTES, 100 + LOWER_FILES - 1);
  int marked = getxattr(lower_file(0), "user.mark", mark, sizeof mark) == 9 &&
               memcmp(mark, "as it was", 9) == 0;
  int in_memory = file_is_whole("/tmp/in-memory", 200);
  printf("checked %s private=%d shared=%d files=%u mapped=%d xattr=%d tmpfs=%d\n",
         ok && memory && files == LOWER_FILES && mapped && marked && in_memory ? "whole" : "broken",
         ok, memory, files, mapped, marked, in_memory);
}

static void attack(void) {
  reports = fopen("/tmp/report", "w");
  attack_memory();
  attack_memory_from_outside();
  attack_by_the_kernel();
  attack_files();
  /* Last all that is left. (What was tried upon may be guarded now.) */
  char *rest = read_only + used_read_only * EACH * PAGE;
  size_t left = writable_bytes - used_read_only * EACH * PAGE;
  report("mprotect", mprotect(rest, left, PROT_READ | PROT_WRITE));
  pattern(rest, left, 999);
  pattern(writable + used * EACH * PAGE, writable_bytes - used * EACH * PAGE, 999);
  pattern(data_area, sizeof data_area, 999);
  pattern(shared, 8 * PAGE, 999);
  fclose(reports);
  printf("attacked\n");
}

int main(void) {
  char line[64];
  set_up();
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    if (strcmp(line, "check\n") == 0) {
      check();
    } else if (strcmp(line, "attack\n") == 0) {
      attack();
    } else if (strcmp(line, "all\n") == 0) {
      pattern(large, large_bytes, 999);
      printf("written\n");
    }
    fflush(stdout);
  }
  return 0;
}
