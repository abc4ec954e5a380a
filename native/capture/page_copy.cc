#include "capture/page_copy.h"

#include <sys/uio.h>

#include <algorithm>

namespace venus {
namespace {

// Read and looked through while it is in the cache, then written: into a file whose pages appear by
// being written, so that nobody zeroes or faults them in first.
constexpr size_t kCopyBytes = 256 * 1024;

void read_pages(const StoppedProcess &process, uint64_t at, void *into, size_t bytes)
{
    iovec local = {into, bytes}, remote = {reinterpret_cast<void *>(at), bytes};
    // Does not read what the program itself may not.
    if (process_vm_readv(process.first_host_tid(), &local, 1, &remote, 1, 0) !=
        static_cast<ssize_t>(bytes))
        process.read_memory(at, into, bytes);
}

class Copier {
public:
    Copier(const StoppedProcess &process, ExtentWriter &writer,
           const std::function<void()> &checkpoint)
        : process_(process), writer_(writer), checkpoint_(checkpoint), buffer_(kCopyBytes)
    {
    }

    // What was stored, as runs of addresses. The run's first byte lies at `offset`.
    std::vector<PageRun> copy(const PendingCopy &copy, uint64_t offset)
    {
        std::vector<PageRun> filled;
        for (uint64_t at = copy.run.start; at < copy.run.end;) {
            checkpoint_();
            uint64_t bytes = std::min<uint64_t>(kCopyBytes, copy.run.end - at);
            read_pages(process_, at, buffer_.data(), bytes);
            for (const PageRun &run : content(bytes, copy.drop_zeroes)) {
                writer_.write(offset + (at - copy.run.start) + run.start,
                              buffer_.data() + run.start, run.size());
                if (!filled.empty() && filled.back().end == at + run.start)
                    filled.back().end = at + run.end;
                else
                    filled.push_back({at + run.start, at + run.end});
            }
            at += bytes;
        }
        return filled;
    }

private:
    // Offsets in the buffer.
    std::vector<PageRun> content(uint64_t bytes, bool drop_zeroes) const
    {
        std::vector<PageRun> runs;
        if (!drop_zeroes)
            return {{0, bytes}};
        for (uint64_t page = 0; page < bytes; page += kPageBytes) {
            if (is_zero_page(buffer_.data() + page))
                continue;
            if (!runs.empty() && runs.back().end == page)
                runs.back().end += kPageBytes;
            else
                runs.push_back({page, page + kPageBytes});
        }
        return runs;
    }

    const StoppedProcess &process_;
    ExtentWriter &writer_;
    const std::function<void()> &checkpoint_;
    std::vector<uint8_t> buffer_;
};

}  // namespace

std::optional<uint32_t> copy_pages(const StoppedProcess &process, CaptureState &state,
                                   ProcessImage &image, const std::vector<PendingCopy> &copies,
                                   bool anonymous)
{
    std::vector<PageRun> runs;
    for (const PendingCopy &copy : copies)
        runs.push_back(copy.run);
    ExtentLayout layout = lay_out(runs);
    ExtentWriter writer(layout.size);
    Copier copier(process, writer, state.checkpoint);
    std::vector<std::pair<size_t, ExtentPiece>> pieces;
    for (size_t i = 0; i < copies.size(); i++) {
        std::vector<PageRun> filled = copier.copy(copies[i], layout.offsets[i]);
        auto offset_of = [&](uint64_t address) {
            return layout.offsets[i] + (address - runs[i].start);
        };
        for (const PageRun &run : coalesce(filled, kMaxGapBytes, kMaxRunsPerArea)) {
            // Pages of the gaps must exist: reading a hole would allocate in the sealed pool.
            for (const PageRun &gap : complement(run, within(filled, run)))
                writer.fill(offset_of(gap.start), gap.size());
            writer.prefer_huge(offset_of(run.start), run.size());
            pieces.push_back({copies[i].mapping, {run, 0, offset_of(run.start)}});
        }
    }
    if (pieces.empty())
        return std::nullopt;
    uint32_t extent = state.add_extent(writer.finish(anonymous));
    for (auto &[mapping, piece] : pieces) {
        piece.extent = extent;
        image.mappings[mapping].pieces.push_back(piece);
    }
    return extent;
}

}  // namespace venus
