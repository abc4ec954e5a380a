/* Calls that act on anonymous memory and would act differently on the pool: discarding, growing,
 * moving; also by threads under a storm of signals, in a child, and after exec. */
#include "fidelity.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/ptrace.h>

#define PAGE 4096
#define BIG (1 << 20)
#define THREADS 4
#define ROUNDS 30
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

static char *map(size_t bytes) {
  char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MUST(memory != MAP_FAILED);
  return memory;
}

static char *filled(size_t bytes, int seed) {
  char *memory = map(bytes);
  for (size_t i = 0; i < bytes; i += 64)
    memory[i] = (char)(1 + (i / 64 + (size_t)seed) % 120);
  return memory;
}

static int holds(const char *memory, size_t bytes, int seed) {
  for (size_t i = 0; i < bytes; i += 64)
    if (memory[i] != (char)(1 + (i / 64 + (size_t)seed) % 120))
      return 0;
  return 1;
}

static int is_zero(const char *memory, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (memory[i] != 0)
      return 0;
  return 1;
}

static volatile sig_atomic_t signals;
static void on_signal(int number) {
  (void)number;
  signals++;
}

/* What an allocator does: purge runs of its memory and use them again. */
static char *arenas[2][THREADS], *growing[2][THREADS];
static int storm_number;
static volatile int thread_failures, may_be_interrupted;
static pthread_barrier_t barrier;

/* A handler that does not restart calls may end one before sandbox-init has seen it, which has no
 * effect then: the only way in which they are told from those of the original. */
static int discard(char *at, size_t bytes) {
  int result;
  do
    result = madvise(at, bytes, MADV_DONTNEED);
  while (result < 0 && errno == EINTR && may_be_interrupted);
  return result;
}

static char *grow(char *at, size_t from, size_t to) {
  char *result;
  do
    result = mremap(at, from, to, MREMAP_MAYMOVE);
  while (result == MAP_FAILED && errno == EINTR && may_be_interrupted);
  return result;
}

static void *purge(void *argument) {
  long number = (long)argument;
  char *arena = arenas[storm_number][number];
  pthread_barrier_wait(&barrier);
  for (int round = 0; round < ROUNDS || signals == 0; round++) { /* until one has come amid it */
    size_t at = (size_t)(round * 7 % 60) * 4 * PAGE;
    if (discard(arena + at, 4 * PAGE) != 0 || !is_zero(arena + at, 4 * PAGE))
      thread_failures++;
    memset(arena + at, 0x55, 4 * PAGE);
  }
  char *grown = grow(growing[storm_number][number], BIG, 3 * BIG);
  if (grown == MAP_FAILED || !holds(grown, BIG, (int)number) || !is_zero(grown + BIG, 2 * BIG))
    thread_failures++;
  return NULL;
}

