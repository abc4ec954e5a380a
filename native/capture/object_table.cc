#include "capture/object_table.h"

#include <unistd.h>

#include <algorithm>

#include "os/checked.h"

namespace venus {
namespace {

constexpr size_t kCopyBytes = 256 * 1024;

}  // namespace

uint32_t CaptureState::add_object(OpenFile file, os::UniqueFd duplicate)
{
    image.objects.push_back(std::move(file));
    object_files.push_back(std::move(duplicate));
    return static_cast<uint32_t>(image.objects.size() - 1);
}

uint32_t CaptureState::add_extent(SealedExtent extent)
{
    image.extents.push_back({extent.size, extent.anonymous});
    extents.push_back(std::move(extent));
    return static_cast<uint32_t>(extents.size() - 1);
}

uint32_t CaptureState::use_inherited(size_t number)
{
    auto known = used_inherited.find(number);
    if (known == used_inherited.end())
        known = used_inherited.emplace(number, add_extent(duplicate(inherited[number], true))).first;
    return known->second;
}

std::vector<ExtentPiece> copy_shared_memory(CaptureState &state, int fd, uint64_t size)
{
    std::vector<PageRun> runs;
    off_t at = 0;
    while (static_cast<uint64_t>(at) < size) {
        off_t data = lseek(fd, at, SEEK_DATA);
        if (data < 0)
            break;  // ENXIO: only a hole is left
        off_t hole = checked(lseek(fd, data, SEEK_HOLE), "find a hole of", "shared memory");
        uint64_t end = (static_cast<uint64_t>(hole) + kPageBytes - 1) & ~(kPageBytes - 1);
        runs.push_back({static_cast<uint64_t>(data) & ~(kPageBytes - 1), end});
        at = hole;
    }
    std::vector<ExtentPiece> pieces;
    if (runs.empty())
        return pieces;
    ExtentLayout layout = lay_out(runs);
    ExtentWriter writer(layout.size);
    Bytes buffer(kCopyBytes);
    for (size_t i = 0; i < runs.size(); i++) {
        uint64_t end = std::min(runs[i].end, size);
        for (uint64_t from = runs[i].start; from < end; from += buffer.size()) {
            state.checkpoint();
            uint64_t wanted = std::min<uint64_t>(buffer.size(), end - from);
            ssize_t count = pread(fd, buffer.data(), wanted, static_cast<off_t>(from));
            if (count != static_cast<ssize_t>(wanted))
                throw os::Error("read", "shared memory", count < 0 ? errno : EIO);
            writer.write(layout.offsets[i] + (from - runs[i].start), buffer.data(), wanted);
        }
        pieces.push_back({runs[i], 0, layout.offsets[i]});
    }
    uint32_t extent = state.add_extent(writer.finish(false));
    for (ExtentPiece &piece : pieces)
        piece.extent = extent;
    return pieces;
}

}  // namespace venus
