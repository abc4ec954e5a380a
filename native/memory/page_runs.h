// Arithmetic on runs of pages.  Pure: no system calls, no memory of a process is touched.
// A run is a half-open, page-aligned, non-empty range of addresses; lists are sorted and disjoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace venus {

inline constexpr uint64_t kPageBytes = 4096;
inline constexpr uint64_t kHugePageBytes = 2u << 20;

struct PageRun {
    uint64_t start;
    uint64_t end;
    uint64_t size() const { return end - start; }
    bool operator==(const PageRun &) const = default;
};

// Joins runs whose gap is at most `max_gap_bytes`; then, while more than `max_runs` remain, joins
// over ever larger gaps, as long as they are together no larger than the runs (or a mebibyte).  The
// number of mappings is what a fork costs, a few zero pages are cheap.
std::vector<PageRun> coalesce(std::vector<PageRun> runs, uint64_t max_gap_bytes, size_t max_runs);

// The parts of `whole` that no run covers.
std::vector<PageRun> complement(PageRun whole, const std::vector<PageRun> &runs);

// What `a` or `b` covers.
std::vector<PageRun> unite(std::vector<PageRun> a, const std::vector<PageRun> &b);

// `runs` without what `holes` cover.
std::vector<PageRun> subtract(const std::vector<PageRun> &runs, const std::vector<PageRun> &holes);

// The parts of `runs` inside `whole`.
std::vector<PageRun> within(const std::vector<PageRun> &runs, PageRun whole);

uint64_t total_bytes(const std::vector<PageRun> &runs);

// Where each run lies in one extent.  Offsets grow.  Runs of at least a huge page keep
// offset == address (mod huge page), so that the kernel can map them by huge pages for reading.
struct ExtentLayout {
    std::vector<uint64_t> offsets;
    uint64_t size = 0;
};
ExtentLayout lay_out(const std::vector<PageRun> &runs);

}  // namespace venus
