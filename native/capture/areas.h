// The mappings of a process as /proc/<pid>/smaps lists them. Pure parsing.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "memory/page_runs.h"

namespace venus {

struct Area {
    PageRun run;
    uint32_t protection;  // PROT_*
    bool shared;
    uint64_t offset;
    uint64_t inode;
    std::string name;             // last column: path, "[heap]", ""
    std::set<std::string> flags;  // VmFlags
    unsigned protection_key = 0;
};

std::vector<Area> parse_areas(const std::string &smaps);

}  // namespace venus
