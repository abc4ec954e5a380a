// Sockets: Unix ones with what waits in them, and listening or unconnected internet ones.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>

#include "capture/descriptors.h"
#include "capture/id_map.h"
#include "capture/paths.h"
#include "os/checked.h"
#include "os/proc.h"
#include "os/unix_diag.h"
#include "restore/refused.h"

namespace venus {
namespace {

constexpr size_t kLargestMessage = 1 << 22;
constexpr int kUnixOptions[] = {SO_SNDBUF, SO_RCVBUF, SO_PASSCRED, SO_RCVLOWAT};

template <typename T>
T option(const SeenFile &seen, int level, int name)
{
    T value{};
    socklen_t size = sizeof value;
    checked(getsockopt(seen.file, level, name, &value, &size), "get an option of", seen.describe());
    return value;
}

Bytes local_address(const SeenFile &seen)
{
    sockaddr_storage address;
    socklen_t size = sizeof address;
    checked(getsockname(seen.file, reinterpret_cast<sockaddr *>(&address), &size),
            "get the name of", seen.describe());
    auto *bytes = reinterpret_cast<uint8_t *>(&address);
    return {bytes, bytes + size};
}

// Reads everything that waits, and leaves it there.
std::vector<QueuedMessage> peek_queue(const SeenFile &seen, int type)
{
    int previous = option<int>(seen, SOL_SOCKET, SO_PEEK_OFF), from_start = 0;
    checked(setsockopt(seen.file, SOL_SOCKET, SO_PEEK_OFF, &from_start, sizeof from_start),
            "peek at", seen.describe());
    std::vector<QueuedMessage> queue;
    Bytes buffer(kLargestMessage);
    for (;;) {
        alignas(cmsghdr) char ancillary[1024];
        sockaddr_storage sender;
        iovec vector = {buffer.data(), buffer.size()};
        msghdr message{};
        message.msg_iov = &vector;
        message.msg_iovlen = 1;
        message.msg_control = ancillary;
        message.msg_controllen = sizeof ancillary;
        message.msg_name = &sender;
        message.msg_namelen = sizeof sender;
        ssize_t size = recvmsg(seen.file, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (size < 0 && errno == EAGAIN)
            break;
        checked(size, "peek at", seen.describe());
        for (cmsghdr *header = CMSG_FIRSTHDR(&message); header;
             header = CMSG_NXTHDR(&message, header))
            if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
                for (size_t i = 0; i < (header->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++)
                    close(reinterpret_cast<int *>(CMSG_DATA(header))[i]);
                setsockopt(seen.file, SOL_SOCKET, SO_PEEK_OFF, &previous, sizeof previous);
                seen.refuse("descriptors are on their way in it");
            }
        if (size == 0)
            break;  // end of a stream; an empty datagram ends what can be seen
        if (type != SOCK_STREAM && message.msg_namelen > sizeof(sa_family_t))
            seen.refuse("a datagram with a sender's name waits in it");
        queue.push_back({Bytes(buffer.begin(), buffer.begin() + size)});
    }
    setsockopt(seen.file, SOL_SOCKET, SO_PEEK_OFF, &previous, sizeof previous);
    return queue;
}

void capture_bound_file(const SeenFile &seen, UnixSocket &socket)
{
    size_t prefix = offsetof(sockaddr_un, sun_path);
    if (socket.bound_address.size() <= prefix || socket.bound_address[prefix] == 0)
        return;
    std::string path(reinterpret_cast<const char *>(socket.bound_address.data()) + prefix);
    if (path[0] != '/')
        seen.refuse("it is bound to a relative name");
    struct stat status;
    std::string outside = proc::path(seen.process.host_pid, "root" + path);
    if (lstat(outside.c_str(), &status) < 0 || !S_ISSOCK(status.st_mode))
        seen.refuse("the file that it is bound to is gone");
    IdMap users(proc::read_text(seen.process.proc_path("uid_map")));
    IdMap groups(proc::read_text(seen.process.proc_path("gid_map")));
    socket.mode = static_cast<int>(status.st_mode & 07777);
    socket.owner_uid = static_cast<int>(users.inner(status.st_uid).value_or(0));
    socket.owner_gid = static_cast<int>(groups.inner(status.st_gid).value_or(0));
}

OpenFile capture_unix(const SeenFile &seen)
{
    UnixSocket socket{};
    socket.type = option<int>(seen, SOL_SOCKET, SO_TYPE);
    socket.flags = seen.flags;
    for (int name : kUnixOptions)
        socket.options.push_back({name, option<int>(seen, SOL_SOCKET, name)});
    socket.bound_address = local_address(seen);
    if (option<int>(seen, SOL_SOCKET, SO_ACCEPTCONN))
        socket.backlog = 0;  // finish_sockets knows how many
    else
        socket.queue = peek_queue(seen, socket.type);
    return socket;
}

OpenFile capture_inet(const SeenFile &seen, int family)
{
    InetSocket socket{};
    socket.family = family;
    socket.type = option<int>(seen, SOL_SOCKET, SO_TYPE);
    socket.protocol = option<int>(seen, SOL_SOCKET, SO_PROTOCOL);
    socket.flags = seen.flags;
    if (socket.type != SOCK_STREAM && socket.type != SOCK_DGRAM)
        seen.refuse("raw sockets are not supported");
    for (int name : {SO_REUSEADDR, SO_REUSEPORT, SO_KEEPALIVE, SO_BROADCAST, SO_OOBINLINE})
        socket.options.push_back({SOL_SOCKET, name, option<int>(seen, SOL_SOCKET, name)});
    if (family == AF_INET6)
        socket.options.push_back(
            {IPPROTO_IPV6, IPV6_V6ONLY, option<int>(seen, IPPROTO_IPV6, IPV6_V6ONLY)});
    Bytes address = local_address(seen);
    sockaddr_storage peer;
    socklen_t peer_size = sizeof peer;
    bool connected = getpeername(seen.file, reinterpret_cast<sockaddr *>(&peer), &peer_size) == 0;
    if (connected && socket.type == SOCK_STREAM)
        seen.refuse("established TCP connections are not supported yet");
    if (connected)
        socket.peer_address.assign(reinterpret_cast<uint8_t *>(&peer),
                                   reinterpret_cast<uint8_t *>(&peer) + peer_size);
    in_port_t port = reinterpret_cast<const sockaddr_in *>(address.data())->sin_port;
    if (port != 0)
        socket.bound_address = address;
    if (socket.type == SOCK_STREAM) {
        socket.options.push_back(
            {IPPROTO_TCP, TCP_NODELAY, option<int>(seen, IPPROTO_TCP, TCP_NODELAY)});
        tcp_info info = option<tcp_info>(seen, IPPROTO_TCP, TCP_INFO);
        if (info.tcpi_state == TCP_LISTEN) {
            if (info.tcpi_unacked != 0)
                seen.refuse("connections wait to be accepted");
            socket.backlog = static_cast<int>(info.tcpi_sacked);
        } else if (info.tcpi_state != TCP_CLOSE) {
            seen.refuse("a TCP connection that opens or closes is not supported");
        }
    } else {
        int waiting = 0;
        checked(ioctl(seen.file, FIONREAD, &waiting), "count the data of", seen.describe());
        if (waiting != 0)
            seen.refuse("datagrams wait in it");
    }
    return socket;
}

}  // namespace

OpenFile capture_socket(const SeenFile &seen, CaptureState &)
{
    int family = option<int>(seen, SOL_SOCKET, SO_DOMAIN);
    if (family == AF_UNIX) {
        OpenFile file = capture_unix(seen);
        capture_bound_file(seen, std::get<UnixSocket>(file));
        return file;
    }
    if (family == AF_INET || family == AF_INET6)
        return capture_inet(seen, family);
    seen.refuse("sockets of family " + std::to_string(family) + " are not supported");
}

// pre: on a thread that may change its network namespace.
void finish_sockets(CaptureState &state)
{
    if (state.socket_inodes.empty())
        return;
    enter_network_namespace(state.init);
    std::map<uint64_t, UnixSocketState> known = list_unix_sockets();
    std::map<uint64_t, uint32_t> objects;
    for (const auto &[object, inode] : state.socket_inodes)
        objects[inode] = object;
    for (const auto &[object, inode] : state.socket_inodes) {
        auto *socket = std::get_if<UnixSocket>(&state.image.objects[object]);
        if (socket == nullptr)
            continue;
        std::string name = "Unix socket " + std::to_string(inode);
        auto found = known.find(inode);
        if (found == known.end())
            throw Refused("the sandbox", name, "it belongs to another network namespace");
        const UnixSocketState &kernel = found->second;
        socket->shutdown = kernel.shutdown;
        if (socket->backlog >= 0) {
            if (kernel.read_queue != 0)
                throw Refused("the sandbox", name, "connections wait to be accepted");
            socket->backlog = static_cast<int>(kernel.backlog);
            continue;
        }
        socket->connected = kernel.state == TCP_ESTABLISHED && socket->type != SOCK_DGRAM;
        if (kernel.peer == 0)
            continue;
        auto peer = objects.find(kernel.peer);
        if (peer == objects.end())
            throw Refused("the sandbox", name, "its peer is no open file of the sandbox");
        socket->connected = true;
        socket->peer = peer->second;
    }
    // The accepted end of a connection has the name of its listener.
    for (const auto &[object, inode] : state.socket_inodes) {
        auto *socket = std::get_if<UnixSocket>(&state.image.objects[object]);
        if (socket == nullptr || !socket->connected || socket->bound_address.size() <= 2)
            continue;
        for (const auto &[other, unused] : state.socket_inodes) {
            auto *listener = std::get_if<UnixSocket>(&state.image.objects[other]);
            if (listener && listener->backlog >= 0 &&
                listener->bound_address == socket->bound_address) {
                socket->accepted = true;
                socket->listener = other;
            }
        }
        if (!socket->accepted)
            throw Refused("the sandbox", "Unix socket " + std::to_string(inode),
                          "it is connected and has a name of its own");
    }
}

}  // namespace venus
