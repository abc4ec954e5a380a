/* The setup plan of sandbox-init. */
#include <string.h>

#include "fuzz.h"
#include "init/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  static struct policy policy;
  struct plan_reader reader;
  if (!plan_open(&reader, bytes, size, &policy))
    return 0;
  REQUIRE(strlen(policy.sandbox_id) + 1 == policy.sandbox_id_size);
  struct plan_op op;
  volatile uint8_t seen = 0;
  uint32_t count = 0;
  while (plan_next_op(&reader, &op) == PLAN_OP) {
    for (int i = 0; i < 3; i++)
      seen = (uint8_t)strlen(op.string[i]);
    for (uint32_t i = 0; i < op.data_size; i++)
      seen = op.data[i];
    REQUIRE(++count <= VENUS_MAX_PLAN_OPS);
  }
  (void)seen;
  return 0;
}
