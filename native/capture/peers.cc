// What can only be said when all descriptors of the tree are known.
#include <linux/kcmp.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "capture/descriptors.h"
#include "restore/refused.h"
#include "os/proc.h"

namespace venus {
namespace {

void capture_targets(const StoppedProcess &process, const ProcessImage &image, int epoll_number,
                     CaptureState &state, EpollFile &epoll)
{
    std::istringstream lines(
        proc::read_text(process.proc_path("fdinfo/" + std::to_string(epoll_number))));
    std::string object = "descriptor " + std::to_string(epoll_number) + " (epoll)";
    std::map<int, uint32_t> seen_before;
    for (std::string line; std::getline(lines, line);) {
        EpollTarget target{};
        if (sscanf(line.c_str(), "tfd: %d events: %x data: %lx", &target.number, &target.events,
                   &target.data) != 3)
            continue;
        // The registration is keyed by file and number: both must still be there to be rebuilt.
        auto at = std::find_if(
            image.descriptors.begin(), image.descriptors.end(),
            [&](const DescriptorImage &descriptor) { return descriptor.number == target.number; });
        kcmp_epoll_slot slot = {static_cast<uint32_t>(epoll_number),
                                static_cast<uint32_t>(target.number), seen_before[target.number]++};
        if (at == image.descriptors.end() ||
            syscall(SYS_kcmp, process.host_pid, process.host_pid, KCMP_EPOLL_TFD, target.number,
                    &slot) != 0)
            throw Refused(process.label, object,
                          "it watches a file that is no longer descriptor " +
                              std::to_string(target.number));
        target.object = at->object;
        epoll.targets.push_back(target);
    }
    (void)state;
}

}  // namespace

void finish_descriptors(const StoppedTree &tree, CaptureState &state)
{
    finish_sockets(state);
    capture_terminal_queues(state);
    std::vector<bool> done(state.image.objects.size());
    for (size_t i = 0; i < tree.processes.size(); i++) {
        const ProcessImage &image = state.image.processes[i];
        for (const DescriptorImage &descriptor : image.descriptors) {
            auto *epoll = std::get_if<EpollFile>(&state.image.objects[descriptor.object]);
            if (epoll == nullptr || done[descriptor.object])
                continue;
            done[descriptor.object] = true;
            capture_targets(tree.processes[i], image, descriptor.number, state, *epoll);
        }
    }
}

}  // namespace venus
