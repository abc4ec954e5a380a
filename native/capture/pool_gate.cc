#include "capture/pool_gate.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

#include "os/checked.h"
#include "os/proc.h"
#include "venus_restore_format.h"

namespace venus {
namespace {

constexpr std::chrono::seconds kPatience{5};
constexpr std::chrono::milliseconds kPause{1};

}  // namespace

PoolGate::PoolGate(pid_t init_host_pid)
{
    const std::string name = "/memfd:" VR_GATE_NAME " (deleted)";
    std::string directory = proc::path(init_host_pid, "fd");
    for (const std::string &number : proc::list(directory)) {
        std::string path = directory + "/" + number;
        try {
            if (proc::read_link(path) != name)
                continue;
        } catch (const os::Error &) {
            continue;  // closed meanwhile
        }
        file_.reset(checked(open(path.c_str(), O_RDWR | O_CLOEXEC), "open", path));
        break;
    }
    if (!file_)
        return;  // no fork: nothing of its memory is in the pool
    auto give_up = std::chrono::steady_clock::now() + kPatience;
    struct flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_len = 1;
    while (fcntl(file_.get(), F_OFD_SETLK, &lock) < 0) {
        if (errno != EAGAIN && errno != EACCES)
            throw os::Error("lock", VR_GATE_NAME, errno);
        if (std::chrono::steady_clock::now() > give_up)
            throw os::Error("wait for calls on pool memory of", "sandbox", EAGAIN);
        std::this_thread::sleep_for(kPause);
    }
}

PoolGate::Pool PoolGate::pool() const
{
    Pool pool;
    if (!file_)
        return pool;
    auto report = std::make_unique<vr_pool_report>();
    ssize_t got = checked(pread(file_.get(), report.get(), sizeof *report, 0), "read", VR_GATE_NAME);
    if (got == 0)
        return pool;
    if (!vr_pool_report_is_whole(report.get(), static_cast<size_t>(got)))
        throw os::Error("read", VR_GATE_NAME, EBADMSG);
    pool.plans.push_back({report->device, report->plan});
    for (uint32_t i = 0; i < report->count; i++)
        pool.extents.push_back({report->device, report->inodes[i]});
    return pool;
}

}  // namespace venus
