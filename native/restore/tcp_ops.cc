#include "restore/tcp_ops.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>

#include "restore/inet_ops.h"

namespace venus {
namespace {

constexpr Word kFirst = 0, kSecond = 1;
constexpr int kReceiveQueue = 1, kSendQueue = 2;  // TCP_RECV_QUEUE, TCP_SEND_QUEUE
constexpr int kMssOption = 2, kScaleOption = 3, kSackOption = 4, kTimestampOption = 8;  // TCPOPT_*
constexpr int kBufferLocks = 72;                   // SO_BUF_LOCK
constexpr uint32_t kLargestUserSegment = 32767;    // what TCP_MAXSEG takes
constexpr size_t kRepairChunk = 65536;             // more in one call is one big allocation
constexpr size_t kFitsAnyBuffer = 1 << 20;         // that a connection over loopback has by itself
constexpr int kLargestBuffer = 0x3fffffff;         // the kernel takes less: sysctl [rw]mem_max
constexpr Word kMessageFlags = MSG_DONTWAIT | MSG_NOSIGNAL;

class TcpMaker {
public:
    TcpMaker(const ProcessPlanContext &context, OpList &ops) : context_(context), ops_(ops) {}

    void make_all()
    {
        const std::vector<OpenFile> &objects = context_.tree.objects;
        for (uint32_t i = 0; i < objects.size(); i++)
            if (auto *socket = std::get_if<InetSocket>(&objects[i]))
                for (const WaitingConnection &waiting : socket->waiting)
                    make_waiting(*socket, waiting);
        for (uint32_t i = 0; i < objects.size(); i++)
            if (auto *socket = std::get_if<InetSocket>(&objects[i]);
                socket && socket->tcp && socket->tcp->fate == TcpFate::kConnecting)
                make_connecting(i, *socket);
        for (uint32_t i = 0; i < objects.size(); i++) {
            auto *socket = std::get_if<InetSocket>(&objects[i]);
            if (!socket || !socket->tcp)
                continue;
            // Ended ones first: the addresses that they borrow are free again before others come.
            if (socket->tcp->fate == TcpFate::kEnded || socket->tcp->fate == TcpFate::kReset)
                make_over(i, *socket);
        }
        for (uint32_t i = 0; i < objects.size(); i++)
            if (auto *socket = std::get_if<InetSocket>(&objects[i]);
                socket && socket->tcp && socket->tcp->fate == TcpFate::kOpen)
                make_open(i, *socket);
    }

private:
    PlanWriter &writer() { return ops_.writer(); }

    void set(Word number, int level, int name, int64_t value)
    {
        auto narrow = static_cast<int>(value);
        ops_.call(kName, SYS_setsockopt,
                  {number, word(level), word(name), writer().object(narrow), sizeof narrow});
    }

    void open(const InetSocket &socket, Word number)
    {
        ops_.call(kName, SYS_socket, {word(socket.family), SOCK_STREAM | SOCK_CLOEXEC, 0},
                  static_cast<int64_t>(number));
    }

    void bind(const Bytes &address, Word number)
    {
        ops_.call(kName, SYS_bind, {number, writer().data(address), address.size()});
    }

    void connect(const Bytes &address, Word number)
    {
        ops_.call(kName, SYS_connect, {number, writer().data(address), address.size()});
    }

    // A real connection through the listener, which puts it into the queue.
    void make_waiting(const InetSocket &listener, const WaitingConnection &waiting)
    {
        const InetSocket *client =
            waiting.client == kNoObject
                ? nullptr
                : &std::get<InetSocket>(context_.tree.objects[waiting.client]);
        open(client ? *client : listener, kFirst);
        set(kFirst, SOL_SOCKET, SO_REUSEADDR, 1);
        bind(client ? client->bound_address : waiting.client_address, kFirst);
        connect(client ? client->peer_address : waiting.server_address, kFirst);
        if (!client) {
            ops_.call(kName, SYS_close, {kFirst});
            return;
        }
        set(kFirst, SOL_SOCKET, SO_REUSEADDR, 0);
        set_socket_options(kName, client->options, kFirst, ops_);
        set_buffers(*client->tcp, kFirst);
        shut(*client->tcp, kFirst);
        finish(*client, kFirst, waiting.client);
    }

