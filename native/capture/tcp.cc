#include "capture/tcp.h"

#include <linux/filter.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <set>

#include "capture/socket_options.h"
#include "capture/tcp_table.h"
#include "restore/refused.h"

namespace venus {
namespace {

constexpr int kReceiveQueue = 1, kSendQueue = 2;  // TCP_RECV_QUEUE, TCP_SEND_QUEUE
constexpr int kEstablished = 1, kSynSent = 2, kSynReceived = 3, kFinWait1 = 4, kFinWait2 = 5,
              kTimeWait = 6, kClose = 7, kCloseWait = 8, kLastAck = 9, kListen = 10, kClosing = 11;
constexpr int kBufferLocks = 72;  // SO_BUF_LOCK
constexpr size_t kSendByItself = 1 << 20;  // takes any connection over loopback
constexpr uint64_t kOptionsTimestamps = 1, kOptionsSack = 2, kOptionsScale = 4;

bool is_one_of(int state, std::initializer_list<int> states)
{
    return std::find(states.begin(), states.end(), state) != states.end();
}

void set(const SeenFile &seen, int level, int name, int value)
{
    checked(setsockopt(seen.file, level, name, &value, sizeof value), "set an option of",
            seen.describe());
}

// In this mode a socket tells its sequence numbers and what it has sent. Entering it lets the
// address be shared, and leaving it ends that: the option is put back.
//
// What arrives meanwhile, if only the answer to a probe, would make the kernel take all that waits to be
// sent for sent (tcp_write_xmit), and the connection would stand still until that is sent again,
// seconds later.  So nothing arrives: what is dropped comes again.
class RepairMode {
public:
    // pre: no packet filter is attached to it.
    explicit RepairMode(const SeenFile &seen)
        : file_(seen.file), reuse_(socket_option<int>(seen, SOL_SOCKET, SO_REUSEADDR))
    {
        sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
        sock_fprog program = {1, &drop};
        checked(setsockopt(file_, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program),
                "silence", seen.describe());
        int on = TCP_REPAIR_ON;
        if (setsockopt(file_, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) < 0) {
            int error = errno;
            detach();
            throw os::Error("set an option of", seen.describe(), error);
        }
    }
    ~RepairMode()
    {
        int off = TCP_REPAIR_OFF_NO_WP;
        setsockopt(file_, IPPROTO_TCP, TCP_REPAIR, &off, sizeof off);
        setsockopt(file_, SOL_SOCKET, SO_REUSEADDR, &reuse_, sizeof reuse_);
        detach();
    }
    RepairMode(const RepairMode &) = delete;

private:
    void detach()
    {
        int unused = 0;
        setsockopt(file_, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
    }

    int file_, reuse_;
};

short poll_events(const SeenFile &seen)
{
    pollfd asked = {seen.file, POLLPRI | POLLRDHUP, 0};
    checked(poll(&asked, 1, 0), "poll", seen.describe());
    return asked.revents;
}

Bytes peek(const SeenFile &seen, unsigned long count_request)
{
    int waiting = 0;
    checked(ioctl(seen.file, count_request, &waiting), "count the data of", seen.describe());
    Bytes content(static_cast<size_t>(waiting));
    if (content.empty())
        return content;
    ssize_t size = recv(seen.file, content.data(), content.size(), MSG_PEEK | MSG_DONTWAIT);
    if (size < 0 && errno == EAGAIN)
        size = 0;  // what was counted is the end of the stream
    content.resize(static_cast<size_t>(checked(size, "peek at", seen.describe())));
    return content;
}

void capture_windows(const SeenFile &seen, TcpEnd &end)
{
    auto window = socket_option<tcp_repair_window>(seen, IPPROTO_TCP, TCP_REPAIR_WINDOW);
    static_assert(sizeof window == sizeof end.window);
    memcpy(end.window.data(), &window, sizeof window);
    auto info = socket_option<tcp_info>(seen, IPPROTO_TCP, TCP_INFO);
    end.send_scale = info.tcpi_snd_wscale;
    end.receive_scale = info.tcpi_rcv_wscale;
    end.window_scaling = info.tcpi_options & kOptionsScale;
    end.selective_acknowledgements = info.tcpi_options & kOptionsSack;
    end.timestamps = info.tcpi_options & kOptionsTimestamps;
    end.segment_bytes = socket_option<uint32_t>(seen, IPPROTO_TCP, TCP_MAXSEG);
    end.timestamp = socket_option<uint32_t>(seen, IPPROTO_TCP, TCP_TIMESTAMP);
}

// ---- joining ----

constexpr const char *kSandbox = "the sandbox", *kJustConnected = "it was just connected";
// The daemon's, of a connection to a port.
constexpr const char *kHeldOutside = "its other end is held outside the sandbox";

uint32_t distance(uint32_t from, uint32_t to)
{
    return to - from;
}

class Joiner {
public:
    explicit Joiner(CaptureState &state) : state_(state), table_(read_tcp_table(state.init))
    {
        for (uint32_t i = 0; i < state.image.objects.size(); i++)
            if (auto *socket = std::get_if<InetSocket>(&state.image.objects[i]);
                socket && socket->tcp && socket->tcp->fate == TcpFate::kOpen)
                ends_[{endpoint_of(socket->bound_address), endpoint_of(socket->peer_address)}] = i;
    }

