// Unix sockets with what waits in them.
#include <linux/sockios.h>
#include <sys/ioctl.h>
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
constexpr size_t kPathPrefix = offsetof(sockaddr_un, sun_path);
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
        if (size == 0 && type != SOCK_DGRAM)
            break;  // the end of the stream
        QueuedMessage found{Bytes(buffer.begin(), buffer.begin() + size), {}};
        auto *bytes = reinterpret_cast<uint8_t *>(&sender);
        if (type == SOCK_DGRAM && message.msg_namelen > sizeof(sa_family_t))
            found.sender.assign(bytes, bytes + message.msg_namelen);
        queue.push_back(std::move(found));
    }
    return queue;
}

void capture_bound_file(const SeenFile &seen, UnixSocket &socket)
{
    if (socket.bound_address.size() <= kPathPrefix || socket.bound_address[kPathPrefix] == 0)
        return;
    std::string path(reinterpret_cast<const char *>(socket.bound_address.data()) + kPathPrefix);
    if (path[0] != '/')
        seen.refuse("it is bound to a relative name");
    struct stat status;
    std::string outside = seen.process.proc_path("root" + path);
    if (lstat(outside.c_str(), &status) < 0 || !S_ISSOCK(status.st_mode)) {
        socket.file_gone = true;
        return;
    }
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

// What a client has sent is in the queue of an end that nobody can look into before it is accepted.
void add_waiting(CaptureState &state, const std::string &name, const UnixSocketState &kernel,
                 const std::map<uint64_t, uint32_t> &objects, UnixSocket &listener)
{
    if (kernel.waiting.size() != kernel.read_queue)
        throw Refused("the sandbox", name, "connections that are not known wait to be accepted");
    for (uint64_t inode : kernel.waiting) {
        auto client = objects.find(inode);
        int sent = 0;
        if (inode == 0 || client == objects.end())
            throw Refused("the sandbox", name,
                          "a connection waits to be accepted whose other end is closed");
        checked(ioctl(state.object_files[client->second].get(), SIOCOUTQ, &sent),
                "count the data of", name);
        if (sent != 0)
            throw Refused("the sandbox", name,
                          "a connection waits to be accepted and data waits in it");
        std::get<UnixSocket>(state.image.objects[client->second]).waiting = true;
        listener.clients.push_back(client->second);
    }
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
    std::vector<uint32_t> one_way;
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
            add_waiting(state, name, kernel, objects, *socket);
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
    // Many datagram sockets may send to one, which then is not connected to them.
    for (const auto &[object, inode] : state.socket_inodes) {
        auto *socket = std::get_if<UnixSocket>(&state.image.objects[object]);
        if (socket == nullptr || socket->type != SOCK_DGRAM || socket->peer == kNoObject)
            continue;
        auto &peer = std::get<UnixSocket>(state.image.objects[socket->peer]);
        if (peer.peer == object)
            continue;
        if (peer.bound_address.size() <= kPathPrefix)
            throw Refused("the sandbox", "Unix socket " + std::to_string(inode),
                          "it is connected to one without a name that is not connected to it");
        one_way.push_back(object);
    }
    for (uint32_t object : one_way) {
        auto &socket = std::get<UnixSocket>(state.image.objects[object]);
        socket.peer_address = std::get<UnixSocket>(state.image.objects[socket.peer]).bound_address;
        socket.connected = false;
        socket.peer = kNoObject;
    }
    // The accepted end of a connection has the name of its listener.
    for (const auto &[object, inode] : state.socket_inodes) {
        auto *socket = std::get_if<UnixSocket>(&state.image.objects[object]);
        if (socket == nullptr || !socket->connected || socket->waiting || socket->type == SOCK_DGRAM ||
            socket->bound_address.size() <= kPathPrefix)
            continue;
        for (const auto &[other, unused] : state.socket_inodes) {
            auto *listener = std::get_if<UnixSocket>(&state.image.objects[other]);
            if (listener && listener->backlog >= 0 &&
                listener->bound_address == socket->bound_address) {
                socket->accepted = true;
                socket->listener = other;
            }
        }
    }
}

}  // namespace venus
