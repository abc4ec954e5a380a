// What passes between the daemon and the coordinator that init has started.
#pragma once

#include <vector>

#include "restore/restore_plan.h"

namespace venus {

// `descriptors`: extents, externals, shared page, plan.
void send_plan(const RestorePlan &plan, int socket, const std::vector<int> &descriptors);

// Lets the tree go on once it is built, which may be before or after that. True if it was built and
// nothing that could fail is left.
bool release_tree(int shared_page);

}  // namespace venus
