/* The setup plan: validated here (pure, no system call), executed in setup.c. */
#ifndef VENUS_INIT_PLAN_H
#define VENUS_INIT_PLAN_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "venus_init_protocol.h"

/* What every exec child gets. Copied out of the plan, which is unmapped after setup. */
struct policy {
  uint64_t capability_mask;
  int32_t oom_score_adj;
  uint32_t umask;
  uint32_t rlimit_count;
  uint32_t filter_count;
  uint32_t sandbox_id_size;
  int devpts_fd; /* root of the sandbox's devpts, -1 without one; not of the plan */
  char sandbox_id[VENUS_MAX_SANDBOX_ID];
  struct venus_rlimit rlimits[VENUS_MAX_RLIMITS];
  struct sock_filter filter[VENUS_MAX_FILTER_INSTRUCTIONS];
};

struct plan_op {
  uint16_t kind;
  uint16_t flags;
  uint32_t slot;
  uint64_t number;
  uint64_t number2;
  const char *string[3]; /* "" when absent */
  const uint8_t *data;
  uint32_t data_size;
};

struct plan_reader {
  const uint8_t *bytes;
  size_t size;
  size_t offset;
  uint32_t op_count;
  uint32_t next_index;
};

/* Checks the header, fills `policy`. False: the plan is invalid. */
bool plan_open(struct plan_reader *reader, const uint8_t *bytes, size_t size,
               struct policy *policy);

enum plan_next { PLAN_OP, PLAN_END, PLAN_INVALID };

/* The next operation; its strings point into the plan. */
enum plan_next plan_next_op(struct plan_reader *reader, struct plan_op *op);

#endif
