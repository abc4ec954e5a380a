#include "memory/page_choice.h"

#include <algorithm>
#include <set>

namespace venus {
namespace {

using Extents = std::set<uint32_t>;
constexpr uint64_t kSmallestPieceBytes = 4 * kPageBytes;
constexpr uint64_t kLeastUse = 4;  // one part of so many

std::vector<PageRun> addresses(const std::vector<StoredRun> &runs)
{
    std::vector<PageRun> found;
    for (const StoredRun &run : runs)
        found.push_back(run.run);
    return found;
}

void sort_by_address(std::vector<StoredRun> &runs)
{
    std::sort(runs.begin(), runs.end(), [](const StoredRun &one, const StoredRun &two) {
        return one.run.start < two.run.start;
    });
}

// Pieces below `min_bytes` are copied, if that is what it takes.
PageChoice choose(const PagesNow &now, const Extents &given_up, uint64_t min_bytes,
                  const ChoiceLimits &limits)
{
    std::vector<StoredRun> kept;
    std::vector<PageRun> again;
    for (const StoredRun &run : now.stored) {
        if (!given_up.contains(run.extent))
            kept.push_back(run);
        else
            for (const PageRun &part : within(now.own, run.run))
                again.push_back(part);
    }
    // Pages that were discarded since.
    kept = cut(kept, subtract(subtract(addresses(kept), now.own), now.fillers));
    for (const StoredRun &run : cut(now.pool, unite(now.own, addresses(kept)))) {
        if (given_up.contains(run.extent))
            again.push_back(run.run);
        else
            kept.push_back(run);
    }
    sort_by_address(kept);
    PageChoice choice;
    choice.copied = coalesce(unite(now.changed, again), now.max_gap_bytes, limits.max_runs);
    choice.referenced = cut(kept, choice.copied);
    std::vector<PageRun> small;
    for (const StoredRun &run : choice.referenced)
        if (run.run.size() < min_bytes)
            small.push_back(run.run);
    if (!small.empty()) {
        choice.copied = coalesce(unite(choice.copied, small), now.max_gap_bytes, limits.max_runs);
        choice.referenced = cut(kept, choice.copied);
    }
    return choice;
}

size_t seams(const PageChoice &choice)
{
    std::vector<PageRun> pieces = addresses(choice.referenced);
    pieces.insert(pieces.end(), choice.copied.begin(), choice.copied.end());
    return pieces.size() - std::min(pieces.size(), unite(pieces, {}).size());
}

std::vector<PageChoice> choose_all(const std::vector<PagesNow> &mappings, const Extents &given_up,
                                   const ChoiceLimits &limits)
{
    for (uint64_t min_bytes = 0;; min_bytes = std::max(2 * min_bytes, kSmallestPieceBytes)) {
        std::vector<PageChoice> choices;
        size_t all_seams = 0, referenced = 0;
        for (const PagesNow &now : mappings) {
            choices.push_back(choose(now, given_up, min_bytes, limits));
            all_seams += seams(choices.back());
            referenced += choices.back().referenced.size();
        }
        // Half of what is allowed, or the next snapshot would be here again.
        if (referenced == 0 || all_seams <= (min_bytes == 0 ? limits.max_seams : limits.max_seams / 2))
            return choices;
    }
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
        if (used[extent] * kLeastUse < extent_bytes[extent])
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
