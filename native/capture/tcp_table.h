// All TCP sockets of a network namespace as /proc/<pid>/net/tcp and tcp6 list them: also those that
// no process holds.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace venus {

// IPv4 addresses as ::ffff:a.b.c.d, so that both ends of a connection compare, whatever their family.
struct Endpoint {
    std::array<uint8_t, 16> address{};
    uint16_t port = 0;

    bool operator==(const Endpoint &) const = default;
    auto operator<=>(const Endpoint &) const = default;
    bool is_loopback() const;
    bool is_any() const;  // 0.0.0.0 or ::
    std::vector<uint8_t> socket_address(int family) const;
    std::string text() const;
};

// From a sockaddr_in or sockaddr_in6.
Endpoint endpoint_of(const std::vector<uint8_t> &socket_address);

struct TcpTableEntry {
    Endpoint local, remote;
    int state;  // TCP_ESTABLISHED, ...
    uint32_t write_queue, read_queue;
    uint64_t inode;  // 0: no process has a descriptor of it
};

// Of either file.
std::vector<TcpTableEntry> parse_tcp_table(const std::string &text);
// Both, of the network namespace of a process.
std::vector<TcpTableEntry> read_tcp_table(pid_t pid);

}  // namespace venus