    void join_all()
    {
        largest_receive_ = largest_buffer(SO_RCVBUF);
        largest_send_ = std::max<size_t>(kSendByItself, largest_buffer(SO_SNDBUF));
        for (const auto &[object, inode] : state_.socket_inodes)
            if (auto *socket = std::get_if<InetSocket>(&state_.image.objects[object]);
                socket && socket->tcp && socket->tcp->fate == TcpFate::kConnecting)
                aim(*socket, inode);
        for (const auto &[names, object] : ends_)
            join(names.first, names.second, object);
        for (const TcpTableEntry &entry : table_)
            if (entry.inode == 0 && is_one_of(entry.state, {kEstablished, kCloseWait}))
                add_waiting(entry);
    }

private:
    InetSocket &socket(uint32_t object) { return std::get<InetSocket>(state_.image.objects[object]); }

    [[noreturn]] static void refuse(const Endpoint &local, const Endpoint &remote,
                                    const std::string &reason)
    {
        throw Refused(kSandbox, describe(local, remote), reason);
    }

    static std::string describe(const Endpoint &local, const Endpoint &remote)
    {
        return "TCP connection " + local.text() + " to " + remote.text();
    }

    // One that is being connected does not tell its peer. The kernel may connect it at any time.
    void aim(InetSocket &client, uint64_t inode)
    {
        auto entry = std::find_if(table_.begin(), table_.end(), [&](const TcpTableEntry &entry) {
            return entry.inode == inode && entry.state == kSynSent;
        });
        Endpoint local = endpoint_of(client.bound_address);
        if (entry == table_.end())
            throw Refused(kSandbox, "TCP socket " + local.text(), kJustConnected).passing();
        if (listener_of(entry->remote) == kNoObject)
            refuse(local, entry->remote, "its connection is being made");
        client.peer_address = entry->remote.socket_address(client.family);
        connecting_.insert({entry->remote, entry->local});
    }

    const TcpTableEntry *find(const Endpoint &local, const Endpoint &remote) const
    {
        auto found = std::find_if(table_.begin(), table_.end(), [&](const TcpTableEntry &entry) {
            return entry.local == local && entry.remote == remote && entry.state != kListen;
        });
        return found == table_.end() ? nullptr : &*found;
    }