    // Behind those that wait. Where the listener has room it is connected soon, else later.
    void make_connecting(uint32_t object, const InetSocket &client)
    {
        open(client, kFirst);
        set_socket_options(kName, client.options, kFirst, ops_);
        set_buffers(*client.tcp, kFirst);
        bind(client.bound_address, kFirst);
        set_socket_flags(kName, O_NONBLOCK, kFirst, ops_);
        ops_.call("TCP socket that is being connected", SYS_connect,
                  {kFirst, writer().data(client.peer_address), client.peer_address.size()},
                  -EINPROGRESS);
        finish(client, kFirst, object);
    }

    void make_open(uint32_t object, const InetSocket &socket)
    {
        const TcpEnd &end = *socket.tcp;
        bool alone = end.peer == kNoObject;
        if (!alone && end.peer < object)
            return;  // made with its peer
        InetSocket other = alone ? opposite(socket)
                                 : std::get<InetSocket>(context_.tree.objects[end.peer]);
        make_pair(socket, other);
        if (alone) {
            ops_.call(kName, SYS_close, {kSecond});
        } else {
            shut(*other.tcp, kSecond);
            finish(other, kSecond, end.peer);
        }
        shut(end, kFirst);
        finish(socket, kFirst, object);
    }

    // Of a connection that is over the socket remains, with what is left to read.
    void make_over(uint32_t object, InetSocket socket)
    {
        TcpEnd &end = *socket.tcp;
        bool reset = end.fate == TcpFate::kReset;
        end.window = {end.receive_next, kRepairChunk, kRepairChunk, kRepairChunk, end.receive_next};
        end.segment_bytes = kLargestUserSegment;
        borrow_addresses(socket, object);
        make_pair(socket, opposite(socket));
        if (reset) {
            linger at_once = {1, 0};
            ops_.call(kName, SYS_setsockopt,
                      {kSecond, SOL_SOCKET, SO_LINGER, writer().object(at_once), sizeof at_once});
        }
        ops_.call(kName, SYS_close, {kSecond});
        if (!reset)
            ops_.call(kName, SYS_shutdown, {kFirst, SHUT_WR});
        finish(socket, kFirst, object);
    }

    // The port of the other end stays taken for a while (TIME_WAIT): each gets one of its own.
    static void borrow_addresses(InetSocket &socket, uint32_t object)
    {
        auto other_port = static_cast<in_port_t>(1 + object % 1000);
        in_port_t port = 0;
        if (!socket.bound_address.empty())
            port = reinterpret_cast<const sockaddr_in *>(socket.bound_address.data())->sin_port;
        sockaddr_in four{AF_INET, port, {htonl(INADDR_LOOPBACK)}, {}};
        sockaddr_in6 six{AF_INET6, port, 0, IN6ADDR_LOOPBACK_INIT, 0};
        for (Bytes *address : {&socket.bound_address, &socket.peer_address}) {
            auto *first = socket.family == AF_INET6 ? reinterpret_cast<uint8_t *>(&six)
                                                    : reinterpret_cast<uint8_t *>(&four);
            size_t size = socket.family == AF_INET6 ? sizeof six : sizeof four;
            address->assign(first, first + size);
            four.sin_port = six.sin6_port = htons(other_port);
        }
    }

    // The end that nobody has any more: it closed, so it had read everything.
    static InetSocket opposite(const InetSocket &socket)
    {
        InetSocket other{};
        other.family = socket.family;
        other.bound_address = socket.peer_address;
        other.peer_address = socket.bound_address;
        const TcpEnd &end = *socket.tcp;
        TcpEnd mirror = end;
        mirror.send_next = end.receive_next;
        mirror.receive_next = end.send_next;
        mirror.received.clear();
        mirror.unsent.clear();
        mirror.finished = mirror.deaf = false;
        std::swap(mirror.send_scale, mirror.receive_scale);
        uint32_t peer_window = end.window[3];
        mirror.window = {mirror.receive_next, peer_window, peer_window, kRepairChunk,
                         mirror.receive_next};
        mirror.buffer_locks = 0;
        mirror.send_buffer = mirror.receive_buffer = 0;
        mirror.window_clamp = 0;
        other.tcp = std::move(mirror);
        return other;
    }

    void make_pair(const InetSocket &first, const InetSocket &second)
    {
        begin(first, kFirst);
        begin(second, kSecond);
        for (Word number : {kFirst, kSecond})
            set(number, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF_NO_WP);
        end(first, kFirst);
        end(second, kSecond);
    }

