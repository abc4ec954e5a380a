// What can only be said when all descriptors of the tree are known.
#include <linux/kcmp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "capture/descriptors.h"
#include "capture/proc_lines.h"
#include "restore/refused.h"
#include "os/proc.h"

namespace venus {
namespace {

void capture_targets(const StoppedProcess &process, pid_t host_tid, const DescriptorTable &table,
                     int epoll_number, EpollFile &epoll)
{
    std::string fdinfo = proc::read_text(process.proc_path(
        "task/" + std::to_string(host_tid) + "/fdinfo/" + std::to_string(epoll_number)));
    std::string object = "descriptor " + std::to_string(epoll_number) + " (epoll)";
    std::map<int, uint32_t> seen_before;
    for (const TargetLine &target : target_lines(fdinfo)) {
        // The registration is keyed by file and number: both must still be there to be rebuilt.
        auto at = std::find_if(
            table.descriptors.begin(), table.descriptors.end(),
            [&](const DescriptorImage &descriptor) { return descriptor.number == target.number; });
        kcmp_epoll_slot slot = {static_cast<uint32_t>(epoll_number),
                                static_cast<uint32_t>(target.number), seen_before[target.number]++};
        if (at == table.descriptors.end() ||
            syscall(SYS_kcmp, host_tid, host_tid, KCMP_EPOLL_TFD, target.number,
                    &slot) != 0)
            throw Refused(process.label, object,
                          "it watches a file that is no longer descriptor " +
                              std::to_string(target.number));
        epoll.targets.push_back({at->object, target.number, target.events, target.data});
    }
}

}  // namespace

void finish_descriptors(const StoppedTree &tree, CaptureState &state)
{
    finish_sockets(state);
    capture_terminal_queues(state);
    std::vector<bool> done(state.image.objects.size());
    auto look_through = [&](const StoppedProcess &process, pid_t host_tid,
                            const DescriptorTable &table) {
        for (const DescriptorImage &descriptor : table.descriptors) {
            auto *epoll = std::get_if<EpollFile>(&state.image.objects[descriptor.object]);
            if (epoll == nullptr || done[descriptor.object])
                continue;
            done[descriptor.object] = true;
            capture_targets(process, host_tid, table, descriptor.number, *epoll);
        }
    };
    for (size_t i = 0; i < tree.processes.size(); i++) {
        const StoppedProcess &process = tree.processes[i];
        const ProcessImage &image = state.image.processes[i];
        look_through(process, process.first_host_tid(), image.files);
        size_t first_living = process.leader_ended ? 1 : 0;
        for (size_t j = 0; j < process.threads.size(); j++)
            if (const auto &own = image.threads[first_living + j].own_descriptors)
                look_through(process, process.threads[j].tracee.tid(), *own);
    }
}

}  // namespace venus
