// Which pages of a process are copied again, and which are where the last snapshot put them.  Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/page_runs.h"

namespace venus {

// A run of pages that lies in an extent.
struct StoredRun {
    PageRun run;
    uint32_t extent;
    uint64_t offset;
    bool operator==(const StoredRun &) const = default;
};

// Of one mapping.  Pages that are in none of these are zero, or what lies below them in a file.
struct PagesNow {
    std::vector<PageRun> own;      // what only this process has
    std::vector<PageRun> changed;  // the part of `own` that the last snapshot does not know
    std::vector<StoredRun> stored;
    std::vector<PageRun> fillers;  // parts of `stored` that were no pages of its own then
    std::vector<StoredRun> pool;   // what the process maps of extents: below its own pages
    uint64_t max_gap_bytes = 0;
};

struct PageChoice {
    std::vector<PageRun> copied;
    std::vector<StoredRun> referenced;  // by addresses
};

struct ChoiceLimits {
    size_t max_runs;     // copied, per mapping
    size_t max_seams;    // of all mappings: where two pieces meet that one would do for
    size_t max_extents;  // the emptiest above that are copied away
};

// `extent_bytes`: what was stored in each extent.  Extents of which less than a quarter is still used
// are copied away too, so that what nobody needs does not stay because of the rest.  Where there are
// too many seams, the smallest pieces are copied into one.
std::vector<PageChoice> choose_pages(const std::vector<PagesNow> &mappings,
                                     const std::vector<uint64_t> &extent_bytes,
                                     const ChoiceLimits &limits);

// `runs` without what `holes` cover.
std::vector<StoredRun> cut(const std::vector<StoredRun> &runs, const std::vector<PageRun> &holes);
// The parts of `runs` inside `whole`.
std::vector<StoredRun> within(const std::vector<StoredRun> &runs, PageRun whole);

}  // namespace venus
