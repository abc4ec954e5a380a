// eventfd, timerfd, signalfd, epoll: all that there is to know stands in fdinfo.
#include <stdio.h>
#include <sys/timerfd.h>

#include <sstream>

#include "capture/descriptors.h"
#include "os/checked.h"
#include "os/proc.h"

namespace venus {
namespace {

bool parse_time(const std::string &text, uint64_t &seconds, uint64_t &nanoseconds)
{
    return sscanf(text.c_str(), "(%lu, %lu)", &seconds, &nanoseconds) == 2;
}

}  // namespace

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
        fields = proc::fields(seen.read_details());
        TimerFile timer{};
        timer.clock = std::stoi(fields.at("clockid"));
        timer.flags = seen.flags;
        timer.ticks = std::stoull(fields.at("ticks"));
        timer.settime_flags = static_cast<int>(std::stol(fields.at("settime flags"), nullptr, 8));
        if (!parse_time(fields.at("it_interval"), timer.spec[0], timer.spec[1]) ||
            !parse_time(fields.at("it_value"), timer.spec[2], timer.spec[3]))
            seen.refuse("its fdinfo is not understood");
        return timer;
    }
    if (seen.target == "anon_inode:[signalfd]")
        return SignalFile{std::stoull(fields.at("sigmask"), nullptr, 16), seen.flags};
    if (seen.target == "anon_inode:[eventpoll]")
        return EpollFile{};  // its targets: finish_descriptors
    seen.refuse("this kind of file is not supported");
}

}  // namespace venus