    void join(const Endpoint &local, const Endpoint &remote, uint32_t object)
    {
        TcpEnd &end = *socket(object).tcp;
        if (end.received.size() > largest_receive_ || end.unsent.size() > largest_send_)
            refuse(local, remote, "more data waits in it than the buffers of a new one can take");
        auto peer = ends_.find({remote, local});
        if (peer != ends_.end()) {
            if (peer->second == object)
                refuse(local, remote, "it is connected to itself");
            end.peer = peer->second;
            meet(local, remote, end, *socket(end.peer).tcp);
            return;
        }
        const TcpTableEntry *other = find(remote, local);
        if (other && other->inode != 0)
            return reset(local, remote, end, kHeldOutside);
        if (other && other->state == kSynReceived)
            throw Refused(kSandbox, describe(local, remote), "its listener has no room for it").passing();
        if (other && is_one_of(other->state, {kEstablished, kCloseWait}))
            return;  // it waits to be accepted: add_waiting
        if (!other && !remote.is_loopback() && !(remote.address == local.address))
            return reset(local, remote, end, "its other end is outside the sandbox");
        // The other end is closed; what it still has to deliver nobody can look at.
        if (other && other->state != kTimeWait && other->write_queue > 1)
            refuse(local, remote, "its other end is closed and has data that was not received yet");
        end.send_next -= static_cast<uint32_t>(end.unsent.size());
    }

    // What nobody in a fork can go on with.
    void reset(const Endpoint &local, const Endpoint &remote, TcpEnd &end, const char *reason)
    {
        if (!state_.reset_external)
            refuse(local, remote, reason);
        end = TcpEnd{};
        end.fate = TcpFate::kReset;
    }

    // `send_next` came as the number after `unsent`, which holds what was sent but not acknowledged
    // too. What the other end has got already is dropped: an acknowledgement is under way.
    void meet(const Endpoint &local, const Endpoint &remote, TcpEnd &end, const TcpEnd &other)
    {
        uint32_t first = end.send_next - static_cast<uint32_t>(end.unsent.size());
        uint32_t got = distance(first, other.receive_next);
        if (got > end.unsent.size())
            refuse(local, remote, "its ends do not agree on what was sent");
        end.unsent.erase(end.unsent.begin(), end.unsent.begin() + got);
        end.send_next = other.receive_next;
        auto &[update, send_window, largest, receive_window, receive_start] = end.window;
        uint32_t edge = first + send_window;
        send_window = distance(end.send_next, edge) <= send_window ? edge - end.send_next : 0;
        largest = std::max(largest, send_window);
    }

    // Whose queue a connection is in: of several listeners the one with the most exact address.
    uint32_t listener_of(const Endpoint &local)
    {
        uint32_t found = kNoObject;
        for (uint32_t i = 0; i < state_.image.objects.size(); i++) {
            auto *socket = std::get_if<InetSocket>(&state_.image.objects[i]);
            if (!socket || socket->type != SOCK_STREAM || socket->backlog < 0)
                continue;
            Endpoint address = endpoint_of(socket->bound_address);
            if (address == local)
                return i;
            if (address.port == local.port && address.is_any())
                found = i;
        }
        return found;
    }

    void add_waiting(const TcpTableEntry &entry)
    {
        uint32_t listener = listener_of(entry.local);
        if (connecting_.contains({entry.local, entry.remote}))
            throw Refused(kSandbox, describe(entry.local, entry.remote), kJustConnected).passing();
        if (listener == kNoObject)
            refuse(entry.local, entry.remote, "it waits at no listener of the sandbox");
        bool finished = entry.state == kCloseWait;
        if (entry.read_queue > (finished ? 1u : 0u))
            refuse(entry.local, entry.remote, "it waits to be accepted and data waits in it");
        InetSocket &server = socket(listener);
        WaitingConnection waiting{kNoObject, entry.remote.socket_address(server.family),
                                  entry.local.socket_address(server.family)};
        auto client = ends_.find({entry.remote, entry.local});
        if (client != ends_.end()) {
            waiting.client = client->second;
            TcpEnd &end = *socket(client->second).tcp;
            end.fate = TcpFate::kWaiting;
            end.unsent.clear();  // received, or nothing would be in the queue of its other end
        } else if (auto *held = find(entry.remote, entry.local); held && held->inode != 0) {
            if (!state_.reset_external)
                refuse(entry.local, entry.remote, kHeldOutside);
            return;  // as if it had been taken back
        }
        server.waiting.push_back(std::move(waiting));
    }

