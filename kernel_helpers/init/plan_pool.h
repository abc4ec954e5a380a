/* What init itself reads of a restore plan and of the record that starts it. Pure: no system call. */
#ifndef VENUS_INIT_PLAN_POOL_H
#define VENUS_INIT_PLAN_POOL_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stdint.h>

#include "venus_restore_format.h"

/* Descriptors that a start names have numbers below this. */
#define PLAN_MAX_DESCRIPTOR (1u << 20)

/* The filter for calls on pool memory, and which descriptors are extents of the pool. Both lie in the
 * plan, and are not aligned there. */
struct plan_pool {
  const uint8_t *filter; /* filter_count struct sock_filter; 0: there is no filter */
  uint16_t filter_count;
  uint32_t count;
  const uint8_t *indices; /* count uint32_t, each below the fd_count of the start */
};

bool plan_start_is_valid(const struct vr_start *start);

/* `plan` are start->plan_bytes bytes of a valid start. 0 or an errno. */
int plan_pool_read(const struct vr_start *start, const uint8_t *plan, struct plan_pool *pool);

/* Relative to the first descriptor. */
uint32_t plan_pool_index(const struct plan_pool *pool, uint32_t i);

#endif
