#include "plan_pool.h"

#include <errno.h>
#include <string.h>

bool plan_start_is_valid(const struct vr_start *start) {
  return start->magic == VR_MAGIC && start->version == VR_VERSION && start->fd_count > 0 &&
         start->first_fd >= VR_MIN_FIRST_FD && start->first_fd < PLAN_MAX_DESCRIPTOR &&
         start->fd_count < PLAN_MAX_DESCRIPTOR && start->entry < start->plan_bytes &&
         start->plan_bytes >= sizeof(struct vr_header) &&
         start->plan_bytes <= UINT64_MAX - start->base;
}

static bool in_plan(const struct vr_start *start, uint64_t offset, uint64_t count, uint64_t size) {
  return offset <= start->plan_bytes && count <= (start->plan_bytes - offset) / size;
}

int plan_pool_read(const struct vr_start *start, const uint8_t *plan, struct plan_pool *pool) {
  struct vr_header header;
  memcpy(&header, plan, sizeof header);
  *pool = (struct plan_pool){0};
  if (header.filter_count == 0)
    return 0;
  if (!in_plan(start, header.filter, header.filter_count, sizeof(struct sock_filter)) ||
      !in_plan(start, header.pool, header.pool_count, sizeof(uint32_t)))
    return EBADMSG;
  if (header.pool_count > VR_MAX_POOL_EXTENTS || header.filter_count > BPF_MAXINSNS)
    return E2BIG;
  pool->filter = plan + header.filter;
  pool->filter_count = (uint16_t)header.filter_count;
  pool->indices = plan + header.pool;
  pool->count = header.pool_count;
  for (uint32_t i = 0; i < pool->count; i++)
    if (plan_pool_index(pool, i) >= start->fd_count)
      return EBADMSG;
  return 0;
}

uint32_t plan_pool_index(const struct plan_pool *pool, uint32_t i) {
  uint32_t index;
  memcpy(&index, pool->indices + i * sizeof index, sizeof index);
  return index;
}
