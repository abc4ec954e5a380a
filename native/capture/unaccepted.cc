#include "capture/unaccepted.h"

#include <time.h>

#include <algorithm>
#include <set>

#include "capture/held_sockets.h"
#include "capture/tcp_table.h"
#include "os/unix_diag.h"

namespace venus {
namespace {

constexpr int kEstablished = 1, kSynReceived = 3, kCloseWait = 8, kListen = 10;  // TCP_*, of Unix sockets too
// One that accepts may be its own client, and connect again before it is stopped.
constexpr int kMaxRounds = 20;
constexpr int kMaxLooks = 200;  // at what waits, of all rounds together
constexpr long kPauseNs = 1'000'000;

using Inodes = std::set<uint64_t>;

void add_tcp_listeners(const std::vector<TcpTableEntry> &table, Inodes &listeners)
{
    for (const TcpTableEntry &entry : table) {
        uint32_t end_of_stream = entry.state == kCloseWait ? 1 : 0;
        bool waits = entry.state == kEstablished || entry.state == kCloseWait;
        bool is_whole = waits && entry.read_queue <= end_of_stream;
        if (entry.inode != 0 || is_whole || !(waits || entry.state == kSynReceived))
            continue;
        for (const TcpTableEntry &listener : table)
            if (listener.state == kListen && listener.local.port == entry.local.port)
                listeners.insert(listener.inode);
    }
}

void add_unix_listeners(Inodes &listeners)
{
    std::map<uint64_t, UnixSocketState> sockets = list_unix_sockets();
    auto must_be_accepted = [&](uint64_t client) {
        auto found = sockets.find(client);
        return found == sockets.end() || found->second.unread > 0;
    };
    for (const auto &[inode, socket] : sockets)
        if (std::any_of(socket.waiting.begin(), socket.waiting.end(), must_be_accepted))
            listeners.insert(inode);
}

// Sockets at which connections wait that cannot be captured.
Inodes listeners_in_need(pid_t init)
{
    Inodes listeners;
    add_tcp_listeners(read_tcp_table(init), listeners);
    add_unix_listeners(listeners);
    return listeners;
}

}  // namespace

void let_connections_be_accepted(StoppedTree &tree)
{
    int looks = kMaxLooks;
    for (int round = 0; round < kMaxRounds && looks > 0; round++) {
        Inodes needed = listeners_in_need(tree.init());
        if (needed.empty())
            return;
        auto can_accept = [&](const StoppedProcess &process) {
            std::map<uint64_t, int> held = held_sockets(process);
            return std::any_of(needed.begin(), needed.end(),
                               [&](uint64_t inode) { return held.contains(inode); });
        };
        if (!tree.let_go_on(can_accept))
            return;
        while (!listeners_in_need(tree.init()).empty() && looks-- > 0) {
            timespec pause = {0, kPauseNs};
            nanosleep(&pause, nullptr);
        }
        tree.stop();
    }
}

}  // namespace venus
