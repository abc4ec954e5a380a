/* Writes, discards, grows and replaces memory step by step, as it is told, and can say whether it holds
 * what the steps so far make of it: byte for byte, beside a second copy that is made from nothing. */
#include "../fidelity.h"

#include <sys/mman.h>

#define PAGE 4096
#define PAGES 4096
#define REGIONS 4
#define REGION (64 * PAGE)

struct memory {
  char *big;
  char *regions[REGIONS];
  size_t sizes[REGIONS];
};

static char *map(size_t bytes) {
  char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MUST(memory != MAP_FAILED);
  return memory;
}

static uint64_t random_state;
static uint64_t random_below(uint64_t limit) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (random_state >> 33) % limit;
}

static void apply(struct memory *memory, uint64_t number) {
  random_state = number + 1;
  for (int i = 0; i < 40; i++) {
    uint64_t *page = (uint64_t *)(memory->big + random_below(PAGES) * PAGE);
    page[random_below(PAGE / 8)] = number * 1000003 + (uint64_t)i;
  }
  for (int i = 0; i < 3; i++)
    MUST(madvise(memory->big + random_below(PAGES) * PAGE, PAGE, MADV_DONTNEED) == 0);
  memset(memory->big + random_below(PAGES) * PAGE, 0, PAGE);
  size_t region = number % REGIONS;
  if (number % 8 < 4) {
    munmap(memory->regions[region], memory->sizes[region]);
    memory->sizes[region] = REGION;
    memory->regions[region] = map(REGION);
  } else {
    memory->regions[region] =
        mremap(memory->regions[region], memory->sizes[region], 2 * REGION, MREMAP_MAYMOVE);
    MUST(memory->regions[region] != MAP_FAILED);
    memory->sizes[region] = 2 * REGION;
  }
  memory->regions[region][number * 64 % REGION] = (char)(number + 1);
}

static struct memory fresh(void) {
  struct memory memory;
  memory.big = map(PAGES * PAGE);
  for (size_t i = 0; i < PAGES * PAGE; i += 8)
    *(uint64_t *)(memory.big + i) = i * 2654435761u;
  for (int i = 0; i < REGIONS; i++) {
    memory.regions[i] = map(REGION);
    memory.sizes[i] = REGION;
  }
  return memory;
}

static int same(const struct memory *a, const struct memory *b) {
  int equal = memcmp(a->big, b->big, PAGES * PAGE) == 0;
  for (int i = 0; i < REGIONS; i++)
    equal &= a->sizes[i] == b->sizes[i] && memcmp(a->regions[i], b->regions[i], a->sizes[i]) == 0;
  return equal;
}

int main(void) {
  struct memory memory = fresh();
  write_file(READY_FILE, "ready");
  char asked[64], done[64];
  for (uint64_t number = 0;; number++) {
    snprintf(asked, sizeof asked, "/var/tmp/step-%lu", (unsigned long)number);
    snprintf(done, sizeof done, "/var/tmp/done-%lu", (unsigned long)number);
    while (access(asked, F_OK) < 0 && access(GO_FILE, F_OK) < 0)
      pause_ms(1);
    if (access(GO_FILE, F_OK) == 0) {
      struct memory model = fresh();
      for (uint64_t i = 0; i < number; i++)
        apply(&model, i);
      CHECK(same(&memory, &model));
      finish();
    }
    apply(&memory, number);
    write_file(done, "done");
  }
}
