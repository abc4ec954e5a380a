// Which pages of a process hold content of its own: the PAGEMAP_SCAN ioctl.
#pragma once

#include <string>
#include <vector>

#include "memory/page_runs.h"
#include "os/fd.h"

namespace venus {

class PageScan {
public:
    explicit PageScan(const std::string &pagemap_path);

    // Pages that exist only in this process: anonymous or copied on write, in memory or swapped.
    // Not "writable": relocated read-only data of a file is private too.
    std::vector<PageRun> private_pages(PageRun area) const;
    // Private pages that were written since protect_pages. pre: the area is under a WriteProtection.
    std::vector<PageRun> written_pages(PageRun area) const;
    void protect_pages(PageRun area) const;
    // Pages under MADV_GUARD_INSTALL.
    std::vector<PageRun> guards(PageRun area) const;

private:
    std::vector<PageRun> scan(PageRun area, uint64_t inverted, uint64_t all, uint64_t any,
                              uint64_t flags = 0) const;

    std::string path_;
    os::UniqueFd fd_;
};

}  // namespace venus
