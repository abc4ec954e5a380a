#include "capture/capture.h"

#include "capture/arrival.h"
#include "capture/descriptors.h"
#include "capture/memory.h"
#include "capture/memory_filesystems.h"
#include "capture/plan_remains.h"
#include "capture/pool_gate.h"
#include "capture/process.h"
#include "capture/settings.h"
#include "capture/sharing.h"
#include "capture/stopped_tree.h"
#include "capture/system_v.h"
#include "capture/threads.h"
#include "capture/unaccepted.h"
#include "capture/undelivered.h"
#include "os/unix_diag.h"
#include "restore/refused.h"

namespace venus {
namespace {

// Of a first thread that has ended: what /proc still shows of it.
ThreadImage ended_leader(StoppedProcess &process)
{
    ThreadImage image = capture_ended_thread(process);
    map_credentials(process, image.credentials);
    return image;
}

void note_ids(const StoppedTree &tree, CaptureState &state)
{
    constexpr size_t kGroup = 5;  // field of stat
    for (const StoppedProcess &process : tree.processes) {
        state.inner_ids[process.host_pid] = process.pid;
        for (const StoppedThread &thread : process.threads)
            state.inner_ids[thread.tracee.tid()] = thread.tid;
        state.inner_groups[std::stoi(process.stat.at(kGroup))] = process.group;
    }
}

void capture_zombie(const StoppedProcess &process, ProcessImage &image)
{
    image.state = RunState::kZombie;
    image.exit_status = std::stoi(process.stat.at(52));
}

// Tables of threads that are not those of their process.
void capture_own_tables(StoppedProcess &process, const StoppedThread &thread, CaptureState &state,
                        ThreadImage &image)
{
    pid_t tid = thread.tracee.tid();
    if (!have_same(Table::kDescriptors, process.first_host_tid(), tid))
        image.own_descriptors = capture_descriptors(process, thread, state);
    // Without a list it shares none: not even one that the process makes later.
    if (!has_semaphore_undo(tid) || !have_same(Table::kSemaphoreUndo, process.first_host_tid(), tid))
        image.own_semaphore_undo.emplace();
    if (!have_same(Table::kDirectories, process.first_host_tid(), tid))
        image.own_directories = capture_directories(process, thread, state);
}

void capture_living(StoppedProcess &process, uint32_t index, StoppedTree &tree, CaptureState &state,
                    ProcessImage &image)
{
    capture_process(process, tree, image);
    capture_process_settings(process, state.init, image);
    if (process.leader_ended)
        image.threads.push_back(ended_leader(process));
    for (StoppedThread &thread : process.threads) {
        image.threads.push_back(capture_thread(process, thread));
        map_credentials(process, image.threads.back().credentials);
        if (&thread != &process.threads.front())
            capture_own_tables(process, thread, state, image.threads.back());
    }
    if (image.stands_for(Table::kDescriptors, index))
        image.files = capture_descriptors(process, process.first(), state);
    if (image.stands_for(Table::kDirectories, index))
        image.directories = capture_directories(process, process.first(), state);
}

}  // namespace

CaptureState capture_tree(CaptureRequest request)
{
    PoolGate gate(request.init_host_pid);
    std::unique_ptr<StoppedTree> stopped = stop_arrived(request.init_host_pid, request.lineage.plans);
    StoppedTree &tree = *stopped;
    enter_network_namespace(request.init_host_pid);
    let_connections_be_accepted(tree);
    let_data_arrive(tree);
    WriteTracking *tracking = request.tracking;
    CaptureState state;
    state.init = request.init_host_pid;
    state.reset_external = request.reset_external;
    state.external = std::move(request.external);
    state.inherited = std::move(request.lineage.extents);
    state.inherited_plans = std::move(request.lineage.plans);
    PoolGate::Pool pool = gate.pool();
    state.inherited_plans.insert(state.inherited_plans.end(), pool.plans.begin(), pool.plans.end());
    state.pool_extents = std::move(pool.extents);
    if (request.checkpoint)
        state.checkpoint = std::move(request.checkpoint);
    std::vector<std::array<uint32_t, kTables>> shared = find_shared_tables(tree);
    note_ids(tree, state);
    if (tracking)
        tracking->begin();
    for (uint32_t i = 0; i < tree.processes.size(); i++) {
        StoppedProcess &process = tree.processes[i];
        state.checkpoint();
        ProcessImage image{};
        image.shared_with = shared[i];
        image.pid = process.pid;
        image.parent = process.parent;
        image.group = process.group;
        image.session = process.session;
        image.exit_signal = process.exit_signal;
        image.name = process.name;
        if (process.zombie) {
            capture_zombie(process, image);
        } else {
            prepare_injection(process, state.inherited_plans,
                              image.stands_for(Table::kMemory, i)
                                  ? nullptr
                                  : &tree.processes[image.shared_with[0]]);
            capture_living(process, i, tree, state, image);
        }
        state.image.processes.push_back(std::move(image));
    }
    state.image.vdso = own_vdso();
    finish_descriptors(tree, state);
    capture_system_v(tree, state);
    // After the descriptors, so that a memfd which is open and mapped is one object.
    for (uint32_t i = 0; i < tree.processes.size(); i++) {
        StoppedProcess &process = tree.processes[i];
        if (process.zombie || !state.image.processes[i].stands_for(Table::kMemory, i))
            continue;
        KnownProcess known;
        if (tracking)
            known = tracking->take(process);
        process.keeps_plan = !is_plan_left_behind(tree, state.image, i);
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
