#include "restore/socket_ops.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "restore/inet_ops.h"
#include "restore/refused.h"

namespace venus {
namespace {

constexpr Word kFirst = 0, kSecond = 1;  // while a pair is being made
constexpr Word kMessageFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
constexpr size_t kPathPrefix = offsetof(sockaddr_un, sun_path);

class SocketMaker {
public:
    SocketMaker(const ProcessPlanContext &context, OpList &ops) : context_(context), ops_(ops) {}

    void make_all()
    {
        const std::vector<OpenFile> &objects = context_.tree.objects;
        for (uint32_t i = 0; i < objects.size(); i++)
            if (auto *socket = std::get_if<UnixSocket>(&objects[i]); socket && !socket->connected)
                make_alone(i, *socket);
        for (uint32_t i = 0; i < objects.size(); i++)
            if (auto *socket = std::get_if<UnixSocket>(&objects[i]);
                socket && socket->connected && !socket->waiting)
                make_connection(i, *socket);
        // After those that were accepted: a listener gives the oldest first.
        for (uint32_t i = 0; i < objects.size(); i++)
            if (auto *socket = std::get_if<UnixSocket>(&objects[i]))
                make_waiting(*socket);
        for (uint32_t i = 0; i < objects.size(); i++)
            if (auto *socket = std::get_if<UnixSocket>(&objects[i]); socket && !socket->connected)
                fill_datagrams(i, *socket);
    }

private:
    Word own(uint32_t object) const { return word(context_.descriptors.objects) + object; }

    void take(const std::string &name, Word from, uint32_t object)
    {
        take_socket(context_, name, from, object, ops_);
    }

    void set_options(const std::string &name, const UnixSocket &socket, Word number)
    {
        set_socket_options(name, socket.options, number, ops_);
    }

    void finish(const std::string &name, const UnixSocket &socket, Word number)
    {
        set_socket_flags(name, socket.flags, number, ops_);
    }

    // An end, or an unconnected socket.
    void make_alone(uint32_t object, const UnixSocket &socket)
    {
        std::string name = "Unix socket";
        ops_.call(name, SYS_socket, {AF_UNIX, word(socket.type | SOCK_CLOEXEC), 0}, kFirst);
        set_options(name, socket, kFirst);
        bind(name, socket, kFirst);
        if (socket.backlog >= 0)
            ops_.call(name, SYS_listen, {kFirst, word(socket.backlog)});
        finish(name, socket, kFirst);
        take(name, kFirst, object);
    }

    static std::string path_of(const Bytes &address)
    {
        if (address.size() <= kPathPrefix || address[kPathPrefix] == 0)
            return "";
        return std::string(reinterpret_cast<const char *>(address.data()) + kPathPrefix,
                           strnlen(reinterpret_cast<const char *>(address.data()) + kPathPrefix,
                                   address.size() - kPathPrefix));
    }

    void bind(const std::string &name, const UnixSocket &socket, Word number)
    {
        PlanWriter &writer = ops_.writer();
        const Bytes &address = socket.bound_address;
        if (address.size() <= kPathPrefix)
            return;
        std::string path = path_of(address);
        // The file is there, a copy of the original's; a socket makes its own.
        if (!path.empty() && !socket.file_gone)
            ops_.call(name, SYS_unlink, {writer.text(path)});
        ops_.call(name, SYS_bind, {number, writer.data(address), address.size()});
        if (path.empty())
            return;
        if (socket.file_gone) {
            ops_.call(name, SYS_unlink, {writer.text(path)});
            return;
        }
        ops_.call(name, SYS_chown,
                  {writer.text(path), word(socket.owner_uid), word(socket.owner_gid)});
        ops_.call(name, SYS_chmod, {writer.text(path), word(socket.mode)});
    }

    void make_waiting(const UnixSocket &listener)
    {
        std::string name = "waiting Unix connection";
        for (uint32_t object : listener.clients) {
            const auto &client = std::get<UnixSocket>(context_.tree.objects[object]);
            ops_.call(name, SYS_socket, {AF_UNIX, word(client.type | SOCK_CLOEXEC), 0}, kFirst);
            set_options(name, client, kFirst);
            bind(name, client, kFirst);
            connect(name, listener, kFirst);
            finish(name, client, kFirst);
            take(name, kFirst, object);
        }
    }

    void connect(const std::string &name, const UnixSocket &listener, Word number)
    {
        if (listener.file_gone)
            throw Refused("the sandbox", name, "the file of its listener is gone");
        ops_.call(name, SYS_connect,
                  {number, ops_.writer().data(listener.bound_address),
                   listener.bound_address.size()});
    }

