#include "capture/tcp_table.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "os/proc.h"

namespace venus {
namespace {

constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// "0100007F:1F90": words of the address as numbers of this machine, port.
std::optional<Endpoint> parse_endpoint(const std::string &text)
{
    constexpr size_t kWordDigits = 8;
    size_t colon = text.find(':');
    if (colon != kWordDigits && colon != 4 * kWordDigits)
        return std::nullopt;
    Endpoint endpoint;
    size_t at = 0;
    if (colon == kWordDigits) {
        std::copy(kMapped.begin(), kMapped.end(), endpoint.address.begin());
        at = kMapped.size();
    }
    for (size_t digit = 0; digit < colon; digit += kWordDigits, at += sizeof(uint32_t)) {
        auto word = static_cast<uint32_t>(std::stoul(text.substr(digit, kWordDigits), nullptr, 16));
        memcpy(endpoint.address.data() + at, &word, sizeof word);
    }
    endpoint.port = static_cast<uint16_t>(std::stoul(text.substr(colon + 1), nullptr, 16));
    return endpoint;
}

bool is_mapped(const Endpoint &endpoint)
{
    return std::equal(kMapped.begin(), kMapped.end(), endpoint.address.begin());
}

}  // namespace

bool Endpoint::is_loopback() const
{
    constexpr uint8_t kLoopbackNet = 127;
    in6_addr loopback = IN6ADDR_LOOPBACK_INIT;
    return is_mapped(*this) ? address[kMapped.size()] == kLoopbackNet
                            : memcmp(address.data(), &loopback, sizeof loopback) == 0;
}

bool Endpoint::is_any() const
{
    auto first = is_mapped(*this) ? address.begin() + kMapped.size() : address.begin();
    return std::all_of(first, address.end(), [](uint8_t byte) { return byte == 0; });
}

std::vector<uint8_t> Endpoint::socket_address(int family) const
{
    sockaddr_in6 six{};
    sockaddr_in four{};
    six.sin6_family = AF_INET6;
    four.sin_family = AF_INET;
    six.sin6_port = four.sin_port = htons(port);
    memcpy(&six.sin6_addr, address.data(), sizeof six.sin6_addr);
    memcpy(&four.sin_addr, address.data() + kMapped.size(), sizeof four.sin_addr);
    bool is_six = family == AF_INET6;
    auto *first = is_six ? reinterpret_cast<uint8_t *>(&six) : reinterpret_cast<uint8_t *>(&four);
    return {first, first + (is_six ? sizeof six : sizeof four)};
}

std::string Endpoint::text() const
{
    char name[INET6_ADDRSTRLEN];
    bool mapped = is_mapped(*this);
    inet_ntop(mapped ? AF_INET : AF_INET6, address.data() + (mapped ? kMapped.size() : 0), name,
              sizeof name);
    std::string text = mapped ? "" : "[";
    text += name;
    text += mapped ? ":" : "]:";
    return text + std::to_string(port);
}

Endpoint endpoint_of(const std::vector<uint8_t> &socket_address)
{
    Endpoint endpoint;
    sockaddr_in6 address{};
    memcpy(&address, socket_address.data(), std::min(sizeof address, socket_address.size()));
    endpoint.port = ntohs(address.sin6_port);
    if (address.sin6_family == AF_INET6) {
        memcpy(endpoint.address.data(), &address.sin6_addr, sizeof address.sin6_addr);
        return endpoint;
    }
    std::copy(kMapped.begin(), kMapped.end(), endpoint.address.begin());
    memcpy(endpoint.address.data() + kMapped.size(),
           &reinterpret_cast<const sockaddr_in *>(&address)->sin_addr, sizeof(in_addr));
    return endpoint;
}

std::vector<TcpTableEntry> parse_tcp_table(const std::string &text)
{
    constexpr size_t kLocal = 1, kRemote = 2, kState = 3, kQueues = 4, kInode = 9;
    std::vector<TcpTableEntry> entries;
    std::istringstream lines(text);
    std::string line;
    std::getline(lines, line);  // the heading
    while (std::getline(lines, line)) {
        std::vector<std::string> words = proc::words(line);
        if (words.size() <= kInode)
            continue;
        TcpTableEntry entry{};
        std::optional<Endpoint> local = parse_endpoint(words[kLocal]);
        std::optional<Endpoint> remote = parse_endpoint(words[kRemote]);
        if (!local || !remote ||
            sscanf(words[kQueues].c_str(), "%x:%x", &entry.write_queue, &entry.read_queue) != 2)
            continue;
        entry.local = *local;
        entry.remote = *remote;
        entry.state = static_cast<int>(std::stoul(words[kState], nullptr, 16));
        entry.inode = std::stoull(words[kInode]);
        entries.push_back(entry);
    }
    return entries;
}

std::vector<TcpTableEntry> read_tcp_table(pid_t pid)
{
    std::vector<TcpTableEntry> table;
    for (const char *name : {"net/tcp", "net/tcp6"})
        for (TcpTableEntry &entry : parse_tcp_table(proc::read_text(proc::path(pid, name))))
            table.push_back(std::move(entry));
    return table;
}

}  // namespace venus
