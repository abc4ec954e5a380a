#include "capture/stop_requests.h"

#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <iterator>

#include "capture/continuation.h"
#include "os/error.h"
#include "os/proc.h"
#include "restore/refused.h"

namespace venus {
namespace {

constexpr long kClone3 = 435;
constexpr int64_t kFirstPauseNs = 20'000, kLongestPauseNs = 1'000'000;
// A thread that has not stopped after that long is looked at.
constexpr int64_t kQuietNs = 5'000'000;
// Uninterruptible waits of other kinds (a disk) end by themselves.
constexpr int64_t kPatienceNs = 10'000'000'000, kPartingNs = 100'000'000;

void pause_ns(int64_t nanoseconds)
{
    timespec moment = {0, nanoseconds};
    nanosleep(&moment, nullptr);
}

std::string task_path(pid_t pid, pid_t tid, const char *name)
{
    return proc::path(pid, "task/" + std::to_string(tid) + "/" + name);
}

bool waits_for_child(const StopRequest &request)
{
    pid_t tid = request.tracee.tid();
    try {
        std::string stat = proc::read_text(task_path(request.pid, tid, "stat"));
        if (proc::stat_fields(stat).at(3) != "D")
            return false;
        std::vector<std::string> call =
            proc::words(proc::read_text(task_path(request.pid, tid, "syscall")));
        if (call.empty() || call[0] == "running")
            return false;
        long number = std::stol(call[0]);
        return number == SYS_clone || number == SYS_vfork || number == kClone3;
    } catch (const os::Error &) {
        return false;  // ended
    }
}

}  // namespace

bool is_ending(pid_t pid, pid_t tid)
{
    try {
        std::string state = proc::stat_fields(proc::read_text(task_path(pid, tid, "stat"))).at(3);
        return state == "Z" || state == "X";
    } catch (const os::Error &) {
        return true;
    }
}

StopRequests::~StopRequests()
{
    int64_t end = monotonic_ns() + kPartingNs;
    try {
        while (!open_.empty() && monotonic_ns() < end) {
            poll();
            pause_ns(kLongestPauseNs);
        }
    } catch (const os::Error &) {
        // Released with the thread.
    }
}

bool StopRequests::ask(pid_t pid, pid_t tid, WaitNote note)
{
    try {
        Tracee tracee(tid);
        if (!tracee.interrupt())
            return false;
        open_.push_back({std::move(tracee), pid, std::move(note)});
        return true;
    } catch (const os::Error &failure) {
        if (failure.error_number() == ESRCH)
            return false;
        // Of a thread that is ending the kernel says the same as of one that is traced.
        if (failure.error_number() == EPERM && is_ending(pid, tid))
            return false;
        if (failure.error_number() == EPERM)
            throw Refused("process " + std::to_string(pid), "thread " + std::to_string(tid),
                          "it is traced by another process");
        throw;
    }
}

std::vector<StopRequest> StopRequests::poll()
{
    std::vector<StopRequest> stopped, still_open;
    for (StopRequest &request : open_) {
        switch (request.tracee.poll_stop()) {
        case Tracee::Stop::kStopped: {
            // From here on the program goes on rightly, wherever the capture ends.
            Continuation plan = continue_from(request.tracee.registers(),
                                              request.note.channel.c_str(), false);
            request.tracee.set_continuation(plan.original);
            stopped.push_back(std::move(request));
            break;
        }
        case Tracee::Stop::kPending:
            still_open.push_back(std::move(request));
            break;
        case Tracee::Stop::kEnded:
            break;
        }
    }
    open_ = std::move(still_open);
    return stopped;
}

std::vector<StopRequest> StopRequests::take_stopped()
{
    std::vector<StopRequest> stopped;
    int64_t start = monotonic_ns(), last = start, pause = kFirstPauseNs;
    while (!open_.empty()) {
        std::vector<StopRequest> now = poll();
        int64_t time = monotonic_ns();
        if (!now.empty()) {
            std::move(now.begin(), now.end(), std::back_inserter(stopped));
            last = time;
            pause = kFirstPauseNs;
            continue;
        }
        if (time - last > kQuietNs) {
            // The end of a first thread is not reported as long as others of its process live.
            std::erase_if(open_, [](const StopRequest &request) {
                return is_ending(request.pid, request.tracee.tid());
            });
            if (std::all_of(open_.begin(), open_.end(), waits_for_child))
                return stopped;
        }
        if (time - start > kPatienceNs)
            throw os::Error("stop", "thread " + std::to_string(open_.front().tracee.tid()),
                            ETIMEDOUT);
        pause_ns(pause);
        pause = std::min(2 * pause, kLongestPauseNs);
    }
    return stopped;
}

bool StopRequests::contains(pid_t tid) const
{
    return std::any_of(open_.begin(), open_.end(), [&](const StopRequest &request) {
        return request.tracee.tid() == tid;
    });
}

}  // namespace venus
