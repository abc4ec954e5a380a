// Unix sockets with what waits in them.
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>

#include "capture/descriptors.h"
#include "capture/id_map.h"
#include "capture/paths.h"
#include "capture/socket_options.h"
#include "capture/tcp.h"
#include "os/checked.h"
#include "os/proc.h"
#include "os/unix_diag.h"
#include "restore/refused.h"

namespace venus {
namespace {

constexpr int kEstablished = 1;  // TCP_ESTABLISHED, for Unix sockets too
constexpr size_t kLargestMessage = 1 << 22;

// Reads everything that waits, and leaves it there.
std::vector<QueuedMessage> peek_queue(const SeenFile &seen, int type)
{
    PeekFromStart from_start(seen);
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
                seen.refuse("descriptors are on their way in it");
            }
        if (size == 0)
            break;  // end of a stream; an empty datagram ends what can be seen
        if (type != SOCK_STREAM && message.msg_namelen > sizeof(sa_family_t))
            seen.refuse("a datagram with a sender's name waits in it");
        queue.push_back({Bytes(buffer.begin(), buffer.begin() + size)});
    }
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
    socket.type = socket_option<int>(seen, SOL_SOCKET, SO_TYPE);
    socket.flags = seen.flags;
    socket.options = differing_options(seen, AF_UNIX, socket.type, 0, false);
    socket.bound_address = socket_name(seen);
    if (socket_option<int>(seen, SOL_SOCKET, SO_ACCEPTCONN))
        socket.backlog = 0;  // finish_sockets knows how many
    else
        socket.queue = peek_queue(seen, socket.type);
    return socket;
}

}  // namespace

Bytes socket_name(const SeenFile &seen)
{
    sockaddr_storage address;
    socklen_t size = sizeof address;
    checked(getsockname(seen.file, reinterpret_cast<sockaddr *>(&address), &size),
            "get the name of", seen.describe());
    auto *bytes = reinterpret_cast<uint8_t *>(&address);
    return {bytes, bytes + size};
}

OpenFile capture_socket(const SeenFile &seen, CaptureState &)
{
    int family = socket_option<int>(seen, SOL_SOCKET, SO_DOMAIN);
    if (family == AF_UNIX) {
        OpenFile file = capture_unix(seen);
        capture_bound_file(seen, std::get<UnixSocket>(file));
        return file;
    }
    if (family == AF_INET || family == AF_INET6)
        return capture_inet(seen, family);
    seen.refuse("sockets of family " + std::to_string(family) + " are not supported");
}

void finish_sockets(CaptureState &state)
{
    if (state.socket_inodes.empty())
        return;
    finish_tcp(state);
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
        socket->connected = kernel.state == kEstablished && socket->type != SOCK_DGRAM;
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
