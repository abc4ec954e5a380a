/* Does what it is told to its memory and files, one line at a time, and answers each.
 *
 * A line is SEQUENCE WHO COMMAND ARGUMENT…; the answer is SEQUENCE and "ok" or an errno. There are
 * two processes: the parent hands lines for its child ("c") on to it. They share two areas of memory;
 * everything else each has for itself. tests/kernel/soak_model.py has the same in Python. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / 8)
#define PRIVATE_PAGES 256
#define FIXED_PAGES 48

static char data_area[FIXED_PAGES * PAGE] __attribute__((aligned(4096))) = {1};
static struct area {
  char *memory;
  size_t pages;
} private_area, heap, data, anonymous, file;
static int log_file, nameless;
static char who;

static uint64_t mixed(uint64_t number) {
  number += UINT64_C(0x9e3779b97f4a7c15);
  number = (number ^ (number >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  number = (number ^ (number >> 27)) * UINT64_C(0x94d049bb133111eb);
  return number ^ (number >> 31);
}

static void fill(void *memory, size_t bytes, uint64_t seed) {
  for (size_t at = 0; at < bytes; at += 8) {
    uint64_t word = mixed(seed + at / 8);
    memcpy((char *)memory + at, &word, bytes - at < 8 ? bytes - at : 8);
  }
}

static struct area *area_of(char letter) {
  switch (letter) {
  case 'P':
    return &private_area;
  case 'H':
    return &heap;
  case 'D':
    return &data;
  case 'S':
    return &anonymous;
  default:
    return &file;
  }
}

static int write_all(int fd, const void *bytes, size_t count) {
  for (size_t done = 0; done < count;) {
    ssize_t now = write(fd, (const char *)bytes + done, count - done);
    if (now <= 0)
      return -1;
    done += (size_t)now;
  }
  return 0;
}

static int write_filled(int fd, off_t offset, size_t bytes, uint64_t seed) {
  char content[1 << 16];
  fill(content, bytes, seed);
  if (offset < 0)
    return write_all(fd, content, bytes);
  return pwrite(fd, content, bytes, offset) == (ssize_t)bytes ? 0 : -1;
}

static int write_path(const char *path, off_t offset, size_t bytes, uint64_t seed) {
  int fd = open(path, O_WRONLY | O_CREAT, 0644);
  int result = fd < 0 ? -1 : write_filled(fd, offset, bytes, seed);
  if (fd >= 0)
    close(fd);
  return result;
}

/* In one piece or, where the kernel finds several mappings there, by hand. */
static int resize(size_t pages) {
  char *grown = mremap(private_area.memory, private_area.pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
  if (grown == MAP_FAILED) {
    if (errno != EFAULT)
      return -1;
    grown = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (grown == MAP_FAILED)
      return -1;
    memcpy(grown, private_area.memory,
           (pages < private_area.pages ? pages : private_area.pages) * PAGE);
    munmap(private_area.memory, private_area.pages * PAGE);
  }
  private_area = (struct area){grown, pages};
  return 0;
}

/* For a while, so that a snapshot finds it in the middle. */
static void scribble(unsigned long steps, uint64_t seed) {
  uint64_t *words = (uint64_t *)private_area.memory;
  for (unsigned long step = 0; step < steps; step++) {
    uint64_t number = mixed(seed + step);
    words[number % (private_area.pages * WORDS)] = number;
    if (step % 64 == 0)
      nanosleep(&(struct timespec){0, 300000}, NULL);
  }
}

static int dump(const char *path) {
  const struct area *areas[] = {&private_area, &heap, &data, &anonymous, &file};
  int out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), result = out < 0 ? -1 : 0;
  for (int i = 0; i < 5 && result == 0; i++)
    result = write_all(out, areas[i]->memory, areas[i]->pages * PAGE);
  char content[4096];
  ssize_t count;
  for (off_t at = 0; result == 0 && (count = pread(nameless, content, sizeof content, at)) > 0;
       at += count)
    result = write_all(out, content, (size_t)count);
  if (out >= 0)
    close(out);
  return result;
}

