#include "capture/wait_note.h"

#include <time.h>

#include "os/error.h"
#include "os/proc.h"

namespace venus {
namespace {

int64_t scheduler_time_ns(const std::string &sched_path)
{
    // "se.exec_start : 850158.325597": milliseconds of the scheduler's clock.
    std::string text = proc::read_text(sched_path);
    size_t at = text.find("se.exec_start");
    if (at == std::string::npos)
        return -1;
    size_t colon = text.find(':', at);
    return static_cast<int64_t>(std::stod(text.substr(colon + 1)) * 1e6);
}

int64_t measure_offset_ns(int cpu)
{
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    sched_setaffinity(0, sizeof only, &only);
    timespec moment = {0, 1000};
    nanosleep(&moment, nullptr);
    int64_t own = scheduler_time_ns("/proc/thread-self/sched");
    return own < 0 ? 0 : monotonic_ns() - own;
}

}  // namespace

int64_t monotonic_ns()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

SchedulerClocks::SchedulerClocks()
{
    sched_getaffinity(0, sizeof allowed_, &allowed_);
}

SchedulerClocks::~SchedulerClocks()
{
    sched_setaffinity(0, sizeof allowed_, &allowed_);
}

int64_t SchedulerClocks::offset_ns(int cpu)
{
    auto known = offsets_.find(cpu);
    if (known == offsets_.end())
        known = offsets_.emplace(cpu, measure_offset_ns(cpu)).first;
    return known->second;
}

WaitNote note_wait(pid_t host_pid, pid_t tid, SchedulerClocks &clocks)
{
    constexpr size_t kProcessor = 39;
    std::string base = proc::path(host_pid, "task/" + std::to_string(tid) + "/");
    try {
        WaitNote note;
        note.channel = proc::read_text(base + "wchan");
        int64_t since = scheduler_time_ns(base + "sched");
        int cpu = std::stoi(proc::stat_fields(proc::read_text(base + "stat")).at(kProcessor));
        note.asleep_since_ns = since < 0 ? 0 : since + clocks.offset_ns(cpu);
        return note;
    } catch (const os::Error &) {
        return {};
    }
}

}  // namespace venus