    // An established end with its place in both streams and what it has received.
    void begin(const InetSocket &socket, Word number)
    {
        const TcpEnd &end = *socket.tcp;
        open(socket, number);
        set(number, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_ON);
        bind(socket.bound_address, number);
        // Without that connect() would settle on the smallest segments that there are.
        set(number, IPPROTO_TCP, TCP_MAXSEG, std::min(end.segment_bytes, kLargestUserSegment));
        set(number, IPPROTO_TCP, TCP_REPAIR_QUEUE, kSendQueue);
        set(number, IPPROTO_TCP, TCP_QUEUE_SEQ, end.send_next);
        set(number, IPPROTO_TCP, TCP_REPAIR_QUEUE, kReceiveQueue);
        set(number, IPPROTO_TCP, TCP_QUEUE_SEQ,
            static_cast<uint32_t>(end.receive_next - end.received.size()));
        connect(socket.peer_address, number);
        set(number, IPPROTO_TCP, TCP_MAXSEG, 0);
        std::vector<tcp_repair_opt> options = {{kMssOption, end.segment_bytes}};
        if (end.window_scaling)
            options.push_back({kScaleOption, end.send_scale | end.receive_scale << 16});
        if (end.selective_acknowledgements)
            options.push_back({kSackOption, 0});
        if (end.timestamps)
            options.push_back({kTimestampOption, 0});
        size_t bytes = options.size() * sizeof options[0];
        ops_.call(kName, SYS_setsockopt,
                  {number, IPPROTO_TCP, TCP_REPAIR_OPTIONS, writer().data(options.data(), bytes),
                   bytes});
        if (end.timestamps)
            set(number, IPPROTO_TCP, TCP_TIMESTAMP, end.timestamp);
        if (!end.received.empty())
            set(number, SOL_SOCKET, SO_RCVBUF, kLargestBuffer);
        for (size_t at = 0; at < end.received.size(); at += kRepairChunk) {
            size_t size = std::min(kRepairChunk, end.received.size() - at);
            ops_.call("received data of a TCP connection", SYS_sendto,
                      {number, writer().data(end.received.data() + at, size), size, kMessageFlags,
                       0, 0},
                      static_cast<int64_t>(size));
        }
        ops_.call(kName, SYS_setsockopt,
                  {number, IPPROTO_TCP, TCP_REPAIR_WINDOW, writer().object(end.window),
                   sizeof end.window});
    }

    void end(const InetSocket &socket, Word number)
    {
        const TcpEnd &end = *socket.tcp;
        set_socket_options(kName, socket.options, number, ops_);
        if (end.unsent.size() > kFitsAnyBuffer)
            set(number, SOL_SOCKET, SO_SNDBUF, kLargestBuffer);
        if (!end.unsent.empty())
            ops_.call("unsent data of a TCP connection", SYS_sendto,
                      {number, writer().data(end.unsent), end.unsent.size(), kMessageFlags, 0, 0},
                      static_cast<int64_t>(end.unsent.size()));
        set_buffers(end, number);
    }

    void set_buffers(const TcpEnd &end, Word number)
    {
        bool grown = end.unsent.size() > kFitsAnyBuffer;
        // The kernel doubles what is set and reports the double.
        if ((end.buffer_locks & kSendBufferLock) || grown)
            set(number, SOL_SOCKET, SO_SNDBUF, end.send_buffer / 2);
        if ((end.buffer_locks & kReceiveBufferLock) || !end.received.empty())
            set(number, SOL_SOCKET, SO_RCVBUF, end.receive_buffer / 2);
        if (end.buffer_locks != 0 || grown || !end.received.empty())
            set(number, SOL_SOCKET, kBufferLocks, end.buffer_locks);
        if (end.window_clamp != 0)
            set(number, IPPROTO_TCP, TCP_WINDOW_CLAMP, end.window_clamp);
    }

    void shut(const TcpEnd &end, Word number)
    {
        if (end.finished)
            ops_.call("end of a TCP stream", SYS_shutdown, {number, SHUT_WR});
        if (end.deaf)
            ops_.call(kName, SYS_shutdown, {number, SHUT_RD});
    }

    void finish(const InetSocket &socket, Word number, uint32_t object)
    {
        set_socket_flags(kName, socket.flags, number, ops_);
        take_socket(context_, kName, number, object, ops_);
    }

    static constexpr const char *kName = "TCP connection";
    static constexpr int kSendBufferLock = 1, kReceiveBufferLock = 2;  // SOCK_SNDBUF_LOCK, ...

    const ProcessPlanContext &context_;
    OpList &ops_;
};

}  // namespace

void add_tcp_ops(const ProcessPlanContext &context, OpList &ops)
{
    TcpMaker(context, ops).make_all();
}

}  // namespace venus
