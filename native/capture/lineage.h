// What a sandbox was forked from, if it was.
#pragma once

#include <vector>

#include "memory/extent.h"

namespace venus {

struct Lineage {
    std::vector<SealedExtent> extents;
    std::vector<FileIdentity> plans;
};

}  // namespace venus
