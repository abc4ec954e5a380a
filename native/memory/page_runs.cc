#include "memory/page_runs.h"

#include <algorithm>

namespace venus {
namespace {

constexpr uint64_t kMinJoinedBytes = 1u << 20;

std::vector<PageRun> join_within(const std::vector<PageRun> &runs, uint64_t max_gap_bytes)
{
    std::vector<PageRun> joined;
    for (const PageRun &run : runs) {
        if (!joined.empty() && run.start - joined.back().end <= max_gap_bytes)
            joined.back().end = run.end;
        else
            joined.push_back(run);
    }
    return joined;
}

}  // namespace

std::vector<PageRun> coalesce(std::vector<PageRun> runs, uint64_t max_gap_bytes, size_t max_runs)
{
    runs = join_within(runs, max_gap_bytes);
    if (runs.size() <= max_runs || max_runs == 0)
        return runs;
    // Join over the smallest gaps first, and over no more than are too much.
    std::vector<uint64_t> gaps;
    for (size_t i = 1; i < runs.size(); i++)
        gaps.push_back(runs[i].start - runs[i - 1].end);
    std::sort(gaps.begin(), gaps.end());
    uint64_t left = std::max(total_bytes(runs), kMinJoinedBytes), largest = max_gap_bytes;
    for (size_t i = 0; i < runs.size() - max_runs && gaps[i] <= left; i++) {
        left -= gaps[i];
        largest = gaps[i];
    }
    return join_within(runs, largest);
}

std::vector<PageRun> complement(PageRun whole, const std::vector<PageRun> &runs)
{
    std::vector<PageRun> rest;
    uint64_t at = whole.start;
    for (const PageRun &run : runs) {
        if (run.start > at)
            rest.push_back({at, run.start});
        at = std::max(at, run.end);
    }
    if (at < whole.end)
        rest.push_back({at, whole.end});
    return rest;
}

std::vector<PageRun> unite(std::vector<PageRun> a, const std::vector<PageRun> &b)
{
    a.insert(a.end(), b.begin(), b.end());
    std::sort(a.begin(), a.end(),
              [](const PageRun &one, const PageRun &two) { return one.start < two.start; });
    std::vector<PageRun> united;
    for (const PageRun &run : a) {
        if (!united.empty() && run.start <= united.back().end)
            united.back().end = std::max(united.back().end, run.end);
        else
            united.push_back(run);
    }
    return united;
}

std::vector<PageRun> within(const std::vector<PageRun> &runs, PageRun whole)
{
    auto at = std::lower_bound(runs.begin(), runs.end(), whole.start,
                               [](const PageRun &run, uint64_t start) { return run.end <= start; });
    std::vector<PageRun> inside;
    for (; at != runs.end() && at->start < whole.end; ++at)
        inside.push_back({std::max(at->start, whole.start), std::min(at->end, whole.end)});
    return inside;
}

std::vector<PageRun> subtract(const std::vector<PageRun> &runs, const std::vector<PageRun> &holes)
{
    std::vector<PageRun> rest;
    for (const PageRun &run : runs) {
        for (const PageRun &part : complement(run, within(holes, run)))
            rest.push_back(part);
    }
    return rest;
}

uint64_t total_bytes(const std::vector<PageRun> &runs)
{
    uint64_t bytes = 0;
    for (const PageRun &run : runs)
        bytes += run.size();
    return bytes;
}

ExtentLayout lay_out(const std::vector<PageRun> &runs)
{
    ExtentLayout layout;
    for (const PageRun &run : runs) {
        uint64_t offset = layout.size;
        if (run.size() >= kHugePageBytes)
            offset += (run.start - offset) % kHugePageBytes;
        layout.offsets.push_back(offset);
        layout.size = offset + run.size();
    }
    return layout;
}

}  // namespace venus
