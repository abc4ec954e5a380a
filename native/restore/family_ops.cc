#include "restore/family_ops.h"

#include <linux/sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>

#include "restore/memory_ops.h"
#include "restore/object_ops.h"
#include "restore/process_ops.h"
#include "restore/refused.h"
#include "restore/setting_ops.h"
#include "restore/system_v_ops.h"
#include "restore/terminal_ops.h"
#include "restore/thread_ops.h"

namespace venus {
namespace {

// Barriers of one process.
Word threads_built(uint32_t process)
{
    return VR_TREE_BARRIERS + 2 * process;
}

Word threads_stopped(uint32_t process)
{
    return threads_built(process) + 1;
}

bool has_child(const TreeImage &tree, const ProcessImage &process, RunState state)
{
    return std::any_of(tree.processes.begin(), tree.processes.end(), [&](const ProcessImage &child) {
        return child.parent == process.pid && child.state == state;
    });
}

}  // namespace

FamilyWriter::FamilyWriter(const ProcessPlanContext &context, const CreationPlan &creation,
                           const std::vector<Tail> &tails, const vr_header &header,
                           PlanWriter &writer)
    : context_(context),
      creation_(creation),
      tails_(tails),
      header_(header),
      writer_(writer),
      early_helpers_(early_helpers(creation.first)),
      late_files_(has_late_files(context.tree))
{
    if (context.tree.processes.size() > VR_MAX_PROCESSES)
        throw Refused("the sandbox", "its processes",
                      "there are more than " + std::to_string(VR_MAX_PROCESSES));
    find_groups();
    find_late();
}

Word FamilyWriter::new_barrier()
{
    if (next_barrier_ == VR_MAX_BARRIERS)
        throw Refused("the sandbox", "its processes",
                      "more of them share tables than a plan can keep in step");
    return next_barrier_++;
}

void FamilyWriter::find_groups()
{
    for (uint32_t i = 0; i < context_.tree.processes.size(); i++) {
        const ProcessImage &process = context_.tree.processes[i];
        if (process.state == RunState::kStopped && process.shares(Table::kMemory))
            throw Refused("process " + std::to_string(process.pid), "its memory",
                          "it is shared with others, and the process is stopped");
        for (Table table : kAllTables) {
            if (!process.shares(table))
                continue;
            uint32_t holder = holder_of(context_.tree, table, i);
            Group &group = groups_[{table, holder}];
            if (group.members++ == 0) {
                group.barrier = new_barrier();
                if (table == Table::kDescriptors)
                    locks_[holder] = new_barrier();
            }
        }
    }
}

// Threads that come to the last stages; those of stopped processes do not come to kReady.
size_t FamilyWriter::threads(bool with_stopped) const
{
    size_t count = 0;
    for (const ProcessImage &process : context_.tree.processes)
        if (with_stopped || process.state != RunState::kStopped)
            count += process.threads.size();
    return count;
}

void FamilyWriter::wait_at(Word stage, size_t participants, OpList &ops)
{
    ops.add("the others", VR_BARRIER, {stage, participants});
}

void FamilyWriter::wait_for_sharers(Table table, uint32_t index, OpList &ops)
{
    auto group = groups_.find({table, holder_of(context_.tree, table, index)});
    if (group != groups_.end())
        wait_at(group->second.barrier, group->second.members, ops);
}

// Timers are armed after the release, and before the process's filters may forbid that; a child stops
// then, because it could not wait once it is stopped; and helpers, which may be parents for a while,
// have ended.
bool FamilyWriter::is_late_itself(const ProcessImage &process) const
{
    if (process.state == RunState::kZombie)
        return false;
    bool dies_with_parent = std::any_of(
        process.threads.begin(), process.threads.end(),
        [](const ThreadImage &thread) { return thread.parent_death_signal != 0; });
    bool may_adopt = creation_.adoptions && has_child(context_.tree, process, RunState::kZombie);
    return dies_with_parent || may_adopt || has_armed_timers(process) ||
           has_child(context_.tree, process, RunState::kStopped);
}

// Those that share memory wait for each other on the way.
void FamilyWriter::find_late()
{
    const std::vector<ProcessImage> &all = context_.tree.processes;
    late_.resize(all.size());
    for (uint32_t i = 0; i < all.size(); i++)
        if (is_late_itself(all[i]))
            late_[holder_of(context_.tree, Table::kMemory, i)] = true;
    for (uint32_t i = 0; i < all.size(); i++)
        late_[i] = late_[holder_of(context_.tree, Table::kMemory, i)];
}

bool FamilyWriter::anything_is_late() const
{
    const TreeImage &tree = context_.tree;
    auto is_timer = [](const OpenFile &object) { return std::holds_alternative<TimerFile>(object); };
    auto is_stopped = [](const ProcessImage &process) { return process.state == RunState::kStopped; };
    return late_files_ || std::find(late_.begin(), late_.end(), true) != late_.end() ||
           std::any_of(tree.objects.begin(), tree.objects.end(), is_timer) ||
           std::any_of(tree.processes.begin(), tree.processes.end(), is_stopped);
}

// Nothing before it starts a clock of the program.
void FamilyWriter::wait_for_release(OpList &ops)
{
    ops.add("release", VR_BARRIER, {kRunning, threads(true) + 1, true, kGathered});
}

// Who shares its descriptor table uses the lowest numbers for a moment, alone, and is not copied
// meanwhile.
void FamilyWriter::lock(const Birth &birth, OpList &ops, vr_kind kind) const
{
    if (!birth.process)
        return;
    auto found = locks_.find(
        holder_of(context_.tree, Table::kDescriptors, static_cast<uint32_t>(*birth.process)));
    if (found != locks_.end())
        ops.add("descriptor table", kind, {found->second});
}

void FamilyWriter::create_all(OpList &coordinator)
{
    for (const auto &birth : creation_.first)
        add_birth(*birth, nullptr, coordinator);
    wait_at(kBorn, creation_.births + 1, coordinator);
    wait_at(kBuilt, creation_.births + 1, coordinator);
}

void FamilyWriter::see_all_through(OpList &coordinator)
{
    end_helpers(nullptr, creation_.first, coordinator);
    if (late_files_) {
        wait_at(kThreaded, living() + 1, coordinator);
        open_files_of_processes(context_, coordinator);
        add_file_signal_ops(context_, coordinator);
        wait_at(kFilesOpened, tables() + 1, coordinator);
    }
    if (threads(true) > 0)
        wait_at(kGathered, 2, coordinator);
    if (!anything_is_late())
        coordinator.add("the shared page", VR_STORE,
                        {context_.window.shared + offsetof(vr_shared, complete), true});
    coordinator.add("the daemon", VR_BARRIER, {kReleased, 2, true});
    add_timer_file_ops(context_, coordinator);
    wait_at(kRunning, threads(true) + 1, coordinator);
    if (late_files_) {
        wait_at(kSettled, threads(false) + 1, coordinator);
        seek_files_of_processes(context_, coordinator);
    }
    if (anything_is_late())
        wait_at(kReady, threads(false) + 1, coordinator);
}

// Which of the stacks of its address space a process works on.
size_t FamilyWriter::stack_of(const Birth *birth) const
{
    return birth && birth->process ? context_.first_stacks[*birth->process] : 0;
}

// creator: none is the coordinator.
void FamilyWriter::add_birth(const Birth &birth, const Birth *creator, OpList &ops)
{
    const ProcessImage *process =
        birth.process ? &context_.tree.processes[*birth.process] : nullptr;
    struct clone_args arguments{};
    arguments.flags = writer_.leaves_out("shared tables") ? 0 : birth.shares;
    bool for_parent = birth.by_sibling || (!creator && birth.child_of_init);
    int exit_signal = process ? process->exit_signal : SIGCHLD;
    int given = !for_parent ? exit_signal
                : creator   ? context_.tree.processes[*creator->process].exit_signal
                            : SIGCHLD;
    if (given != exit_signal)
        throw Refused("process " + std::to_string(birth.pid), "its exit signal",
                      "it shares tables with a sibling that has another one");
    if (for_parent)
        arguments.flags |= CLONE_PARENT;
    else
        arguments.exit_signal = static_cast<uint64_t>(exit_signal);
    arguments.set_tid = writer_.object(birth.pid);
    arguments.set_tid_size = 1;
    // A copy of another's address space works on the first stack of its own.
    Word top = 0;
    if (stack_of(creator) != 0 || stack_of(&birth) != 0) {
        top = context_.window.stack_top(stack_of(&birth));
        arguments.stack = top - kPageBytes;
        arguments.stack_size = kPageBytes;
    }
    Word start = write_process(birth);
    if (creator)
        lock(*creator, ops, VR_LOCK);
    ops.add("process " + std::to_string(birth.pid), VR_CLONE,
            {writer_.object(arguments), sizeof arguments, start, top}, birth.pid);
    if (creator)
        lock(*creator, ops, VR_UNLOCK);
}

// First those whose orphans go to init. A helper that is not late ends before the others see that.
void FamilyWriter::end_helpers(const Birth *own,
                               const std::vector<std::unique_ptr<Birth>> &children, OpList &ops)
{
    auto reap = [&](bool late) {
        for (const auto &child : children)
            if (!child->process && child->late == late)
                ops.call("helper " + std::to_string(child->pid), SYS_wait4,
                         {word(child->pid), 0, 0, 0}, child->pid);
    };
    reap(false);
    if (creation_.adoptions && (!own || own->process || own->late)) {
        if (own && own->adopts)
            ops.call("subreaper", SYS_prctl, {PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0});
        wait_at(kFirstOrphaned, creation_.births + 1 - early_helpers_, ops);
    }
    reap(true);
}

size_t FamilyWriter::early_helpers(const std::vector<std::unique_ptr<Birth>> &births)
{
    size_t count = 0;
    for (const auto &birth : births)
        count += (!birth->process && !birth->late) + early_helpers(birth->before_session) +
                 early_helpers(birth->after_session);
    return count;
}

void FamilyWriter::add_end(const ProcessImage *process, OpList &ops)
{
    int status = process ? process->exit_status : 0;
    if (process)
        ops.call("zombie name", SYS_prctl, {PR_SET_NAME, writer_.text(process->name)});
    if (WIFSIGNALED(status)) {
        rlimit64 none{0, 0};
        ops.call("zombie", SYS_prlimit64, {0, RLIMIT_CORE, writer_.object(none), 0});
        uint64_t mask = ~(uint64_t{1} << (WTERMSIG(status) - 1));
        ops.call("zombie", SYS_kill, {word(process->pid), word(WTERMSIG(status))});
        ops.call("zombie", SYS_rt_sigprocmask, {SIG_SETMASK, writer_.object(mask), 0, sizeof mask});
    }
    ops.add("process", VR_EXIT, {word(WEXITSTATUS(status))});
}

// Threads that leave the tail write there.
void FamilyWriter::add_mark_ops(const Tail &tail, OpList &ops)
{
    if (tail.has_marks)
        ops.call("marks of sleepers", SYS_mprotect,
                 {tail.address + tail.size - kPageBytes, kPageBytes, PROT_READ | PROT_WRITE});
}

Word FamilyWriter::write_process(const Birth &birth)
{
    uint32_t index = static_cast<uint32_t>(birth.process.value_or(0));
    const ProcessImage *process =
        birth.process ? &context_.tree.processes[*birth.process] : nullptr;
    OpList ops(writer_, index);
    for (const auto &child : birth.before_session)
        add_birth(*child, &birth, ops);
    if (birth.leads_session)
        ops.call("session", SYS_setsid, {}, birth.pid);
    // Children get the terminal by birth.
    if (process && process->controlling_terminal >= 0) {
        lock(birth, ops, VR_LOCK);
        add_controlling_terminal_ops(*process, ops);
        lock(birth, ops, VR_UNLOCK);
    }
    if (birth.leads_group)
        ops.call("group", SYS_setpgid, {0, 0});
    for (const auto &child : birth.after_session)
        add_birth(*child, &birth, ops);
    wait_at(kBorn, creation_.births + 1, ops);
    if (process && process->group > 1 && process->group != process->pid)
        ops.call("group " + std::to_string(process->group), SYS_setpgid, {0, word(process->group)});
    bool lives = process && process->state != RunState::kZombie;
    if (lives) {
        lock(birth, ops, VR_LOCK);
        if (process->stands_for(Table::kMemory, index)) {
            add_memory_ops(context_, *process, ops);
            add_mark_ops(tails_[index], ops);
        }
        add_oom_ops(*process, ops);
        if (process->stands_for(Table::kMemory, index))
            add_process_setting_ops(*process, ops);
        lock(birth, ops, VR_UNLOCK);
    }
    wait_at(kBuilt, creation_.births + 1, ops);
    end_helpers(&birth, birth.after_session, ops);
    if (lives)
        add_life(birth, *process, index, ops);
    else
        add_end(process, ops);
    operations_ += ops.ops().size();
    return writer_.finish(ops);
}

// Zombies must be there, and the stop of a child is reported to its parent once; whether that has
// happened is state.
void FamilyWriter::await_children(const ProcessImage &process, OpList &ops)
{
    for (const ProcessImage &child : context_.tree.processes) {
        if (child.parent != process.pid)
            continue;
        if (child.state == RunState::kZombie)
            ops.call("zombie " + std::to_string(child.pid), SYS_waitid,
                     {P_PID, word(child.pid), 0, word(WEXITED | WNOWAIT | __WALL), 0});
        if (child.state == RunState::kStopped)
            ops.call("stopped child " + std::to_string(child.pid), SYS_waitid,
                     {P_PID, word(child.pid), 0,
                      word(WSTOPPED | __WALL | (child.stop_unseen ? WNOWAIT : 0)), 0});
    }
}

// What processes may share, and the threads, which may have their own.
void FamilyWriter::add_tables(const Birth &birth, const ProcessImage &process, uint32_t index,
                              OpList &ops)
{
    add_bounding_set_ops(process, ops);
    for (size_t i = 1; i < process.threads.size(); i++) {
        // Of a table that is copied nobody may use the lowest numbers.
        bool copies = process.threads[i].own_descriptors.has_value();
        if (copies)
            lock(birth, ops, VR_LOCK);
        add_thread(process, index, i, ops);
        if (copies)
            lock(birth, ops, VR_UNLOCK);
    }
    if (late_files_)
        wait_at(kThreaded, living() + 1, ops);
    wait_for_sharers(Table::kDirectories, index, ops);
    if (process.stands_for(Table::kDirectories, index))
        add_working_directory_ops(context_, process.directories, ops);
    wait_for_sharers(Table::kDescriptors, index, ops);
    if (process.stands_for(Table::kDescriptors, index))
        add_descriptors(process.files, ops);
    if (process.stands_for(Table::kDirectories, index))
        add_root_directory_ops(process.directories, ops);
    if (process.stands_for(Table::kSemaphoreUndo, index))
        add_semaphore_undo_ops(context_, process.semaphore_undo, ops);
}

// No program runs while a process is without its filters, or one runs that shall be stopped.
void FamilyWriter::wait_until_ready(OpList &ops)
{
    if (late_files_)
        wait_at(kSettled, threads(false) + 1, ops);
    if (anything_is_late())
        wait_at(kReady, threads(false) + 1, ops);
}

void FamilyWriter::add_descriptors(const DescriptorTable &table, OpList &ops)
{
    if (late_files_) {
        wait_at(kFilesOpened, tables() + 1, ops);
        fetch_files_of_processes(context_, table, ops);
    }
    add_descriptor_ops(context_, table, ops);
}

size_t FamilyWriter::living() const
{
    const std::vector<ProcessImage> &all = context_.tree.processes;
    return static_cast<size_t>(std::count_if(all.begin(), all.end(), [](const ProcessImage &process) {
        return process.state != RunState::kZombie;
    }));
}

size_t FamilyWriter::tables() const
{
    size_t count = 0;
    for (uint32_t i = 0; i < context_.tree.processes.size(); i++) {
        const ProcessImage &process = context_.tree.processes[i];
        if (process.state != RunState::kZombie && process.stands_for(Table::kDescriptors, i))
            count++;
        for (const ThreadImage &thread : process.threads)
            count += thread.own_descriptors.has_value();
    }
    return count;
}

void FamilyWriter::add_life(const Birth &birth, const ProcessImage &process, uint32_t index,
                            OpList &ops)
{
    lock(birth, ops, VR_LOCK);
    add_foreground_ops(process, ops);
    lock(birth, ops, VR_UNLOCK);
    add_tables(birth, process, index, ops);
    const ThreadImage &first = process.threads[0];
    add_thread_ops(first, ops);
    add_thread_setting_ops(first, ops);
    add_timer_ops(process, context_.window.work_area(context_.first_stacks[index]), ops);
    add_limit_ops(process, ops);
    add_credential_ops(first, ops);
    if (late_[index]) {
        wait_for_release(ops);
        add_timer_start_ops(process, ops);
        add_signals_and_filters(birth, process, index, ops);
    } else {
        add_signals_and_filters(birth, process, index, ops);
        wait_for_release(ops);
    }
    if (process.state == RunState::kStopped) {
        ops.call("stop", SYS_kill, {word(process.pid), SIGSTOP});
        wait_at(threads_stopped(index), process.threads.size(), ops);
    } else {
        wait_until_ready(ops);
    }
    add_leave(process, index, 0, ops);
}

void FamilyWriter::add_signals_and_filters(const Birth &birth, const ProcessImage &process,
                                           uint32_t index, OpList &ops)
{
    // The filters are put on all threads at once, and could forbid what these have left to do.
    if (process.threads.size() > 1)
        wait_at(threads_built(index), process.threads.size(), ops);
    wait_for_sharers(Table::kMemory, index, ops);
    add_death_signal_ops(process.threads[0], ops);
    await_children(process, ops);
    add_signal_reset_ops(context_.tree, process, ops);
    wait_for_sharers(Table::kSignalActions, index, ops);
    if (process.stands_for(Table::kSignalActions, index))
        add_signal_action_ops(process, ops);
    add_pending_signal_ops(process, process.threads[0], ops);
    add_last_ops(process, birth.adopts, ops);
    if (process.stands_for(Table::kMemory, index))
        add_memory_rights_ops(process, ops);
    add_seccomp_ops(process, ops);
}

void FamilyWriter::add_thread(const ProcessImage &process, uint32_t index, size_t number,
                              OpList &leader)
{
    const ThreadImage &thread = process.threads[number];
    OpList ops(writer_, index);
    if (thread.own_directories)
        add_working_directory_ops(context_, *thread.own_directories, ops);
    if (thread.own_descriptors)
        add_descriptors(*thread.own_descriptors, ops);
    if (thread.own_directories)
        add_root_directory_ops(*thread.own_directories, ops);
    if (thread.own_semaphore_undo)
        add_semaphore_undo_ops(context_, *thread.own_semaphore_undo, ops);
    add_thread_ops(thread, ops);
    add_thread_setting_ops(thread, ops);
    add_credential_ops(thread, ops);
    add_pending_signal_ops(process, thread, ops);
    if (late_[index])
        wait_for_release(ops);
    add_death_signal_ops(thread, ops);
    ops.add("its process", VR_JOIN, {threads_built(index), process.threads.size()});
    if (!late_[index])
        wait_for_release(ops);
    if (process.state == RunState::kStopped)
        wait_at(threads_stopped(index), process.threads.size(), ops);
    else
        wait_until_ready(ops);
    add_leave(process, index, number, ops);
    operations_ += ops.ops().size();
    struct clone_args arguments{};
    arguments.flags = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD;
    if (!thread.own_descriptors)
        arguments.flags |= CLONE_FILES;
    if (!thread.own_directories)
        arguments.flags |= CLONE_FS;
    if (!thread.own_semaphore_undo)
        arguments.flags |= CLONE_SYSVSEM;
    arguments.set_tid = writer_.object(thread.tid);
    arguments.set_tid_size = 1;
    Word top = context_.window.stack_top(context_.first_stacks[index] + number);
    arguments.stack = top - kPageBytes;
    arguments.stack_size = kPageBytes;
    leader.add("thread " + std::to_string(thread.tid), VR_CLONE,
               {writer_.object(arguments), sizeof arguments, writer_.finish(ops), top}, thread.tid);
}

// One thread of each address space waits for the others and unmaps the plan.
void FamilyWriter::add_leave(const ProcessImage &process, uint32_t index, size_t number, OpList &ops)
{
    const TreeImage &tree = context_.tree;
    const Tail &tail = tails_[index];
    uint32_t holder = holder_of(tree, Table::kMemory, index);
    Word counter = context_.window.leaving_counter(holder);
    const ThreadImage &thread = process.threads[number];
    if (thread.ended) {
        ops.add("program", VR_LEAVE_THREAD,
                {tail.address + header_.tail_exit, word(WEXITSTATUS(thread.exit_status)), counter});
        return;
    }
    size_t last = process.threads[0].ended ? 1 : 0;
    if (holder != index || number != last) {
        ops.add("program", VR_LEAVE_THREAD,
                {tail.address + header_.tail_thread, tail.frames[number], counter});
        return;
    }
    size_t others = 0;
    for (uint32_t i = 0; i < tree.processes.size(); i++)
        if (holder_of(tree, Table::kMemory, i) == holder)
            others += tree.processes[i].threads.size();
    ops.add("program", VR_LEAVE,
            {tail.address + header_.tail_leader, tail.frames[number], counter, tail.address,
             tail.address + tail.size, others - 1});
}

}  // namespace venus