    // What a fork may give a socket, less what the kernel needs for itself.
    static size_t largest_buffer(int option)
    {
        os::UniqueFd probe(checked(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "create",
                                   "a socket"));
        int size = 1 << 29;
        socklen_t bytes = sizeof size;
        setsockopt(probe.get(), SOL_SOCKET, option, &size, bytes);
        checked(getsockopt(probe.get(), SOL_SOCKET, option, &size, &bytes), "get a buffer of",
                "a socket");
        return static_cast<size_t>(size) / 8 * 7;
    }

    CaptureState &state_;
    size_t largest_receive_ = 0, largest_send_ = 0;
    std::vector<TcpTableEntry> table_;
    std::map<std::pair<Endpoint, Endpoint>, uint32_t> ends_;
    std::set<std::pair<Endpoint, Endpoint>> connecting_;  // as their listeners see them
};

}  // namespace

bool has_ended(const SeenFile &seen)
{
    return poll_events(seen) & POLLRDHUP;
}

TcpEnd capture_tcp_end(const SeenFile &seen, int state)
{
    short events = poll_events(seen);
    if (events & POLLERR)
        seen.refuse_for_now("an error waits in it");
    if (events & POLLPRI)
        seen.refuse("urgent data waits in it");
    if (is_one_of(state, {kListen, kSynReceived, kTimeWait}))
        seen.refuse_for_now("it changed while it was looked at");
    TcpEnd end{};
    end.finished = is_one_of(state, {kFinWait1, kFinWait2, kClosing, kLastAck});
    bool other_finished = is_one_of(state, {kCloseWait, kClosing, kLastAck});
    end.deaf = (events & POLLRDHUP) && !other_finished;
    end.send_buffer = socket_option<int>(seen, SOL_SOCKET, SO_SNDBUF);
    end.receive_buffer = socket_option<int>(seen, SOL_SOCKET, SO_RCVBUF);
    end.buffer_locks = socket_option<int>(seen, SOL_SOCKET, kBufferLocks);
    end.window_clamp = socket_option<uint32_t>(seen, IPPROTO_TCP, TCP_WINDOW_CLAMP);
    if (state == kSynSent) {
        end.fate = TcpFate::kConnecting;
        return end;
    }
    PeekFromStart from_start(seen);
    if (state == kClose) {
        end.fate = TcpFate::kEnded;
        end.received = peek(seen, SIOCINQ);
        return end;
    }
    refuse_packet_filter(seen);
    RepairMode repair(seen);
    set(seen, IPPROTO_TCP, TCP_REPAIR_QUEUE, kSendQueue);
    end.send_next = socket_option<uint32_t>(seen, IPPROTO_TCP, TCP_QUEUE_SEQ) - end.finished;
    end.unsent = peek(seen, SIOCOUTQ);
    set(seen, IPPROTO_TCP, TCP_REPAIR_QUEUE, kReceiveQueue);
    end.receive_next =
        socket_option<uint32_t>(seen, IPPROTO_TCP, TCP_QUEUE_SEQ) - other_finished;
    end.received = peek(seen, SIOCINQ);
    capture_windows(seen, end);
    // The end of the other's stream is not counted here.
    auto &[update, send_window, largest, receive_window, receive_start] = end.window;
    if (receive_start == end.receive_next + 1) {
        receive_start--;
        receive_window++;
    }
    if (update == end.receive_next + 1)
        update--;
    return end;
}

void finish_tcp(CaptureState &state)
{
    Joiner(state).join_all();
}

}  // namespace venus
