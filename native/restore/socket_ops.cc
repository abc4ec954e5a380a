#include "restore/socket_ops.h"

#include <fcntl.h>
#include <stddef.h>
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
            if (auto *socket = std::get_if<UnixSocket>(&objects[i]); socket && socket->connected)
                make_connection(i, *socket);
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
        PlanWriter &writer = ops_.writer();
        if (!socket.queue.empty())
            throw Refused("the sandbox", name, "datagrams wait in a socket without a peer");
        ops_.call(name, SYS_socket, {AF_UNIX, word(socket.type | SOCK_CLOEXEC), 0}, kFirst);
        set_options(name, socket, kFirst);
        const Bytes &address = socket.bound_address;
        bool named = address.size() > kPathPrefix;
        if (named && address[kPathPrefix] != 0) {
            // The file is there, a copy of the original's; a socket makes its own.
            std::string path(reinterpret_cast<const char *>(address.data()) + kPathPrefix);
            name += " " + path;
            ops_.call(name, SYS_unlink, {writer.text(path)});
            ops_.call(name, SYS_bind, {kFirst, writer.data(address), address.size()});
            ops_.call(name, SYS_chown,
                      {writer.text(path), word(socket.owner_uid), word(socket.owner_gid)});
            ops_.call(name, SYS_chmod, {writer.text(path), word(socket.mode)});
        } else if (named) {
            ops_.call(name, SYS_bind, {kFirst, writer.data(address), address.size()});
        }
        if (socket.backlog >= 0)
            ops_.call(name, SYS_listen, {kFirst, word(socket.backlog)});
        finish(name, socket, kFirst);
        take(name, kFirst, object);
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
        if (alone && socket.accepted)
            throw Refused("the sandbox", name, "a named end whose other end is closed");
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
            connect_through(socket, name);
        } else {
            ops_.call(name, SYS_socketpair,
                      {AF_UNIX, word(socket.type | SOCK_CLOEXEC), 0, context_.window.work_area()});
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
    void connect_through(const UnixSocket &accepted, const std::string &name)
    {
        PlanWriter &writer = ops_.writer();
        constexpr Word kUnused = 0, kThird = 2;
        ops_.call(name, SYS_dup3, {own(accepted.listener), kUnused, O_CLOEXEC}, kUnused);
        ops_.call(name, SYS_socket, {AF_UNIX, word(accepted.type | SOCK_CLOEXEC), 0}, kSecond);
        ops_.call(name, SYS_connect,
                  {kSecond, writer.data(accepted.bound_address), accepted.bound_address.size()});
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
