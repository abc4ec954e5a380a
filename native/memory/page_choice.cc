#include "memory/page_choice.h"

#include <algorithm>
#include <set>

namespace venus {
namespace {

using Extents = std::set<uint32_t>;

std::vector<PageRun> addresses(const std::vector<StoredRun> &runs)
{
    std::vector<PageRun> found;
    for (const StoredRun &run : runs)
        found.push_back(run.run);
    return found;
}

PageChoice choose(const PagesNow &now, const Extents &given_up, const ChoiceLimits &limits)
{
    std::vector<StoredRun> kept;
    std::vector<PageRun> left;
    for (const StoredRun &run : now.stored) {
        if (given_up.contains(run.extent))
            left.push_back(run.run);
        else
            kept.push_back(run);
    }
    // Pages that were discarded since: zero, or what lies below them in a file.
    std::vector<PageRun> gone = subtract(subtract(addresses(kept), now.own), now.fillers);
    std::vector<PageRun> again;
    for (const PageRun &run : left)
        for (const PageRun &part : within(now.own, run))
            again.push_back(part);
    PageChoice choice;
    choice.copied = coalesce(unite(now.changed, again), now.max_gap_bytes, limits.max_runs);
    choice.referenced = cut(kept, unite(choice.copied, gone));
    if (choice.referenced.size() + choice.copied.size() > limits.max_pieces) {
        choice.copied = coalesce(now.own, now.max_gap_bytes, limits.max_runs);
        choice.referenced.clear();
    }
    return choice;
}

std::vector<PageChoice> choose_all(const std::vector<PagesNow> &mappings, const Extents &given_up,
                                   const ChoiceLimits &limits)
{
    std::vector<PageChoice> choices;
    for (const PagesNow &now : mappings)
        choices.push_back(choose(now, given_up, limits));
    return choices;
}

}  // namespace

std::vector<StoredRun> cut(const std::vector<StoredRun> &runs, const std::vector<PageRun> &holes)
{
    std::vector<StoredRun> rest;
    for (const StoredRun &run : runs)
        for (const PageRun &part : complement(run.run, within(holes, run.run)))
            rest.push_back({part, run.extent, run.offset + (part.start - run.run.start)});
    return rest;
}

std::vector<StoredRun> within(const std::vector<StoredRun> &runs, PageRun whole)
{
    std::vector<StoredRun> inside;
    for (const StoredRun &run : runs) {
        uint64_t start = std::max(run.run.start, whole.start);
        uint64_t end = std::min(run.run.end, whole.end);
        if (start < end)
            inside.push_back({{start, end}, run.extent, run.offset + (start - run.run.start)});
    }
    return inside;
}

std::vector<PageChoice> choose_pages(const std::vector<PagesNow> &mappings,
                                     const std::vector<uint64_t> &extent_bytes,
                                     const ChoiceLimits &limits)
{
    std::vector<PageChoice> choices = choose_all(mappings, {}, limits);
    std::vector<uint64_t> used(extent_bytes.size());
    for (const PageChoice &choice : choices)
        for (const StoredRun &run : choice.referenced)
            used[run.extent] += run.run.size();
    Extents given_up;
    std::vector<uint32_t> fullest;
    for (uint32_t extent = 0; extent < used.size(); extent++) {
        if (used[extent] * 2 < extent_bytes[extent])
            given_up.insert(extent);
        else
            fullest.push_back(extent);
    }
    std::sort(fullest.begin(), fullest.end(),
              [&](uint32_t a, uint32_t b) { return used[a] > used[b]; });
    if (fullest.size() > limits.max_extents)
        given_up.insert(fullest.begin() + static_cast<ptrdiff_t>(limits.max_extents),
                        fullest.end());
    return given_up.empty() ? choices : choose_all(mappings, given_up, limits);
}

}  // namespace venus
