// Pages that only one process has: found by capture_memory, put into extents here.
#pragma once

#include <optional>

#include "capture/page_copy.h"
#include "capture/write_tracking.h"

namespace venus {

// One mapping, as the kernel has it.
struct OwnPart {
    PageRun area;
    bool watched;  // under a userfaultfd: whether it is ours is checked
    // Below its own pages lies an extent of the template that the sandbox was forked from: its number
    // in CaptureState::inherited.
    std::optional<uint32_t> pool_extent = std::nullopt;
    uint64_t pool_offset = 0;
};

struct OwnPages {
    size_t mapping;  // index in ProcessImage::mappings
    std::vector<OwnPart> parts;  // one, but for what became several in a fork
    std::vector<PageRun> pages;
    bool anonymous = true;     // else what is discarded there is the content of a file
    bool drop_zeroes = true;
    bool watchable = true;     // its pages are in the page tables
    uint64_t max_gap_bytes = kMaxGapBytes;

    PageRun area() const { return {parts.front().area.start, parts.back().area.end}; }
};

// Gives the mappings their pieces.  `known`: what the last snapshot knew, or null without tracking;
// afterwards what this one knows, and everything is write-protected.
void store_own_pages(StoppedProcess &process, CaptureState &state, ProcessImage &image,
                     const PageScan &scan, const std::vector<OwnPages> &all, KnownProcess *known);

}  // namespace venus
