/* Anonymous and file private memory, relocated read-only data, heap, guards, advice. */
#include "fidelity.h"

#include <sys/mman.h>

#define PAGE 4096
static int initialised = 12345;
static int zeroed;
/* Lives in RELRO: read-only in the file mapping, private because it was relocated. */
int (*const relocated)(const char *, ...) = printf;

static char *map(size_t bytes, int protection) {
  void *memory = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MUST(memory != MAP_FAILED);
  return memory;
}

static volatile sig_atomic_t faults;
static void on_fault(int number) {
  (void)number;
  faults++;
  _exit(42);
}

static int dies(volatile char *address) {
  pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, on_fault);
    *address = 1;
    _exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 42;
}

int main(void) {
  char *sparse = map(1024 * PAGE, PROT_READ | PROT_WRITE);
  for (int i = 0; i < 1024; i += 37)
    sparse[i * PAGE + 5] = (char)(i % 120 + 1);
  char *big = map(8 << 20, PROT_READ | PROT_WRITE);
  for (size_t i = 0; i < 8 << 20; i += 64)
    *(uint64_t *)(big + i) = i * 2654435761u;
  char *read_only = map(2 * PAGE, PROT_READ | PROT_WRITE);
  strcpy(read_only, "constant");
  mprotect(read_only, 2 * PAGE, PROT_READ);
  char *none = map(4 * PAGE, PROT_READ | PROT_WRITE);
  strcpy(none + PAGE, "behind the wall");
  mprotect(none, 4 * PAGE, PROT_NONE);
  char *code = map(PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
  memcpy(code, "\xb8\x2a\x00\x00\x00\xc3", 6); /* mov $42, %eax; ret */
  char *guarded = map(4 * PAGE, PROT_READ | PROT_WRITE);
  memset(guarded, 7, 4 * PAGE);
  int has_guards = madvise(guarded + PAGE, PAGE, 102) == 0;
  char *wiped = map(2 * PAGE, PROT_READ | PROT_WRITE);
  MUST(madvise(wiped, 2 * PAGE, MADV_WIPEONFORK) == 0);
  strcpy(wiped, "a secret");
  char *not_inherited = map(2 * PAGE, PROT_READ | PROT_WRITE);
  strcpy(not_inherited, "mine");
  MUST(madvise(not_inherited, 2 * PAGE, MADV_DONTFORK) == 0);
  char *huge = map(4 << 20, PROT_READ | PROT_WRITE);
  madvise(huge, 4 << 20, MADV_HUGEPAGE);
  memset(huge, 3, 4 << 20);
  char *locked = map(PAGE, PROT_READ | PROT_WRITE);
  strcpy(locked, "locked");
  int is_locked = mlock(locked, PAGE) == 0;
  int file = open("/var/tmp/private", O_RDWR | O_CREAT | O_TRUNC, 0600);
  MUST(file >= 0 && ftruncate(file, 8 * PAGE) == 0 && pwrite(file, "from the file", 13, 0) == 13);
  char *of_file = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  strcpy(of_file + 3 * PAGE, "private change");
  char *shared_file = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  strcpy(shared_file + 5 * PAGE, "shared change");
  close(file);
  file = open("/var/tmp/deleted", O_RDWR | O_CREAT | O_TRUNC, 0600);
  MUST(ftruncate(file, 2 * PAGE) == 0 && pwrite(file, "gone", 4, 0) == 4);
  char *of_deleted = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  strcpy(of_deleted + PAGE, "changed");
  close(file);
  unlink("/var/tmp/deleted");
  char *heap = sbrk(0);
  MUST(sbrk(64 * PAGE) == heap);
  strcpy(heap + 10 * PAGE, "in the heap");
  initialised = 777;
  zeroed = 888;

  ready_and_wait();

  for (int i = 0; i < 1024; i++)
    CHECK(sparse[i * PAGE + 5] == (i % 37 == 0 ? (char)(i % 120 + 1) : 0));
  int wrong = 0;
  for (size_t i = 0; i < 8 << 20; i += 64)
    wrong += *(uint64_t *)(big + i) != i * 2654435761u;
  CHECK(wrong == 0);
  CHECK(strcmp(read_only, "constant") == 0 && dies(read_only));
  CHECK(dies(none + PAGE));
  CHECK(mprotect(none, 4 * PAGE, PROT_READ) == 0 && strcmp(none + PAGE, "behind the wall") == 0);
  CHECK(((int (*)(void))code)() == 42);
  if (has_guards) {
    CHECK(dies(guarded + PAGE));
    CHECK(guarded[2 * PAGE] == 7 && guarded[0] == 7);
  }
  int is_fork = access("/var/tmp/is-fork", F_OK) == 0;
  CHECK(is_fork ? wiped[0] == 0 : strcmp(wiped, "a secret") == 0);
  strcpy(wiped, "another");
  pid_t child = fork();
  if (child == 0)
    _exit(wiped[0] == 0 ? 11 : 12);
  int status;
  CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 11);
  CHECK(strcmp(not_inherited, "mine") == 0 && dies(not_inherited));
  CHECK(huge[0] == 3 && huge[(4 << 20) - 1] == 3);
  CHECK(strcmp(locked, "locked") == 0);
  CHECK(strcmp(of_file, "from the file") == 0 && strcmp(of_file + 3 * PAGE, "private change") == 0);
  CHECK(strcmp(shared_file + 5 * PAGE, "shared change") == 0);
  strcpy(shared_file + 6 * PAGE, "later");
  file = open("/var/tmp/private", O_RDONLY);
  char text[32] = "";
  CHECK(pread(file, text, 5, 6 * PAGE) == 5 && strcmp(text, "later") == 0);
  CHECK(pread(file, text, 14, 3 * PAGE) == 14 && text[0] == 0);
  CHECK(strcmp(of_deleted, "gone") == 0 && strcmp(of_deleted + PAGE, "changed") == 0);
  CHECK(strcmp(heap + 10 * PAGE, "in the heap") == 0);
  CHECK(sbrk(0) == heap + 64 * PAGE && sbrk(16 * PAGE) == heap + 64 * PAGE);
  heap[70 * PAGE] = 1;
  CHECK(sbrk(-80 * PAGE) == heap + 80 * PAGE && sbrk(0) == heap);
  CHECK(initialised == 777 && zeroed == 888 && relocated == printf);
  if (is_locked) {
    unsigned char resident = 0;
    CHECK(mincore(locked, PAGE, &resident) == 0 && (resident & 1));
    char line[256], found = 0;
    FILE *status_file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status_file))
      found |= strncmp(line, "VmLck:", 6) == 0 && atoi(line + 6) >= 4;
    fclose(status_file);
    CHECK(found);
  }
  char *later = map(1 << 20, PROT_READ | PROT_WRITE);
  memset(later, 1, 1 << 20);
  finish();
}
