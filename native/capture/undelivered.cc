#include "capture/undelivered.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

#include <map>
#include <memory>

#include "capture/held_sockets.h"
#include "capture/tcp_table.h"
#include "os/checked.h"

namespace venus {
namespace {

constexpr int kFinWait1 = 4, kLastAck = 9, kClosing = 11;  // TCP_*
constexpr uint32_t kEndOfStream = 1;                        // is counted as data
constexpr int kBufferLocks = 72;                            // SO_BUF_LOCK
constexpr int kRoomBytes = 64 << 20;
constexpr int kMaxLooks = 200;
constexpr long kPauseNs = 1'000'000;

// Inodes of the sockets that a closed one has still data for.
std::vector<uint64_t> awaiting(pid_t init)
{
    std::vector<TcpTableEntry> table = read_tcp_table(init);
    std::vector<uint64_t> found;
    for (const TcpTableEntry &entry : table) {
        bool closed = entry.inode == 0 && (entry.state == kFinWait1 || entry.state == kLastAck ||
                                           entry.state == kClosing);
        if (!closed || entry.write_queue <= kEndOfStream)
            continue;
        for (const TcpTableEntry &other : table)
            if (other.inode != 0 && other.local == entry.remote && other.remote == entry.local)
                found.push_back(other.inode);
    }
    return found;
}

// A socket of the tree with a buffer that takes all that may come, while the object lives.
class Roomy {
public:
    explicit Roomy(os::UniqueFd socket) : socket_(std::move(socket))
    {
        get(SOL_SOCKET, SO_RCVBUF, buffer_);
        get(SOL_SOCKET, kBufferLocks, locks_);
        get(IPPROTO_TCP, TCP_WINDOW_CLAMP, clamp_);
        set(SOL_SOCKET, SO_RCVBUFFORCE, kRoomBytes);
        set(IPPROTO_TCP, TCP_WINDOW_CLAMP, kRoomBytes);
    }
    ~Roomy()
    {
        set(IPPROTO_TCP, TCP_WINDOW_CLAMP, clamp_);
        set(SOL_SOCKET, SO_RCVBUFFORCE, buffer_ / 2);  // the kernel doubles it
        set(SOL_SOCKET, kBufferLocks, locks_);
    }
    Roomy(const Roomy &) = delete;

    // Whoever looks at data tells the other end of the room that there is.
    void tell() const
    {
        char byte;
        recv(socket_.get(), &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT);
    }

private:
    void get(int level, int name, int &value) const
    {
        socklen_t bytes = sizeof value;
        checked(getsockopt(socket_.get(), level, name, &value, &bytes), "get an option of",
                "a TCP socket");
    }
    void set(int level, int name, int value) const
    {
        setsockopt(socket_.get(), level, name, &value, sizeof value);
    }

    os::UniqueFd socket_;
    int buffer_ = 0, locks_ = 0, clamp_ = 0;
};

}  // namespace

void let_data_arrive(const StoppedTree &tree)
{
    std::map<uint64_t, std::unique_ptr<Roomy>> open;
    for (int looks = 0; looks < kMaxLooks; looks++) {
        std::vector<uint64_t> sockets = awaiting(tree.init());
        if (sockets.empty())
            return;
        for (uint64_t inode : sockets) {
            auto [at, is_new] = open.try_emplace(inode);
            if (is_new)
                if (os::UniqueFd socket = duplicate_socket(tree, inode))
                    at->second = std::make_unique<Roomy>(std::move(socket));
            if (at->second)
                at->second->tell();
        }
        timespec pause = {0, kPauseNs};
        nanosleep(&pause, nullptr);
    }
}

}  // namespace venus
