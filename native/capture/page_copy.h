// Pages of a stopped process, copied into an extent.
#pragma once

#include <optional>

#include "capture/object_table.h"
#include "capture/stopped_tree.h"

namespace venus {

// A gap of this many pages is cheaper than another mapping in every fork.
inline constexpr uint64_t kMaxGapBytes = 16 * kPageBytes;
// What lies between pages that a fork has written is in the pool already.
inline constexpr uint64_t kMaxPoolGapBytes = 4 * kPageBytes;
inline constexpr size_t kMaxRunsPerArea = 64;

struct PendingCopy {
    size_t mapping;
    PageRun run;
    bool drop_zeroes;  // pages of zeroes need not be stored
};

// All of it goes into one extent, which is not sealed yet; none when there is nothing to store.
// `anonymous`: see SealedExtent.
std::optional<uint32_t> copy_pages(const StoppedProcess &process, CaptureState &state,
                                   ProcessImage &image,
                                   const std::vector<PendingCopy> &copies, bool anonymous);

}  // namespace venus
