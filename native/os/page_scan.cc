#include "os/page_scan.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <array>

#include "os/checked.h"

namespace venus {
namespace {

// include/uapi/linux/fs.h of 6.15; older headers lack it.
struct PageRegion {
    uint64_t start, end, categories;
};
struct ScanArguments {
    uint64_t size, flags, start, end, walk_end, regions, regions_count, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
constexpr unsigned long kPagemapScan = _IOWR('f', 16, ScanArguments);
constexpr uint64_t kProtectMatching = 1;  // PM_SCAN_WP_MATCHING
constexpr uint64_t kWritten = 1 << 1, kFile = 1 << 2, kPresent = 1 << 3, kSwapped = 1 << 4, kZeroPage = 1 << 5,
                   kGuard = 1 << 8;
// No file page, not the zero page, no guard.
constexpr uint64_t kNotPrivate = kFile | kZeroPage | kGuard;

}  // namespace

PageScan::PageScan(const std::string &pagemap_path)
    : path_(pagemap_path),
      fd_(checked(open(pagemap_path.c_str(), O_RDONLY | O_CLOEXEC), "open", pagemap_path))
{
}

std::vector<PageRun> PageScan::scan(PageRun area, uint64_t inverted, uint64_t all, uint64_t any,
                                    uint64_t flags) const
{
    std::vector<PageRun> runs;
    std::array<PageRegion, 512> regions;
    uint64_t at = area.start;
    while (at < area.end) {
        ScanArguments arguments{};
        arguments.size = sizeof arguments;
        arguments.flags = flags;
        arguments.start = at;
        arguments.end = area.end;
        arguments.regions = reinterpret_cast<uint64_t>(regions.data());
        arguments.regions_count = regions.size();
        arguments.category_inverted = inverted;
        arguments.category_mask = all;
        arguments.category_anyof_mask = any;
        arguments.return_mask = kPresent | kSwapped;
        int found = checked(ioctl(fd_.get(), kPagemapScan, &arguments), "scan", path_);
        for (int i = 0; i < found; i++) {
            const PageRegion &region = regions[static_cast<size_t>(i)];
            if (!runs.empty() && runs.back().end == region.start)
                runs.back().end = region.end;
            else
                runs.push_back({region.start, region.end});
        }
        at = arguments.walk_end;
    }
    return runs;
}

std::vector<PageRun> PageScan::private_pages(PageRun area) const
{
    return scan(area, kNotPrivate, kNotPrivate, kPresent | kSwapped);
}

std::vector<PageRun> PageScan::written_pages(PageRun area) const
{
    return scan(area, kNotPrivate, kNotPrivate | kWritten, kPresent | kSwapped);
}

void PageScan::protect_pages(PageRun area) const
{
    // With a place for results, though nobody wants them: without one the kernel protects every page,
    // whatever was asked for, and what is not there becomes a marker that looks like a page.
    scan(area, kNotPrivate, kNotPrivate | kWritten, kPresent | kSwapped, kProtectMatching);
}

std::vector<PageRun> PageScan::guards(PageRun area) const
{
    return scan(area, 0, kGuard, 0);
}

}  // namespace venus