static int carry_out(char command, const char *rest) {
  char letter, path[256], other[256];
  unsigned long page, count, bytes;
  uint64_t seed;
  long offset;
  char *start = NULL;
  if (sscanf(rest, " %c %lu %lu", &letter, &page, &count) == 3)
    start = area_of(letter)->memory + page * PAGE;
  switch (command) {
  case 'w': /* write pages */
    if (!start || sscanf(rest, " %c %lu %lu %lu", &letter, &page, &count, &seed) != 4)
      return EINVAL;
    if (letter == 'P')
      mprotect(start, count * PAGE, PROT_READ | PROT_WRITE);
    fill(start, count * PAGE, seed);
    return 0;
  case 'd': /* discard pages */
    return madvise(start, count * PAGE,
                   letter == 'S' || letter == 'M' ? MADV_REMOVE : MADV_DONTNEED);
  case 'u': /* unmap them, and map new ones there */
    if (munmap(start, count * PAGE) < 0)
      return -1;
    return mmap(start, count * PAGE, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start ? 0 : -1;
  case 'p': /* protect them from being written */
    return mprotect(start, count * PAGE, PROT_READ);
  case 'r': /* another size of the private area, all of it writable */
    if (sscanf(rest, " %lu", &count) != 1)
      return EINVAL;
    mprotect(private_area.memory, private_area.pages * PAGE, PROT_READ | PROT_WRITE);
    return resize(count);
  case 'q':
    if (sscanf(rest, " %lu %lu", &count, &seed) != 2)
      return EINVAL;
    mprotect(private_area.memory, private_area.pages * PAGE, PROT_READ | PROT_WRITE);
    scribble(count, seed);
    return 0;
  case 'F': /* write to a file */
    if (sscanf(rest, " %255s %ld %lu %lu", path, &offset, &bytes, &seed) != 4)
      return EINVAL;
    return write_path(path, offset, bytes, seed);
  case 'T':
    return sscanf(rest, " %255s %ld", path, &offset) == 2 ? truncate(path, offset) : EINVAL;
  case 'U':
    return sscanf(rest, " %255s", path) == 1 ? unlink(path) : EINVAL;
  case 'N':
    return sscanf(rest, " %255s %255s", path, other) == 2 ? rename(path, other) : EINVAL;
  case 'L':
    return sscanf(rest, " %255s %255s", path, other) == 2 ? link(path, other) : EINVAL;
  case 'A': /* to files that stay open: one has a name, the other none */
    if (sscanf(rest, " %c %lu %lu", &letter, &bytes, &seed) != 3)
      return EINVAL;
    return write_filled(letter == 'n' ? nameless : log_file, -1, bytes, seed);
  case 'Z':
    return sscanf(rest, " %255s", path) == 1 ? dump(path) : EINVAL;
  default:
    return EINVAL;
  }
}

static void serve(FILE *lines, int child) {
  char line[1024];
  while (fgets(line, sizeof line, lines)) {
    unsigned long sequence;
    char addressee, command;
    int rest = 0;
    if (sscanf(line, "%lu %c %c%n", &sequence, &addressee, &command, &rest) != 3)
      continue;
    if (addressee != who) {
      write_all(child, line, strlen(line));
      continue;
    }
    if (command == 'q')
      dprintf(1, "%lu ok\n", sequence); /* before it is done */
    errno = 0;
    int result = carry_out(command, line + rest);
    if (command != 'q')
      dprintf(1, result ? "%lu error %d\n" : "%lu ok\n", sequence, result < 0 ? errno : result);
  }
}

int main(int argc, char **argv) {
  int ends[2];
  int shared = memfd_create("soaker", 0);
  if (argc != 2 || chdir(argv[1]) < 0 || pipe(ends) < 0 || ftruncate(shared, FIXED_PAGES * PAGE) < 0)
    return 1;
  private_area.pages = PRIVATE_PAGES;
  heap.pages = data.pages = anonymous.pages = file.pages = FIXED_PAGES;
  private_area.memory =
      mmap(NULL, PRIVATE_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  heap.memory = calloc(FIXED_PAGES, PAGE);
  data.memory = data_area;
  data_area[0] = 0;
  anonymous.memory =
      mmap(NULL, FIXED_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  file.memory = mmap(NULL, FIXED_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
  log_file = open("log", O_RDWR | O_CREAT, 0644);
  nameless = open("nameless", O_RDWR | O_CREAT, 0644);
  if (log_file < 0 || nameless < 0 || unlink("nameless") < 0)
    return 1;
  FILE *lines = stdin;
  who = 'p';
  pid_t child = fork();
  if (child < 0)
    return 1;
  if (child == 0) {
    who = 'c';
    close(ends[1]);
    lines = fdopen(ends[0], "r");
  } else {
    dprintf(1, "0 ok\n");
  }
  serve(lines, ends[1]);
  return 0;
}
