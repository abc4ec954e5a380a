#ifndef VENUS_INIT_SETUP_H
#define VENUS_INIT_SETUP_H

#include "plan.h"

/* Executes the plan in `plan_fd`. Fills the status record: READY, PLAN_INVALID or OP_FAILED. */
void setup_run(int plan_fd, struct policy *policy, struct venus_status *status);

#endif
