// The tracer of one sandbox: captures it for the daemon, in a process of its own.
//
// A capture puts threads into system calls, sockets into modes and bytes of terminals into its own
// memory, all of which must be put back: so whoever does it must not end in the middle.  The daemon may
// be killed; the tracer then finds its connection closed, gives up, puts everything back, and waits for
// the next daemon.  It also keeps what captures know of the sandbox's pages (capture/write_tracking.h).
// When the tracer itself is killed, its mark says whether that was in the middle.
//
// It ends with the sandbox's init, or when it is told to.
#pragma once

#include "capture/write_tracking.h"
#include "capture/template.h"
#include "tracer/messages.h"

namespace venus {

// A file that says "1" from before the first thread is stopped until the last one runs again, and is
// locked as long as a tracer is at it.
class CaptureMark {
public:
    explicit CaptureMark(int fd) : fd_(fd) {}
    void set();
    void clear();

private:
    os::UniqueFd fd_;
};

class TracerServer {
public:
    // `init_pidfd`: whose end is the sandbox's. All descriptors are taken.
    TracerServer(int listener, int mark, int init_pidfd, pid_t init_host_pid)
        : listener_(listener), mark_(mark), init_(init_pidfd), init_host_pid_(init_host_pid)
    {
    }

    // Returns when it is over.
    void serve();

private:
    bool wait_for(int fd);
    bool serve_daemon(int connection);
    void greet(int connection);
    Message capture(int connection, Message &request);
    Template capture_now(int connection, Message &request);
    void settle(const Template &captured);

    os::UniqueFd listener_;
    CaptureMark mark_;
    os::UniqueFd init_;
    pid_t init_host_pid_;
    WriteTracking tracking_;
    std::vector<FileIdentity> kept_;
    std::vector<uint64_t> kept_bytes_;
};

}  // namespace venus
