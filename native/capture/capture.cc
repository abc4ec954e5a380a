#include "capture/capture.h"

#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "capture/arrival.h"
#include "capture/descriptors.h"
#include "capture/memory.h"
#include "capture/memory_filesystems.h"
#include "capture/pool_gate.h"
#include "capture/process.h"
#include "capture/settings.h"
#include "capture/stopped_tree.h"
#include "capture/system_v.h"
#include "capture/threads.h"
#include "os/unix_diag.h"
#include "restore/refused.h"

namespace venus {
namespace {

bool shares(pid_t a, pid_t b, int what)
{
    return syscall(SYS_kcmp, a, b, what, 0, 0) == 0;
}

// A fork gives each process tables of its own: tables that two share would be silently different.
void refuse_shared_tables(const StoppedTree &tree)
{
    static constexpr struct {
        int kind;
        const char *name;
    } tables[] = {{KCMP_VM, "address space"},
                  {KCMP_FILES, "descriptor table"},
                  {KCMP_FS, "working directory"}};
    for (size_t i = 0; i < tree.processes.size(); i++) {
        const StoppedProcess &process = tree.processes[i];
        if (process.zombie)
            continue;
        for (const StoppedThread &thread : process.threads)
            for (int kind : {KCMP_FILES, KCMP_FS})
                if (!shares(process.host_pid, thread.tracee.tid(), kind))
                    throw Refused(process.label, "thread " + std::to_string(thread.tid),
                                  "its descriptors or directory are not those of its process");
        for (size_t j = 0; j < i; j++) {
            const StoppedProcess &other = tree.processes[j];
            // Tables are shared by clone(): between a process and its parent, or siblings.
            if (other.zombie || (other.pid != process.parent && other.parent != process.parent))
                continue;
            for (const auto &table : tables)
                if (shares(process.host_pid, other.host_pid, table.kind))
                    throw Refused(process.label, table.name,
                                  std::string("it is shared with ") + other.label);
        }
    }
}

}  // namespace

CaptureState capture_tree(CaptureRequest request)
{
    PoolGate gate(request.init_host_pid);
    std::unique_ptr<StoppedTree> stopped = stop_arrived(request.init_host_pid, request.lineage.plans);
    StoppedTree &tree = *stopped;
    enter_network_namespace(request.init_host_pid);
    WriteTracking *tracking = request.tracking;
    CaptureState state;
    state.init = request.init_host_pid;
    state.reset_external = request.reset_external;
    state.external = std::move(request.external);
    state.inherited = std::move(request.lineage.extents);
    state.inherited_plans = std::move(request.lineage.plans);
    if (request.checkpoint)
        state.checkpoint = std::move(request.checkpoint);
    refuse_shared_tables(tree);
    if (tracking)
        tracking->begin();
    for (StoppedProcess &process : tree.processes) {
        state.checkpoint();
        ProcessImage image{};
        image.pid = process.pid;
        image.parent = process.parent;
        image.group = process.group;
        image.session = process.session;
        image.name = process.stat.at(2);
        if (process.zombie) {
            image.state = RunState::kZombie;
            image.exit_status = std::stoi(process.stat.at(52));
        } else {
            prepare_injection(process, state.inherited_plans);
            capture_process(process, tree, image);
            capture_process_settings(process, request.init_host_pid, image);
            for (StoppedThread &thread : process.threads) {
                image.threads.push_back(capture_thread(process, thread));
                map_credentials(process, image.threads.back().credentials);
            }
            capture_descriptors(process, state, image);
        }
        state.image.processes.push_back(std::move(image));
    }
    state.image.vdso = own_vdso();
    finish_descriptors(tree, state);
    capture_file_owners(tree, state);
    capture_system_v(tree, state);
    // After the descriptors, so that a memfd which is open and mapped is one object.
    for (size_t i = 0; i < tree.processes.size(); i++) {
        StoppedProcess &process = tree.processes[i];
        if (process.zombie)
            continue;
        KnownProcess known;
        if (tracking)
            known = tracking->take(process);
        capture_memory(process, state, state.image.processes[i], tracking ? &known : nullptr);
        if (tracking)
            tracking->remember(process.host_pid, std::move(known));
    }
    capture_memory_filesystems(state);
    tree.put_back();
    if (request.while_stopped)
        request.while_stopped();
    return state;
}

}  // namespace venus
