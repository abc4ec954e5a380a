/* The plan parser of sandbox-init, on valid, damaged and random plans. */
#include <string.h>

#include "check.h"
#include "init/plan.h"

static struct policy policy;

struct image {
  size_t size;
  uint8_t bytes[1024];
};

static void put(struct image *image, const void *bytes, size_t size) {
  memcpy(image->bytes + image->size, bytes, size);
  image->size = (image->size + size + 7) & ~(size_t)7;
}

static struct image make_plan(void) {
  struct image image = {0};
  struct venus_plan_header header = {.magic = VENUS_PLAN_MAGIC,
                                     .version = VENUS_PROTOCOL_VERSION,
                                     .op_count = 2,
                                     .capability_mask = 5,
                                     .umask = 022,
                                     .rlimit_count = 1,
                                     .filter_count = 1,
                                     .sandbox_id_size = 3};
  put(&image, &header, sizeof header);
  put(&image, &(struct venus_rlimit){.resource = 7, .soft = 1, .hard = 2},
      sizeof(struct venus_rlimit));
  put(&image, "\6\0\0\0\0\0\377\177", 8);
  put(&image, "id", 3);
  struct venus_plan_op mount = {.size = sizeof mount + 24,
                                .kind = VENUS_OP_MOUNT,
                                .number = 14,
                                .string_size = {5, 6, 9}};
  put(&image, &mount, sizeof mount);
  put(&image, "proc\0/proc\0mode=755", 20);
  struct venus_plan_op write = {.size = sizeof write + 16,
                                .kind = VENUS_OP_WRITE_FILE,
                                .string_size = {3},
                                .data_size = 7};
  put(&image, &write, sizeof write);
  put(&image, "/f\0content", 10);
  uint32_t total = (uint32_t)image.size;
  memcpy(image.bytes + offsetof(struct venus_plan_header, total_size), &total, sizeof total);
  return image;
}

/* Reads the whole plan from a block of exactly its size; -1 if it is invalid, else operations. */
static int read_plan(const struct image *image, struct plan_op *last) {
  uint8_t *exact = malloc(image->size ? image->size : 1);
  memcpy(exact, image->bytes, image->size);
  struct plan_reader reader;
  int count = -1;
  if (plan_open(&reader, exact, image->size, &policy)) {
    enum plan_next next;
    size_t touched = 0;
    count = 0;
    while ((next = plan_next_op(&reader, last)) == PLAN_OP) {
      count++;
      for (int i = 0; i < 3; i++)
        touched += strlen(last->string[i]);
      for (uint32_t i = 0; i < last->data_size; i++)
        touched += last->data[i];
    }
    if (next == PLAN_INVALID || touched == SIZE_MAX)
      count = -1;
  }
  free(exact);
  return count;
}

static void test_valid(void) {
  struct image image = make_plan();
  struct plan_op op;
  CHECK(read_plan(&image, &op) == 2);
  CHECK(op.kind == VENUS_OP_WRITE_FILE && op.data_size == 7);
  CHECK(policy.capability_mask == 5 && policy.filter_count == 1 && policy.rlimits[0].hard == 2);
  CHECK(strcmp(policy.sandbox_id, "id") == 0);
}

static void test_every_cut(void) {
  struct image whole = make_plan();
  struct plan_op op;
  for (size_t size = 0; size < whole.size; size++) {
    struct image image = whole;
    image.size = size;
    CHECK(read_plan(&image, &op) == -1);
    uint32_t total = (uint32_t)size; /* also when the header agrees with the cut */
    memcpy(image.bytes + offsetof(struct venus_plan_header, total_size), &total, sizeof total);
    CHECK(read_plan(&image, &op) == -1);
  }
}

static void test_mutations(void) {
  struct image whole = make_plan();
  struct plan_op op;
  static const uint8_t interesting[] = {0, 1, 8, 127, 128, 255};
  uint32_t state = 1;
  for (int round = 0; round < 200000; round++) {
    struct image image = whole;
    for (int i = 0; i < 3; i++) {
      state = state * 1664525u + 1013904223u;
      image.bytes[(state >> 8) % image.size] = interesting[(state >> 4) % 6];
    }
    read_plan(&image, &op);
  }
}

int main(void) {
  test_valid();
  test_every_cut();
  test_mutations();
  return 0;
}
