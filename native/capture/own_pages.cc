#include "capture/own_pages.h"

#include <fcntl.h>

#include <algorithm>

#include "os/checked.h"

namespace venus {
namespace {

constexpr size_t kMaxExtents = 8;
// Of a mapping that several snapshots have stored. Each costs a fork some microseconds.
constexpr size_t kMaxPieces = 256;

std::vector<PageRun> addresses(const std::vector<StoredRun> &runs)
{
    std::vector<PageRun> found;
    for (const StoredRun &run : runs)
        found.push_back(run.run);
    return found;
}

PagesNow look(const PageScan &scan, const OwnPages &own, const KnownProcess *known)
{
    PagesNow now{own.pages, own.pages, {}, {}, own.max_gap_bytes};
    if (!known || !known->protection || !own.watched || !own.watchable)
        return now;
    std::vector<PageRun> trusted = subtract(within(known->protected_pages, own.area),
                                            scan.written_pages(own.area));
    now.changed = subtract(own.pages, trusted);
    now.stored = within(known->stored, own.area);
    // A page that is still the file's may have another content by now.
    if (own.anonymous || own.pool_extent)
        now.fillers = within(known->fillers, own.area);
    return now;
}

// Extents of the last snapshot, added to this one when they are first used.
class KnownExtents {
public:
    KnownExtents(CaptureState &state, const KnownProcess *known)
        : state_(state), known_(known), indices_(known ? known->extents.size() : 0)
    {
    }

    std::vector<uint64_t> stored_bytes() const
    {
        std::vector<uint64_t> bytes;
        for (size_t i = 0; i < indices_.size(); i++)
            bytes.push_back(known_->extents[i].stored_bytes);
        return bytes;
    }

    uint32_t use(uint32_t number)
    {
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
    static SealedExtent duplicate(const SealedExtent &extent, bool inherited)
    {
        os::UniqueFd fd(checked(fcntl(extent.fd.get(), F_DUPFD_CLOEXEC, 0), "duplicate", "extent"));
        return {std::move(fd), extent.size, extent.identity, inherited, extent.anonymous, {}};
    }

    CaptureState &state_;
    const KnownProcess *known_;
    std::vector<std::optional<uint32_t>> indices_;
};

void reference_pool(const OwnPages &own, const std::vector<PageRun> &covered, Mapping &mapping)
{
    if (!own.pool_extent)
        return;
    for (const PageRun &run : complement(own.area, covered))
        mapping.pieces.push_back(
            {run, *own.pool_extent, own.pool_offset + (run.start - own.area.start)});
}

// Protects what was stored. Returns the pages whose writing the next capture will see.
std::vector<PageRun> protect(StoppedProcess &process, const PageScan &scan,
                             const std::vector<OwnPages> &all, KnownProcess &known)
{
    std::vector<PageRun> pages;
    bool fresh = false;
    for (const OwnPages &own : all) {
        if (own.pages.empty() || !own.watchable)
            continue;
        bool covered = known.protection && known.protection->cover(own.area);
        if (!covered && !fresh) {
            protect_from(process, known);  // the first time, or after execve
            fresh = true;
            covered = known.protection && known.protection->cover(own.area);
        }
        if (!covered)
            continue;
        scan.protect_pages(own.area);
        pages.insert(pages.end(), own.pages.begin(), own.pages.end());
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
    std::vector<PagesNow> now;
    for (const OwnPages &own : all)
        now.push_back(look(scan, own, known));
    KnownExtents extents(state, known);
    std::vector<PageChoice> choices =
        choose_pages(now, extents.stored_bytes(), {kMaxRunsPerArea, kMaxPieces, kMaxExtents});
    std::vector<PendingCopy> anonymous, of_files;
    for (size_t i = 0; i < all.size(); i++) {
        const OwnPages &own = all[i];
        Mapping &mapping = image.mappings[own.mapping];
        for (const PageRun &run : subtract(choices[i].copied, mapping.guards))
            (own.anonymous ? anonymous : of_files).push_back({own.mapping, run, own.drop_zeroes});
        for (const StoredRun &run : choices[i].referenced)
            mapping.pieces.push_back({run.run, extents.use(run.extent), run.offset});
        reference_pool(own, unite(choices[i].copied, addresses(choices[i].referenced)), mapping);
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
