// A captured tree becomes a plan: bytes that any fresh sandbox of the same kernel can run.
#pragma once

#include "restore/image.h"

namespace venus {

struct RestorePlan {
    Bytes bytes;             // what the sealed plan file contains
    uint64_t base;           // where it must be mapped
    uint64_t entry;          // offset of the code to jump to, with the vDSO's address in rdi
    pid_t coordinator;       // pid of the stub that starts it
    int first_descriptor;    // extents, externals, shared: received in this order from here on
    uint32_t shared_bytes;   // size of the shared file of each fork
    size_t operations;
};

// `runner`: the code of kernel_helpers/runner. `leave_out`: see PlanWriter.
RestorePlan make_restore_plan(const TreeImage &tree, const Bytes &runner,
                              const std::string &leave_out = "");

// What the shared page of a failed fork says, in words. Empty when nothing failed.
std::string describe_failure(const RestorePlan &plan, const void *shared_page);

}  // namespace venus
