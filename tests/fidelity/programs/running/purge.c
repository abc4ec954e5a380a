/* Threads that purge, grow and check their memory until they are told to stop. */
#include "../fidelity.h"

#include <pthread.h>
#include <sys/mman.h>

#define PAGE 4096
#define RUN (8 * PAGE)
#define RUNS 64
#define THREADS 3

static char *arenas[THREADS];
static volatile int wrong, rounds;

static char *map(size_t bytes) {
  char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MUST(memory != MAP_FAILED);
  return memory;
}

static void expect(int condition) {
  if (!condition)
    wrong++;
}

static void *work(void *argument) {
  char *arena = argument;
  for (unsigned round = 0; access(GO_FILE, F_OK) < 0; round++) {
    char *run = arena + round % RUNS * RUN;
    expect(madvise(run, RUN, MADV_DONTNEED) == 0);
    for (int i = 0; i < RUN; i += 512)
      expect(run[i] == 0);
    memset(run, (int)(1 + round % 100), RUN);
    char *moving = map(RUN);
    moving[0] = 5;
    moving = mremap(moving, RUN, 2 * RUN, MREMAP_MAYMOVE);
    expect(moving != MAP_FAILED && moving[0] == 5 && moving[RUN] == 0);
    munmap(moving, 2 * RUN);
    rounds++;
  }
  return NULL;
}

int main(void) {
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    arenas[i] = map(RUNS * RUN);
    memset(arenas[i], 77, RUNS * RUN);
    pthread_create(&threads[i], NULL, work, arenas[i]);
  }
  write_file(READY_FILE, "ready");
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  CHECK(wrong == 0);
  CHECK(rounds > 0);
  finish();
}
