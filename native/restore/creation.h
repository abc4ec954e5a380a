// Who creates whom, and in which order. Pure.
//
// A process gets its session by birth, from the process that creates it at that moment.  So a child
// that still is in the session its parent has left is created before the parent's setsid().
// Processes whose creator is gone (orphans of init in somebody's session, groups and sessions
// without their leader) need a helper: a short-lived process with the right number that creates
// them or lends its number, and ends before the tree goes on. Orphans that a subreaper has adopted
// come to it in the same way, after those of init have come to init.
// Tables are shared with the creator: a process that shares one with its sibling is created by that.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "restore/image.h"

namespace venus {

struct Birth {
    std::optional<size_t> process;  // index in TreeImage; none: a helper
    pid_t pid;
    bool leads_session = false;
    bool leads_group = false;
    bool child_of_init = false;  // created for init, though by the coordinator
    bool by_sibling = false;     // created for its creator's parent
    bool adopts = false;         // is a subreaper when late helpers end
    bool late = false;           // a helper that ends after the others
    uint64_t shares = 0;         // tables that it has in common with its creator: flags of clone(2)
    const Birth *creator = nullptr;  // none: the coordinator
    std::vector<std::unique_ptr<Birth>> before_session, after_session;
};

struct CreationPlan {
    pid_t coordinator;
    pid_t spare;  // of a process that ends before any of the tree is born
    std::vector<std::unique_ptr<Birth>> first;  // by the coordinator
    size_t births = 0;
    bool adoptions = false;  // some birth adopts
};

CreationPlan plan_creation(const TreeImage &tree);

}  // namespace venus