    // Datagrams from anybody, then the one that it sends to.
    void fill_datagrams(uint32_t object, const UnixSocket &socket)
    {
        std::string name = "Unix datagram";
        PlanWriter &writer = ops_.writer();
        for (const QueuedMessage &message : socket.queue) {
            uint32_t sender = named(message.sender);
            Word from = sender == kNoObject ? kFirst : own(sender);
            if (sender == kNoObject) {
                ops_.call(name, SYS_socket, {AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0}, kFirst);
                if (!path_of(message.sender).empty())
                    throw Refused("the sandbox", name, "its sender is closed and had a file");
                if (!message.sender.empty())
                    ops_.call(name, SYS_bind,
                              {kFirst, writer.data(message.sender), message.sender.size()});
            }
            if (socket.file_gone || socket.bound_address.size() <= kPathPrefix)
                throw Refused("the sandbox", name, "it waits where no name leads to");
            ops_.call(name, SYS_sendto,
                      {from, writer.data(message.payload), message.payload.size(), kMessageFlags,
                       writer.data(socket.bound_address), socket.bound_address.size()},
                      static_cast<int64_t>(message.payload.size()));
            if (sender == kNoObject)
                ops_.call(name, SYS_close, {kFirst});
        }
        if (!socket.peer_address.empty())
            ops_.call(name, SYS_connect,
                      {own(object), writer.data(socket.peer_address), socket.peer_address.size()});
    }

    uint32_t named(const Bytes &address) const
    {
        for (uint32_t i = 0; i < context_.tree.objects.size(); i++)
            if (auto *socket = std::get_if<UnixSocket>(&context_.tree.objects[i]);
                socket && !address.empty() && socket->type == SOCK_DGRAM &&
                socket->bound_address == address)
                return i;
        return kNoObject;
    }

    void send_queue(const std::string &name, const UnixSocket &receiver, Word sender)
    {
        for (const QueuedMessage &message : receiver.queue)
            ops_.call(name, SYS_sendto,
                      {sender, ops_.writer().data(message.payload), message.payload.size(),
                       kMessageFlags, 0, 0},
                      static_cast<int64_t>(message.payload.size()));
    }

    void make_connection(uint32_t object, const UnixSocket &socket)
    {
        std::string name = "Unix connection";
        bool alone = socket.peer == kNoObject;
        const UnixSocket *peer =
            alone ? nullptr : &std::get<UnixSocket>(context_.tree.objects[socket.peer]);
        if (peer && socket.peer == object)
            throw Refused("the sandbox", name, "a socket that is connected to itself");
        if (peer && peer->peer != object)
            throw Refused("the sandbox", name, "a connection in one direction only");
        // Each pair once: by its accepted end if there is one, else by the first.
        if (peer && (peer->accepted || (!socket.accepted && socket.peer < object)))
            return;
        if (socket.accepted) {
            connect_through(socket, peer, name);
        } else {
            ops_.call(name, SYS_socketpair,
                      {AF_UNIX, word(socket.type | SOCK_CLOEXEC), 0, context_.window.work_area()});
            bind(name, socket, kFirst);
            if (peer)
                bind(name, *peer, kSecond);
        }
        set_options(name, socket, kFirst);
        if (peer)
            set_options(name, *peer, kSecond);
        send_queue(name, socket, kSecond);
        if (peer)
            send_queue(name, *peer, kFirst);
        if (!alone)
            shut_down(name, socket, kFirst);
        finish(name, socket, kFirst);
        if (peer) {
            finish(name, *peer, kSecond);
            take(name, kSecond, socket.peer);
        } else {
            ops_.call(name, SYS_close, {kSecond});
        }
        take(name, kFirst, object);
    }

    void shut_down(const std::string &name, const UnixSocket &socket, Word number)
    {
        // Shutting one end down shuts the opposite direction of the other end.
        constexpr int kHow[] = {-1, SHUT_RD, SHUT_WR, SHUT_RDWR};
        if (socket.shutdown != 0)
            ops_.call(name, SYS_shutdown, {number, word(kHow[socket.shutdown & 3])});
    }

    // 1 = client, 0 = accepted end, so that the latter has its listener's name.
    void connect_through(const UnixSocket &accepted, const UnixSocket *client,
                         const std::string &name)
    {
        constexpr Word kUnused = 0, kThird = 2;
        ops_.call(name, SYS_dup3, {own(accepted.listener), kUnused, O_CLOEXEC}, kUnused);
        ops_.call(name, SYS_socket, {AF_UNIX, word(accepted.type | SOCK_CLOEXEC), 0}, kSecond);
        if (client)
            bind(name, *client, kSecond);
        connect(name, std::get<UnixSocket>(context_.tree.objects[accepted.listener]), kSecond);
        ops_.call(name, SYS_accept4, {kUnused, 0, 0, SOCK_CLOEXEC}, kThird);
        ops_.call(name, SYS_dup3, {kThird, kFirst, O_CLOEXEC}, kFirst);
        ops_.call(name, SYS_close, {kThird});
    }

    const ProcessPlanContext &context_;
    OpList &ops_;
};

}  // namespace

void add_socket_ops(const ProcessPlanContext &context, OpList &ops)
{
    SocketMaker(context, ops).make_all();
    add_inet_ops(context, ops);
}

}  // namespace venus
