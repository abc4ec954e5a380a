// Hands a plan and its descriptors to the coordinator that init has started.
#pragma once

#include <vector>

#include "restore/restore_plan.h"

namespace venus {

// `descriptors`: extents, externals, shared page, plan.
void send_plan(const RestorePlan &plan, int socket, const std::vector<int> &descriptors);

}  // namespace venus
