#include "restore/inet_ops.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "restore/tcp_ops.h"

namespace venus {
namespace {

constexpr Word kTemporary = 0;
constexpr Word kMessageFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
constexpr int kKeptFlags = O_NONBLOCK;

class InetMaker {
public:
    InetMaker(const ProcessPlanContext &context, OpList &ops) : context_(context), ops_(ops) {}

    // Listeners and whatever else has a port of its own come first: connections may share their
    // ports, not the other way round.
    void make_all()
    {
        for_each(&InetMaker::make_alone);
        for_each(&InetMaker::fill);
        for_each(&InetMaker::connect_datagrams);
        add_tcp_ops(context_, ops_);
    }

private:
    using Step = void (InetMaker::*)(uint32_t, const InetSocket &);

    void for_each(Step step)
    {
        for (uint32_t i = 0; i < context_.tree.objects.size(); i++)
            if (auto *socket = std::get_if<InetSocket>(&context_.tree.objects[i]))
                (this->*step)(i, *socket);
    }

    Word own(uint32_t object) const { return word(context_.descriptors.objects) + object; }

    void make_alone(uint32_t object, const InetSocket &socket)
    {
        if (socket.tcp)
            return;
        std::string name = "internet socket";
        open(name, socket, kTemporary);
        set_socket_options(name, socket.options, kTemporary, ops_);
        if (!socket.bound_address.empty())
            ops_.call(name, SYS_bind,
                      {kTemporary, ops_.writer().data(socket.bound_address),
                       socket.bound_address.size()});
        if (socket.backlog >= 0)
            ops_.call(name, SYS_listen, {kTemporary, word(socket.backlog)});
        set_socket_flags(name, socket.flags, kTemporary, ops_);
        take_socket(context_, name, kTemporary, object, ops_);
    }

    void open(const std::string &name, const InetSocket &socket, Word number)
    {
        ops_.call(name, SYS_socket,
                  {word(socket.family), word(socket.type | SOCK_CLOEXEC), word(socket.protocol)},
                  static_cast<int64_t>(number));
    }

    // Before it is connected: what waits may have come from others.
    void fill(uint32_t, const InetSocket &socket)
    {
        std::string name = "datagram";
        for (const Datagram &datagram : socket.queue) {
            uint32_t sender = bound_to(datagram.sender);
            Word number = sender == kNoObject ? kTemporary : own(sender);
            PlanWriter &writer = ops_.writer();
            Word address = writer.data(datagram.sender), bytes = datagram.sender.size();
            if (sender == kNoObject) {
                open(name, socket, kTemporary);
                ops_.call(name, SYS_bind, {kTemporary, address, bytes});
            }
            Bytes target = reachable(socket.bound_address);
            ops_.call(name, SYS_sendto,
                      {number, writer.data(datagram.payload), datagram.payload.size(),
                       kMessageFlags, writer.data(target), target.size()},
                      static_cast<int64_t>(datagram.payload.size()));
            if (sender == kNoObject)
                ops_.call(name, SYS_close, {kTemporary});
        }
    }

    // A socket of the tree that has the sender's address; in it for itself or as any address.
    uint32_t bound_to(const Bytes &address) const
    {
        for (uint32_t i = 0; i < context_.tree.objects.size(); i++) {
            auto *socket = std::get_if<InetSocket>(&context_.tree.objects[i]);
            if (socket && socket->type == SOCK_DGRAM && !socket->bound_address.empty() &&
                port_of(socket->bound_address) == port_of(address) &&
                (socket->bound_address == address || reachable(socket->bound_address) == address))
                return i;
        }
        return kNoObject;
    }

    static in_port_t port_of(const Bytes &address)
    {
        in_port_t port;
        memcpy(&port, address.data() + offsetof(sockaddr_in, sin_port), sizeof port);
        return port;
    }

    // Where to send to reach a socket that may be bound to any address.
    static Bytes reachable(Bytes address)
    {
        auto *four = reinterpret_cast<sockaddr_in *>(address.data());
        if (four->sin_family == AF_INET && four->sin_addr.s_addr == htonl(INADDR_ANY))
            four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        auto *six = reinterpret_cast<sockaddr_in6 *>(address.data());
        if (six->sin6_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&six->sin6_addr))
            six->sin6_addr = IN6ADDR_LOOPBACK_INIT;
        return address;
    }

    void connect_datagrams(uint32_t object, const InetSocket &socket)
    {
        if (socket.type == SOCK_DGRAM && !socket.peer_address.empty())
            ops_.call("internet socket", SYS_connect,
                      {own(object), ops_.writer().data(socket.peer_address),
                       socket.peer_address.size()});
    }

    const ProcessPlanContext &context_;
    OpList &ops_;
};

}  // namespace

void take_socket(const ProcessPlanContext &context, const std::string &name, Word from,
                 uint32_t object, OpList &ops)
{
    Word own = word(context.descriptors.objects) + object;
    ops.call(name, SYS_dup3, {from, own, O_CLOEXEC}, static_cast<int64_t>(own));
    ops.call(name, SYS_close, {from});
}

void set_socket_options(const std::string &name, const std::vector<SocketOption> &options,
                        Word number, OpList &ops)
{
    for (const SocketOption &option : options) {
        Bytes value = option.value;
        if (option.level == SOL_SOCKET && (option.name == SO_SNDBUF || option.name == SO_RCVBUF)) {
            // The kernel doubles what is set and reports the double.
            int size;
            memcpy(&size, value.data(), sizeof size);
            size /= 2;
            memcpy(value.data(), &size, sizeof size);
        }
        ops.call(name + " option " + std::to_string(option.level) + "." +
                     std::to_string(option.name),
                 SYS_setsockopt,
                 {number, word(option.level), word(option.name), ops.writer().data(value),
                  value.size()});
    }
}

void set_socket_flags(const std::string &name, int flags, Word number, OpList &ops)
{
    ops.call(name, SYS_fcntl, {number, F_SETFL, word(flags & kKeptFlags)});
}

void add_inet_ops(const ProcessPlanContext &context, OpList &ops)
{
    InetMaker(context, ops).make_all();
}

}  // namespace venus
