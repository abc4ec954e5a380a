#include "capture/unaccepted.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "capture/held_sockets.h"
#include "capture/tcp_table.h"
#include "os/unix_diag.h"

namespace venus {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kEstablished = 1, kSynReceived = 3, kCloseWait = 8, kListen = 10;  // TCP_*
// One that accepts may be its own client, and connect again before it is stopped: then luck decides.
constexpr int kMaxRounds = 20;
constexpr std::chrono::seconds kPatience{3};  // of all rounds together
constexpr std::chrono::milliseconds kIdle{500};  // so long nothing may be accepted
constexpr long kPauseNs = 1'000'000;

using Inodes = std::set<uint64_t>;

// Connections that cannot be captured as they wait: inodes.
struct Unaccepted {
    size_t count = 0;
    Inodes listeners, clients;
};

void add_tcp(const std::vector<TcpTableEntry> &table, Unaccepted &found)
{
    for (const TcpTableEntry &entry : table) {
        uint32_t end_of_stream = entry.state == kCloseWait ? 1 : 0;
        bool waits = entry.state == kEstablished || entry.state == kCloseWait;
        bool is_whole = waits && entry.read_queue <= end_of_stream;
        if (entry.inode != 0 || is_whole || !(waits || entry.state == kSynReceived))
            continue;
        found.count++;
        for (const TcpTableEntry &other : table) {
            if (other.state == kListen && other.local.port == entry.local.port)
                found.listeners.insert(other.inode);
            if (other.local == entry.remote && other.remote == entry.local)
                found.clients.insert(other.inode);
        }
    }
}

void add_unix(Unaccepted &found)
{
    std::map<uint64_t, UnixSocketState> sockets = list_unix_sockets();
    for (const auto &[inode, socket] : sockets)
        for (uint64_t client : socket.waiting) {
            auto known = sockets.find(client);
            if (known != sockets.end() && known->second.unread == 0)
                continue;
            found.count++;
            found.listeners.insert(inode);
            found.clients.insert(client);
        }
}

Unaccepted find_unaccepted(pid_t init)
{
    Unaccepted found;
    add_tcp(read_tcp_table(init), found);
    add_unix(found);
    return found;
}

bool has_one_of(const std::map<uint64_t, int> &held, const Inodes &sockets)
{
    return std::any_of(sockets.begin(), sockets.end(),
                       [&](uint64_t inode) { return held.contains(inode); });
}

// A client may have its listener by inheritance, and would only go on to connect.
bool let_acceptors_go_on(StoppedTree &tree, const Unaccepted &unaccepted)
{
    auto accepts = [&](bool as_client) {
        return [&unaccepted, as_client](const StoppedProcess &process) {
            std::map<uint64_t, int> held = held_sockets(process);
            return has_one_of(held, unaccepted.listeners) &&
                   (as_client || !has_one_of(held, unaccepted.clients));
        };
    };
    return tree.let_go_on(accepts(false)) || tree.let_go_on(accepts(true));
}

// Until there are none, or it does not become less. False: not in time.
bool wait_until_accepted(pid_t init, size_t count, Clock::time_point give_up)
{
    auto last = Clock::now();
    for (auto now = last; now < give_up && now < last + kIdle; now = Clock::now()) {
        size_t left = find_unaccepted(init).count;
        if (left == 0)
            return true;
        if (left < count)
            last = now;
        count = left;
        timespec pause = {0, kPauseNs};
        nanosleep(&pause, nullptr);
    }
    return false;
}

}  // namespace

void let_connections_be_accepted(StoppedTree &tree)
{
    auto give_up = Clock::now() + kPatience;
    bool accepted = true;
    for (int round = 0; accepted && round < kMaxRounds; round++) {
        Unaccepted unaccepted = find_unaccepted(tree.init());
        if (unaccepted.count == 0 || !let_acceptors_go_on(tree, unaccepted))
            return;
        accepted = wait_until_accepted(tree.init(), unaccepted.count, give_up);
        tree.stop();
    }
}

}  // namespace venus
