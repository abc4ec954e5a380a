// Threads that were asked to stop and have not stopped yet.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "capture/wait_note.h"
#include "os/tracee.h"

namespace venus {

struct StopRequest {
    Tracee tracee;
    pid_t pid;
    WaitNote note;
};

class StopRequests {
public:
    StopRequests() = default;
    // Waits a moment for those that are open, so that their programs go on rightly. What cannot
    // stop then is released with the calling thread.
    ~StopRequests();
    StopRequests(const StopRequests &) = delete;

    // False: the thread is ending. Throws Refused when another process traces it.
    bool ask(pid_t pid, pid_t tid, WaitNote note);
    // Those that have stopped, waited for as long as any may stop by itself.
    std::vector<StopRequest> take_stopped();

    bool contains(pid_t tid) const;
    bool empty() const { return open_.empty(); }
    // After take_stopped(): what is left waits for a child that shares its memory (vfork) to execute
    // a program or to end, and not even a tracer can stop it before that.
    const std::vector<StopRequest> &waiting_for_children() const { return open_; }

private:
    std::vector<StopRequest> poll();

    std::vector<StopRequest> open_;
};

// A thread that has ended and is not gone yet.
bool is_ending(pid_t pid, pid_t tid);

}  // namespace venus
