/* What sandbox-init reads of a restore: the record that starts it and the plan behind it; and the
 * report that a fork leaves about its pool. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "init/plan_pool.h"

static void read_plan(const uint8_t *bytes, size_t size) {
  struct vr_start start;
  if (size < sizeof start)
    return;
  memcpy(&start, bytes, sizeof start);
  if (!plan_start_is_valid(&start) || start.plan_bytes > size - sizeof start)
    return;
  struct plan_pool pool;
  volatile uint8_t seen = 0;
  if (plan_pool_read(&start, bytes + sizeof start, &pool))
    return;
  for (size_t i = 0; i < pool.filter_count * sizeof(struct sock_filter); i++)
    seen = pool.filter[i];
  for (uint32_t i = 0; i < pool.count; i++)
    REQUIRE(plan_pool_index(&pool, i) < start.fd_count);
  (void)seen;
}

static void read_report(const uint8_t *bytes, size_t size) {
  static struct vr_pool_report report;
  memset(&report, 0xee, sizeof report);
  memcpy(&report, bytes, size < sizeof report ? size : sizeof report);
  if (vr_pool_report_is_whole(&report, size))
    REQUIRE(vr_pool_report_size(&report) <= sizeof report);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  read_plan(bytes, size);
  read_report(bytes, size);
  return 0;
}
