// Ids of the sandbox's user namespace against ids of the host. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace venus {

class IdMap {
public:
    // The text of /proc/<pid>/uid_map.
    explicit IdMap(const std::string &text);
    // Inside the sandbox; empty when the id has no name there.
    std::optional<uint32_t> inner(uint32_t host_id) const;

private:
    struct Range {
        uint32_t inner, host, count;
    };
    std::vector<Range> ranges_;
};

}  // namespace venus