static void check_threads(int storm, int flags) {
  storm_number = storm;
  may_be_interrupted = !(flags & SA_RESTART);
  pthread_t threads[THREADS];
  pthread_barrier_init(&barrier, NULL, THREADS + 1);
  for (long i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, purge, (void *)i);
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
  sigaction(SIGUSR1, &action, NULL);
  pthread_barrier_wait(&barrier);
  for (int i = 0; i < 400; i++) {
    pthread_kill(threads[i % THREADS], SIGUSR1);
    if (i % 20 == 0)
      pause_ms(1);
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  CHECK(thread_failures == 0);
  CHECK(signals > 0);
  signals = 0;
}

static char *plain, *freed, *guarded, *wiped, *constant, *partial, *in_place, *moved, *fixed, *left,
    *removed, *of_child, *sparse, *traced;

static void check_discards(void) {
  CHECK(madvise(plain, BIG, MADV_DONTNEED) == 0 && is_zero(plain, BIG));
  plain[5] = 1;
  CHECK(plain[5] == 1 && plain[PAGE] == 0);
  CHECK(madvise(partial + 3 * PAGE, 2 * PAGE, MADV_DONTNEED) == 0);
  CHECK(is_zero(partial + 3 * PAGE, 2 * PAGE) && holds(partial, 3 * PAGE, 3));
  CHECK(partial[5 * PAGE] == (char)(1 + (5 * PAGE / 64 + 3) % 120));
  CHECK(madvise(partial + 1, PAGE, MADV_DONTNEED) < 0 && errno == EINVAL);
  CHECK(madvise(freed, BIG, MADV_FREE) == 0);
  memset(freed, 9, BIG);
  CHECK(freed[0] == 9 && freed[BIG - 1] == 9);
  CHECK(madvise(constant, 4 * PAGE, MADV_DONTNEED) == 0 && is_zero(constant, 4 * PAGE));
  CHECK(madvise(removed, BIG, MADV_REMOVE) < 0 && errno == EINVAL && holds(removed, BIG, 9));
  if (madvise(guarded, 4 * PAGE, MADV_GUARD_INSTALL) == 0) {
    CHECK(madvise(guarded, 4 * PAGE, MADV_GUARD_REMOVE) == 0);
    CHECK(is_zero(guarded, 4 * PAGE) && guarded[4 * PAGE] != 0);
  }
  /* A hole at the end: what lies before it is discarded all the same. */
  CHECK(munmap(left + 8 * PAGE, PAGE) == 0);
  CHECK(madvise(left, 9 * PAGE, MADV_DONTNEED) < 0 && errno == ENOMEM && is_zero(left, 8 * PAGE));
}

static void check_inheritance(void) {
  CHECK(madvise(wiped, BIG, MADV_WIPEONFORK) == 0 && holds(wiped, BIG, 5));
  pid_t child = fork();
  if (child == 0) {
    int good = is_zero(wiped, BIG) && holds(of_child, BIG, 10) &&
               madvise(of_child, BIG, MADV_DONTNEED) == 0 && is_zero(of_child, BIG);
    char *bigger = mremap(of_child, BIG, 3 * BIG, MREMAP_MAYMOVE);
    _exit(good && bigger != MAP_FAILED && is_zero(bigger, 3 * BIG) ? 7 : 8);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
  CHECK(holds(of_child, BIG, 10));
  CHECK(madvise(of_child, BIG, MADV_MERGEABLE) == 0 && holds(of_child, BIG, 10));
}

static void check_growth(void) {
  CHECK(munmap(in_place + BIG, BIG) == 0);
  MUST(mremap(in_place, BIG, BIG + PAGE, 0) == in_place);
  CHECK(holds(in_place, BIG, 6) && is_zero(in_place + BIG, PAGE));
  MUST(mremap(in_place, BIG + PAGE, 2 * BIG, 0) == in_place);
  CHECK(holds(in_place, BIG, 6) && is_zero(in_place + BIG, BIG));
  char *grown = mremap(moved, BIG, 64 * BIG, MREMAP_MAYMOVE);
  CHECK(grown != MAP_FAILED && holds(grown, BIG, 7) && is_zero(grown + BIG, 63 * BIG));
  char *target = map(2 * BIG);
  CHECK(mremap(fixed, BIG, 2 * BIG, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
  CHECK(holds(target, BIG, 8) && is_zero(target + BIG, BIG));
  CHECK(madvise(target, PAGE, MADV_DONTNEED) == 0 && is_zero(target, PAGE));
  /* Full and empty parts of one area still are one area. */
  grown = mremap(sparse, 64 * PAGE, BIG, MREMAP_MAYMOVE);
  CHECK(grown != MAP_FAILED && grown[0] == 'a' && grown[40 * PAGE] == 'b' && grown[63 * PAGE] == 0);
  CHECK(grown == MAP_FAILED || is_zero(grown + 64 * PAGE, BIG - 64 * PAGE));
}

/* A debugger holds the thread: memory is emptied in place, and cannot grow. */
static void check_traced(void) {
  int go[2];
  MUST(pipe(go) == 0);
  pid_t child = fork();
  if (child == 0) {
    char byte;
    if (read(go[0], &byte, 1) != 1)
      _exit(1);
    int good = madvise(traced + PAGE, BIG / 2, MADV_DONTNEED) == 0 &&
               is_zero(traced + PAGE, BIG / 2) && traced[0] != 0 && traced[BIG - PAGE] != 0 &&
               madvise(traced, PAGE, MADV_FREE) == 0;
    traced[0] = 1;
    char *bigger = mremap(traced, BIG, 2 * BIG, MREMAP_MAYMOVE);
    _exit(good && (bigger == MAP_FAILED ? errno == ENOMEM : is_zero(bigger + BIG, BIG)) ? 7 : 8);
  }
  CHECK(ptrace(PTRACE_SEIZE, child, 0, 0) == 0);
  CHECK(write(go[1], "", 1) == 1);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
  close(go[0]);
  close(go[1]);
}

/* The filter outlives exec, and then means nothing. */
static int in_program(void) {
  char *memory = filled(4 << 20, 1);
  if (madvise(memory, 4 << 20, MADV_DONTNEED) != 0 || !is_zero(memory, 4 << 20))
    return 8;
  memory = mremap(memory, 4 << 20, 8 << 20, MREMAP_MAYMOVE);
  return memory != MAP_FAILED && is_zero(memory, 8 << 20) ? 7 : 8;
}

static void check_exec(void) {
  pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "discard", "program", NULL);
    _exit(9);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

int main(int argc, char **argv) {
  (void)argv;
  if (argc > 1)
    return in_program();
  plain = filled(BIG, 1);
  freed = filled(BIG, 2);
  partial = filled(BIG, 3);
  guarded = filled(BIG, 4);
  wiped = filled(BIG, 5);
  in_place = filled(2 * BIG, 6);
  map(PAGE);
  moved = filled(BIG, 7);
  fixed = filled(BIG, 8);
  removed = filled(BIG, 9);
  of_child = filled(BIG, 10);
  left = filled(BIG, 11);
  constant = filled(BIG, 12);
  traced = filled(BIG, 13);
  MUST(mprotect(constant, 4 * PAGE, PROT_READ) == 0);
  sparse = map(64 * PAGE);
  sparse[0] = 'a';
  sparse[40 * PAGE] = 'b';
  for (int i = 0; i < 2 * THREADS; i++) {
    arenas[i % 2][i / 2] = filled(BIG, 20 + i);
    growing[i % 2][i / 2] = filled(BIG, i / 2);
    map(PAGE);
  }
  ready_and_wait();
  check_discards();
  check_inheritance();
  check_growth();
  for (int storm = 0; storm < 2; storm++)
    check_threads(storm, storm == 0 ? SA_RESTART : 0);
  check_traced();
  check_exec();
  finish();
}
