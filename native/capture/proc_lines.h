// Lines of /proc that capture reads, as values. Pure. What is not understood throws
// std::invalid_argument or std::out_of_range, or is left out where it says so.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace venus {

// Of fdinfo: "lock: 1: FLOCK  ADVISORY  WRITE 123 fe:00:456 0 EOF".
struct LockLine {
    std::string kind, state;
    bool exclusive;
    uint64_t start, length;  // 0: to the end
};
std::vector<LockLine> lock_lines(const std::string &fdinfo);

// Of an epoll's fdinfo: "tfd:        5 events:       19 data:                5  pos:0 ino:1 sdev:2".
struct TargetLine {
    int number;
    uint32_t events;
    uint64_t data;
};
std::vector<TargetLine> target_lines(const std::string &fdinfo);

// Of a timerfd's fdinfo.
struct TimerLines {
    int clock;
    uint64_t ticks;
    int settime_flags;
    uint64_t spec[4];  // of the interval and of the value: seconds, nanoseconds
};
TimerLines timer_lines(const std::string &fdinfo);

// Four lines of /proc/<pid>/timers.
struct PosixTimerLines {
    int id, signal;
    uint64_t value;
    int notify;         // SIGEV_SIGNAL, SIGEV_NONE, SIGEV_THREAD; not SIGEV_THREAD_ID
    int host_tid;       // of the thread that gets the signal; 0: it goes to the process
    int clock;
};
std::vector<PosixTimerLines> posix_timer_lines(const std::string &timers);

// Of /proc/sysvipc/*: by the names of its columns.
std::vector<std::map<std::string, std::string>> table_rows(const std::string &text);

// Of /proc/<pid>/mountinfo.
struct MountLine {
    std::string root, type;
    bool read_only;
};
// By mount point; the uppermost of several. Lines that end early are left out.
std::map<std::string, MountLine> mount_lines(const std::string &mountinfo);

}  // namespace venus
