#include "capture/id_map.h"

#include <sstream>

namespace venus {

IdMap::IdMap(const std::string &text)
{
    std::istringstream lines(text);
    Range range;
    while (lines >> range.inner >> range.host >> range.count)
        ranges_.push_back(range);
}

std::optional<uint32_t> IdMap::inner(uint32_t host_id) const
{
    for (const Range &range : ranges_)
        if (host_id - range.host < range.count)
            return range.inner + (host_id - range.host);
    return std::nullopt;
}

}  // namespace venus
