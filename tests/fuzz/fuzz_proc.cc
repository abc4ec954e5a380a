// Files of /proc, in which a sandbox chooses names, and says what is locked, watched and mounted.
// First byte: which of them. What is not understood throws, and the capture fails.
#include <exception>
#include <string>

#include "capture/areas.h"
#include "capture/id_map.h"
#include "capture/proc_lines.h"
#include "capture/tcp_table.h"
#include "fuzz.h"
#include "os/proc.h"

using namespace venus;

namespace {

void read_tcp(const std::string &text)
{
    for (const TcpTableEntry &entry : parse_tcp_table(text)) {
        entry.local.text();
        REQUIRE(endpoint_of(entry.remote.socket_address(10)).port == entry.remote.port);
    }
}

void read(unsigned kind, const std::string &text)
{
    switch (kind) {
    case 0: parse_areas(text); break;
    case 1: proc::fields(text); break;
    case 2: proc::stat_fields(text); break;
    case 3: proc::limits(text); break;
    case 4: read_tcp(text); break;
    case 5: IdMap(text).inner(1000); break;
    case 6: lock_lines(text); break;
    case 7: target_lines(text); break;
    case 8: timer_lines(text); break;
    case 9: posix_timer_lines(text); break;
    case 10: table_rows(text); break;
    case 11: mount_lines(text); break;
    default: proc::split(text, ',');
    }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    constexpr unsigned kKinds = 13;
    if (size == 0)
        return 0;
    try {
        read(bytes[0] % kKinds, std::string(bytes + 1, bytes + size));
    } catch (const std::exception &) {
        // Not understood, and said so.
    }
    return 0;
}
