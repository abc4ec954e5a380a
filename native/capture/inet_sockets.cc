// Internet sockets: TCP ones in any state, UDP ones with the datagrams that wait in them.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "capture/descriptors.h"
#include "capture/socket_options.h"
#include "capture/tcp.h"
#include "capture/tcp_table.h"

namespace venus {
namespace {

constexpr size_t kLargestDatagram = 65536;

void capture_stream(const SeenFile &seen, InetSocket &socket)
{
    if (socket.protocol != IPPROTO_TCP)
        seen.refuse("stream sockets of this protocol are not supported");
    auto info = socket_option<tcp_info>(seen, IPPROTO_TCP, TCP_INFO);
    if (info.tcpi_state == TCP_LISTEN)
        socket.backlog = static_cast<int>(info.tcpi_sacked);
    else if (info.tcpi_state != TCP_CLOSE || has_ended(seen))
        socket.tcp = capture_tcp_end(seen, info.tcpi_state);
    char protocol_above[16];
    socklen_t size = sizeof protocol_above;
    if (getsockopt(seen.file, IPPROTO_TCP, TCP_ULP, protocol_above, &size) == 0 && size > 0)
        seen.refuse("it carries a protocol in the kernel");
}

std::vector<Datagram> peek_datagrams(const SeenFile &seen)
{
    PeekFromStart from_start(seen);
    std::vector<Datagram> queue;
    Bytes buffer(kLargestDatagram);
    for (;;) {
        sockaddr_storage sender{};
        socklen_t size = sizeof sender;
        ssize_t count = recvfrom(seen.file, buffer.data(), buffer.size(), MSG_PEEK | MSG_DONTWAIT,
                                 reinterpret_cast<sockaddr *>(&sender), &size);
        if (count < 0 && errno == EAGAIN)
            return queue;
        checked(count, "peek at", seen.describe());
        auto *bytes = reinterpret_cast<uint8_t *>(&sender);
        Datagram datagram{Bytes(buffer.begin(), buffer.begin() + count), Bytes(bytes, bytes + size)};
        if (!endpoint_of(datagram.sender).is_loopback())
            seen.refuse("a datagram from outside the sandbox waits in it");
        queue.push_back(std::move(datagram));
    }
}

}  // namespace

OpenFile capture_inet(const SeenFile &seen, int family)
{
    InetSocket socket{};
    socket.family = family;
    socket.type = socket_option<int>(seen, SOL_SOCKET, SO_TYPE);
    socket.protocol = socket_option<int>(seen, SOL_SOCKET, SO_PROTOCOL);
    socket.flags = seen.flags;
    if (socket.type != SOCK_STREAM && socket.type != SOCK_DGRAM)
        seen.refuse("raw sockets are not supported");
    if (socket.type == SOCK_DGRAM && socket.protocol != IPPROTO_UDP)
        seen.refuse("datagram sockets of this protocol are not supported");
    if (socket.type == SOCK_STREAM)
        capture_stream(seen, socket);
    else
        socket.queue = peek_datagrams(seen);
    socket.options = differing_options(seen, family, socket.type, socket.protocol,
                                       socket.tcp.has_value());
    Bytes address = socket_name(seen);
    if (endpoint_of(address).port != 0)
        socket.bound_address = address;
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (getpeername(seen.file, reinterpret_cast<sockaddr *>(&peer), &size) == 0) {
        auto *bytes = reinterpret_cast<uint8_t *>(&peer);
        socket.peer_address.assign(bytes, bytes + size);
    }
    return socket;
}

}  // namespace venus
