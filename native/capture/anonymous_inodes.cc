// eventfd, timerfd, signalfd, epoll: all that there is to know stands in fdinfo.
#include <sys/timerfd.h>

#include <algorithm>
#include <iterator>

#include "capture/descriptors.h"
#include "capture/proc_lines.h"
#include "os/checked.h"
#include "os/proc.h"

namespace venus {
OpenFile capture_anonymous_inode(const SeenFile &seen, CaptureState &)
{
    std::map<std::string, std::string> fields = proc::fields(seen.details);
    if (seen.target == "anon_inode:[eventfd]") {
        EventCounter counter{};
        counter.count = std::stoull(fields.at("eventfd-count"), nullptr, 16);
        counter.flags = seen.flags;
        counter.semaphore = fields["eventfd-semaphore"] == "1";
        return counter;
    }
    if (seen.target == "anon_inode:[timerfd]") {
        // A periodic timer that has expired counts on only when somebody asks for it.
        itimerspec ignored;
        checked(timerfd_gettime(seen.file, &ignored), "get the time of", seen.describe());
        TimerLines lines = timer_lines(seen.read_details());
        TimerFile timer{};
        timer.clock = lines.clock;
        timer.flags = seen.flags;
        timer.ticks = lines.ticks;
        timer.settime_flags = lines.settime_flags;
        std::copy(std::begin(lines.spec), std::end(lines.spec), std::begin(timer.spec));
        return timer;
    }
    if (seen.target == "anon_inode:[signalfd]")
        return SignalFile{std::stoull(fields.at("sigmask"), nullptr, 16), seen.flags};
    if (seen.target == "anon_inode:[eventpoll]")
        return EpollFile{};  // its targets: finish_descriptors
    seen.refuse("this kind of file is not supported");
}

}  // namespace venus
