#include "capture/areas.h"

#include <stdio.h>
#include <sys/mman.h>

#include <sstream>

#include "os/proc.h"

namespace venus {
namespace {

// "7f..-7f.. r-xp 00001000 fe:00 338944      /usr/lib/x"
bool parse_header(const std::string &line, Area &area)
{
    unsigned long start, end, offset, inode;
    unsigned major, minor;
    char mode[5];
    int name_at = 0;
    if (sscanf(line.c_str(), "%lx-%lx %4s %lx %x:%x %lu %n", &start, &end, mode, &offset, &major,
               &minor, &inode, &name_at) != 7)
        return false;
    area = {};
    area.run = {start, end};
    area.protection = (mode[0] == 'r' ? PROT_READ : 0u) | (mode[1] == 'w' ? PROT_WRITE : 0u) |
                      (mode[2] == 'x' ? PROT_EXEC : 0u);
    area.shared = mode[3] == 's';
    area.offset = offset;
    area.inode = inode;
    area.name = line.substr(static_cast<size_t>(name_at));
    return true;
}

}  // namespace

std::vector<Area> parse_areas(const std::string &smaps)
{
    std::vector<Area> areas;
    std::istringstream lines(smaps);
    for (std::string line; std::getline(lines, line);) {
        Area area;
        if (parse_header(line, area)) {
            areas.push_back(std::move(area));
        } else if (line.starts_with("VmFlags:") && !areas.empty()) {
            for (std::string &flag : proc::words(line.substr(8)))
                areas.back().flags.insert(std::move(flag));
        } else if (line.starts_with("ProtectionKey:") && !areas.empty()) {
            areas.back().protection_key = static_cast<unsigned>(std::stoul(line.substr(14)));
        }
    }
    return areas;
}

}  // namespace venus
