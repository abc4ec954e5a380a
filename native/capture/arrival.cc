#include "capture/arrival.h"

#include <string.h>

#include <chrono>
#include <thread>

#include "capture/plan_remains.h"
#include "os/proc.h"
#include "restore/refused.h"
#include "restore/runner_image.h"
#include "venus_restore_format.h"

namespace venus {
namespace {

using Clock = std::chrono::steady_clock;
// For a thousand threads on a busy node.
constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::milliseconds kPause{2};

uint32_t tail_code_bytes()
{
    vr_header header;
    memcpy(&header, venus_runner_image, sizeof header);
    return header.tail_code_bytes;
}

// The whole plan is mapped until the process leaves it; then only its tail is, through whose code each
// thread passes. What follows the code there belongs to the program. A process that was stopped in its
// original has arrived: it is stopped within the plan and leaves it when it is continued.
bool is_being_restored(const StoppedProcess &process, const std::vector<FileIdentity> &plans)
{
    if (process.zombie || process.threads.front().tracee.in_group_stop())
        return false;
    for (const Area &area : parse_areas(proc::read_text(process.proc_path("maps")))) {
        if (!is_plan(area, plans))
            continue;
        if (area.offset == 0)
            return true;
        for (const StoppedThread &thread : process.threads)
            if (thread.tracee.registers().rip - area.run.start < tail_code_bytes())
                return true;
    }
    return false;
}

const StoppedProcess *first_being_restored(const StoppedTree &tree,
                                           const std::vector<FileIdentity> &plans)
{
    if (plans.empty())
        return nullptr;
    for (const StoppedProcess &process : tree.processes)
        if (is_being_restored(process, plans))
            return &process;
    return nullptr;
}

}  // namespace

std::unique_ptr<StoppedTree> stop_arrived(pid_t init_host_pid, const std::vector<FileIdentity> &plans)
{
    Clock::time_point deadline = Clock::now() + kPatience;
    for (;;) {
        auto tree = std::make_unique<StoppedTree>(init_host_pid);
        const StoppedProcess *process = first_being_restored(*tree, plans);
        if (process == nullptr)
            return tree;
        if (Clock::now() > deadline)
            throw Refused(process->label, "its restore", "it has not come to its end");
        tree.reset();
        std::this_thread::sleep_for(kPause);
    }
}

}  // namespace venus
