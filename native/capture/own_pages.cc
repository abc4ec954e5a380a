#include "capture/own_pages.h"

#include <algorithm>

namespace venus {
namespace {

constexpr size_t kMaxExtents = 8;
// Of a process that several snapshots have stored. Each costs a fork some microseconds.
constexpr size_t kMaxSeams = 256;

std::vector<PageRun> addresses(const std::vector<StoredRun> &runs)
{
    std::vector<PageRun> found;
    for (const StoredRun &run : runs)
        found.push_back(run.run);
    return found;
}

// Everything that may be referred to, by one row of numbers: extents that the last snapshot of this
// process knows, then those of the template that the sandbox was forked from.  What is used becomes part
// of this template.
class PoolExtents {
public:
    PoolExtents(CaptureState &state, const KnownProcess *known)
        : state_(state), known_(known), indices_(known ? known->extents.size() : 0)
    {
    }

    uint32_t number(uint32_t inherited) const
    {
        return static_cast<uint32_t>(indices_.size()) + inherited;
    }

    // What each holds.
    std::vector<uint64_t> stored_bytes() const
    {
        std::vector<uint64_t> bytes;
        for (size_t i = 0; i < indices_.size(); i++)
            bytes.push_back(known_->extents[i].stored_bytes);
        for (const SealedExtent &extent : state_.inherited)
            bytes.push_back(extent.memory_bytes());
        return bytes;
    }

    uint32_t use(uint32_t number)
    {
        if (number >= indices_.size())
            return state_.use_inherited(number - indices_.size());
        if (!indices_[number])
            indices_[number] = state_.add_extent(duplicate(known_->extents[number].extent, true));
        return *indices_[number];
    }

    // What the next snapshot may refer to: those in use, and what has just been copied.
    std::vector<KnownExtent> next(const std::vector<uint32_t> &made,
                                  std::map<uint32_t, uint32_t> &numbers)
    {
        std::vector<KnownExtent> extents;
        for (size_t i = 0; i < indices_.size(); i++) {
            if (!indices_[i])
                continue;
            numbers[*indices_[i]] = static_cast<uint32_t>(extents.size());
            extents.push_back({duplicate(known_->extents[i].extent, true),
                               known_->extents[i].stored_bytes});
        }
        for (uint32_t index : made) {
            numbers[index] = static_cast<uint32_t>(extents.size());
            extents.push_back({duplicate(state_.extents[index], true), 0});
        }
        return extents;
    }

private:
    CaptureState &state_;
    const KnownProcess *known_;
    std::vector<std::optional<uint32_t>> indices_;
};

PagesNow look(const PageScan &scan, const OwnPages &own, const KnownProcess *known,
              const PoolExtents &pool)
{
    PagesNow now{own.pages, {}, {}, {}, {}, own.max_gap_bytes};
    std::vector<PageRun> trusted;
    for (const OwnPart &part : own.parts) {
        if (part.pool_extent)
            now.pool.push_back({part.area, pool.number(*part.pool_extent), part.pool_offset});
        if (!known || !known->protection || !part.watched || !own.watchable)
            continue;
        for (const PageRun &run : subtract(within(known->protected_pages, part.area),
                                           scan.written_pages(part.area)))
            trusted.push_back(run);
        for (const StoredRun &run : within(known->stored, part.area))
            now.stored.push_back(run);
        // A page that is still the file's may have another content by now.
        if (own.anonymous || part.pool_extent)
            for (const PageRun &run : within(known->fillers, part.area))
                now.fillers.push_back(run);
    }
    now.changed = subtract(own.pages, trusted);
    return now;
}

// Protects what was stored. Returns the pages whose writing the next capture will see.
std::vector<PageRun> protect(StoppedProcess &process, const PageScan &scan,
                             const std::vector<OwnPages> &all, KnownProcess &known)
{
    std::vector<PageRun> pages;
    bool fresh = false;
    for (const OwnPages &own : all) {
        if (!own.watchable)
            continue;
        for (const OwnPart &part : own.parts) {
            std::vector<PageRun> here = within(own.pages, part.area);
            if (here.empty() && within(known.stored, part.area).empty())
                continue;
            bool covered = known.protection && known.protection->cover(part.area);
            if (!covered && !fresh) {
                protect_from(process, known);  // the first time, or after execve
                fresh = true;
                covered = known.protection && known.protection->cover(part.area);
            }
            if (!covered)
                continue;
            scan.protect_pages(part.area);
            pages.insert(pages.end(), here.begin(), here.end());
        }
    }
    return pages;
}

void remember(const ProcessImage &image, const std::vector<OwnPages> &all,
              const std::map<uint32_t, uint32_t> &numbers, KnownProcess &known)
{
    known.stored.clear();
    known.fillers.clear();
    for (const OwnPages &own : all) {
        if (!own.watchable)
            continue;
        std::vector<StoredRun> stored;
        for (const ExtentPiece &piece : image.mappings[own.mapping].pieces)
            if (auto number = numbers.find(piece.extent); number != numbers.end())
                stored.push_back({piece.run, number->second, piece.offset});
        for (const PageRun &run : subtract(addresses(stored), own.pages))
            known.fillers.push_back(run);
        known.stored.insert(known.stored.end(), stored.begin(), stored.end());
    }
}

}  // namespace

void store_own_pages(StoppedProcess &process, CaptureState &state, ProcessImage &image,
                     const PageScan &scan, const std::vector<OwnPages> &all, KnownProcess *known)
{
    PoolExtents extents(state, known);
    std::vector<PagesNow> now;
    for (const OwnPages &own : all)
        now.push_back(look(scan, own, known, extents));
    std::vector<PageChoice> choices =
        choose_pages(now, extents.stored_bytes(), {kMaxRunsPerArea, kMaxSeams, kMaxExtents});
    std::vector<PendingCopy> anonymous, of_files;
    for (size_t i = 0; i < all.size(); i++) {
        const OwnPages &own = all[i];
        Mapping &mapping = image.mappings[own.mapping];
        for (const PageRun &run : subtract(choices[i].copied, mapping.guards))
            (own.anonymous ? anonymous : of_files).push_back({own.mapping, run, own.drop_zeroes});
        for (const StoredRun &run : choices[i].referenced)
            mapping.pieces.push_back({run.run, extents.use(run.extent), run.offset});
    }
    std::vector<uint32_t> made;
    for (bool kind : {true, false})
        if (auto extent = copy_pages(process, state, image, kind ? anonymous : of_files, kind))
            made.push_back(*extent);
    auto is_lower = [](const ExtentPiece &a, const ExtentPiece &b) {
        return a.run.start < b.run.start;
    };
    for (const OwnPages &own : all) {
        std::vector<ExtentPiece> &pieces = image.mappings[own.mapping].pieces;
        std::sort(pieces.begin(), pieces.end(), is_lower);
    }
    if (!known)
        return;
    std::map<uint32_t, uint32_t> numbers;
    std::vector<KnownExtent> next = extents.next(made, numbers);
    remember(image, all, numbers, *known);
    for (const StoredRun &run : known->stored)
        if (run.extent >= next.size() - made.size())
            next[run.extent].stored_bytes += run.run.size();
    known->extents = std::move(next);
    known->protected_pages = protect(process, scan, all, *known);
}

}  // namespace venus
