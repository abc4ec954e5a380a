#include "restore/restore_plan.h"

#include <linux/filter.h>
#include <linux/sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>

#include "restore/refused.h"
#include "restore/creation.h"
#include "restore/memory_ops.h"
#include "restore/pool_filter.h"
#include "restore/object_ops.h"
#include "restore/process_ops.h"
#include "restore/setting_ops.h"
#include "restore/system_v_ops.h"
#include "restore/tail.h"
#include "restore/terminal_ops.h"
#include "restore/thread_ops.h"

namespace venus {
namespace {

constexpr uint64_t kAddressSpaceEnd = 0x7ffffffff000;
constexpr uint64_t kLargestPlan = uint64_t{1} << 29;
// Stages at which the whole tree waits for its last member. All of them wait at kRunning for the
// coordinator: the last to come tells it (kGathered), and it waits for the daemon (kReleased) first.
enum Stage : Word {
    kBorn,
    kBuilt,
    kGathered,
    kReleased = VR_RELEASE_BARRIER,
    kRunning,
    kReady,
};
static_assert(Word{kReady} < VR_TREE_BARRIERS);

// Those of one process.
Word threads_built(uint32_t process) { return VR_TREE_BARRIERS + 2 * process; }
Word threads_stopped(uint32_t process) { return threads_built(process) + 1; }

uint64_t round_up(uint64_t bytes)
{
    return (bytes + kPageBytes - 1) & ~(kPageBytes - 1);
}

class PlanBuilder {
public:
    PlanBuilder(const TreeImage &tree, const Bytes &runner, const std::string &leave_out)
        : context_{tree, lay_out_descriptors(tree), lay_out_window(tree)},
          runner_(runner),
          creation_(plan_creation(tree)),
          writer_(context_.window.base, prefix_bytes(tree), leave_out)
    {
        memcpy(&header_, runner.data(), sizeof header_);
        build_tails();
    }

    RestorePlan build()
    {
        OpList ops(writer_, 0);
        const WindowLayout &window = context_.window;
        ops.add("vDSO", VR_PARK_VDSO, {});
        ops.call("old memory", SYS_munmap, {0, window.start});
        uint64_t end = window.base + kLargestPlan;
        ops.call("old memory", SYS_munmap, {end, kAddressSpaceEnd - end});
        ops.call_unjudged("umask", SYS_umask, {0});
        add_object_ops(context_, ops);
        add_system_v_ops(context_, ops);
        for (const auto &birth : creation_.first)
            add_birth(*birth, ops, true);
        wait_at(kBorn, creation_.births + 1, ops);
        wait_at(kBuilt, creation_.births + 1, ops);
        add_system_v_removal_ops(context_, ops);
        reap_helpers(creation_.first, ops);
        if (threads(true) > 0)
            wait_at(kGathered, 2, ops);
        if (!anything_is_late())
            ops.add("the shared page", VR_STORE,
                    {window.shared + offsetof(vr_shared, complete), true});
        ops.add("the daemon", VR_BARRIER, {kReleased, 2, true});
        add_timer_file_ops(context_, ops);
        wait_at(kRunning, threads(true) + 1, ops);
        wait_until_ready(ops);
        ops.add("coordinator", VR_EXIT, {0});
        header_.first_op = writer_.finish(ops);
        operations_ += ops.ops().size();
        return finish();
    }

private:
    uint64_t prefix_bytes(const TreeImage &tree) const
    {
        uint64_t bytes = round_up(runner_.size());
        vr_header header;
        memcpy(&header, runner_.data(), sizeof header);
        for (const ProcessImage &process : tree.processes)
            bytes += tail_bytes(process, header.tail_code_bytes);
        return bytes;
    }

    void build_tails()
    {
        writer_.patch_prefix(0, runner_.data(), runner_.size());
        Bytes code(runner_.begin() + header_.tail_code,
                   runner_.begin() + header_.tail_code + header_.tail_code_bytes);
        uint64_t offset = round_up(runner_.size());
        for (const ProcessImage &process : context_.tree.processes) {
            tails_.push_back(build_tail(process, code, context_.window.base + offset));
            tail_at_.push_back(context_.window.base + offset);
            writer_.patch_prefix(offset, tails_.back().bytes.data(), tails_.back().bytes.size());
            offset += tails_.back().bytes.size();
        }
    }

    // Threads that come to the last stages; those of stopped processes do not come to kReady.
    size_t threads(bool with_stopped) const
    {
        size_t count = 0;
        for (const ProcessImage &process : context_.tree.processes)
            if (with_stopped || process.state != RunState::kStopped)
                count += process.threads.size();
        return count;
    }

    void wait_at(Word stage, size_t participants, OpList &ops)
    {
        ops.add("the others", VR_BARRIER, {stage, participants});
    }

    // Nothing before it starts a clock of the program.
    void wait_for_release(OpList &ops)
    {
        ops.add("release", VR_BARRIER, {kRunning, threads(true) + 1, true, kGathered});
    }

    bool has_stopped_children(const ProcessImage &process) const
    {
        for (const ProcessImage &child : context_.tree.processes)
            if (child.parent == process.pid && child.state == RunState::kStopped)
                return true;
        return false;
    }

    // Whether a process still has something to do after the release. Timers are armed then, and
    // before its filters may forbid that; a child stops then, because it could not wait once it is
    // stopped; and helpers, which may be parents for a while, have ended.
    bool is_late(const ProcessImage &process) const
    {
        bool dies_with_parent = false;
        for (const ThreadImage &thread : process.threads)
            dies_with_parent |= thread.parent_death_signal != 0;
        return process.state != RunState::kZombie &&
               (dies_with_parent || has_armed_timers(process) || has_stopped_children(process));
    }

    bool anything_is_late() const
    {
        for (const OpenFile &object : context_.tree.objects)
            if (std::holds_alternative<TimerFile>(object))
                return true;
        for (const ProcessImage &process : context_.tree.processes)
            if (process.state == RunState::kStopped || is_late(process))
                return true;
        return false;
    }

    // No program runs while a process is without its filters, or one runs that shall be stopped.
    void wait_until_ready(OpList &ops)
    {
        if (anything_is_late())
            wait_at(kReady, threads(false) + 1, ops);
    }

    void add_birth(const Birth &birth, OpList &ops, bool by_coordinator)
    {
        struct clone_args arguments{};
        if (by_coordinator && birth.child_of_init)
            arguments.flags = CLONE_PARENT;
        else
            arguments.exit_signal = SIGCHLD;
        arguments.set_tid = writer_.object(birth.pid);
        arguments.set_tid_size = 1;
        ops.add("process " + std::to_string(birth.pid), VR_CLONE,
                {writer_.object(arguments), sizeof arguments, write_process(birth), 0}, birth.pid);
    }

    void reap_helpers(const std::vector<std::unique_ptr<Birth>> &births, OpList &ops)
    {
        for (const auto &birth : births) {
            std::string object = "helper " + std::to_string(birth->pid);
            if (!birth->process)
                ops.call(object, SYS_wait4, {word(birth->pid), 0, 0, 0}, birth->pid);
            else if (!birth->child_of_init &&
                     context_.tree.processes[*birth->process].state == RunState::kZombie)
                ops.call("zombie " + std::to_string(birth->pid), SYS_waitid,
                         {P_PID, word(birth->pid), 0, WEXITED | WNOWAIT, 0});
        }
    }

    void add_end(const ProcessImage *process, OpList &ops)
    {
        int status = process ? process->exit_status : 0;
        if (process)
            ops.call("zombie name", SYS_prctl, {PR_SET_NAME, writer_.text(process->name)});
        if (WIFSIGNALED(status)) {
            rlimit64 none{0, 0};
            ops.call("zombie", SYS_prlimit64, {0, RLIMIT_CORE, writer_.object(none), 0});
            uint64_t mask = ~(uint64_t{1} << (WTERMSIG(status) - 1));
            ops.call("zombie", SYS_kill, {word(process->pid), word(WTERMSIG(status))});
            ops.call("zombie", SYS_rt_sigprocmask,
                     {SIG_SETMASK, writer_.object(mask), 0, sizeof mask});
        }
        ops.add("process", VR_EXIT, {word(WEXITSTATUS(status))});
    }

    Word write_process(const Birth &birth)
    {
        uint32_t index = static_cast<uint32_t>(birth.process.value_or(0));
        const ProcessImage *process =
            birth.process ? &context_.tree.processes[*birth.process] : nullptr;
        OpList ops(writer_, index);
        for (const auto &child : birth.before_session)
            add_birth(*child, ops, false);
        if (birth.leads_session)
            ops.call("session", SYS_setsid, {}, birth.pid);
        // Children get the terminal by birth.
        if (process)
            add_controlling_terminal_ops(*process, ops);
        if (birth.leads_group)
            ops.call("group", SYS_setpgid, {0, 0});
        for (const auto &child : birth.after_session)
            add_birth(*child, ops, false);
        wait_at(kBorn, creation_.births + 1, ops);
        if (process && process->group > 1 && process->group != process->pid)
            ops.call("group " + std::to_string(process->group), SYS_setpgid,
                     {0, word(process->group)});
        bool lives = process && process->state != RunState::kZombie;
        if (lives) {
            add_memory_ops(context_, *process, ops);
            add_oom_ops(*process, ops);
            add_process_setting_ops(*process, ops);
        }
        wait_at(kBuilt, creation_.births + 1, ops);
        reap_helpers(birth.before_session, ops);
        reap_helpers(birth.after_session, ops);
        if (lives)
            add_life(*process, index, ops);
        else
            add_end(process, ops);
        operations_ += ops.ops().size();
        return writer_.finish(ops);
    }

    void add_oom_ops(const ProcessImage &process, OpList &ops)
    {
        std::string value = std::to_string(process.oom_score_adjustment);
        std::string path = "/proc/self/oom_score_adj";
        ops.call(path, SYS_openat, {word(-100), writer_.text(path), 02000001}, 0);
        ops.call(path, SYS_write, {0, writer_.text(value), value.size()},
                 static_cast<int64_t>(value.size()));
        ops.call(path, SYS_close, {0});
    }

    // The stop of a child is reported to its parent once; whether that has happened is state.
    void await_stopped_children(const ProcessImage &process, OpList &ops)
    {
        for (const ProcessImage &child : context_.tree.processes)
            if (child.parent == process.pid && child.state == RunState::kStopped)
                ops.call("stopped child " + std::to_string(child.pid), SYS_waitid,
                         {P_PID, word(child.pid), 0,
                          word(WSTOPPED | (child.stop_unseen ? WNOWAIT : 0)), 0});
    }

    void add_life(const ProcessImage &process, uint32_t index, OpList &ops)
    {
        if (tails_[index].has_marks)
            ops.call("marks of sleepers", SYS_mprotect,
                     {tail_at_[index] + tails_[index].bytes.size() - kPageBytes, kPageBytes,
                      PROT_READ | PROT_WRITE});
        add_foreground_ops(process, ops);
        add_descriptor_ops(context_, process, ops);
        add_file_owner_ops(context_, process, ops);
        add_semaphore_undo_ops(process, ops);
        add_bounding_set_ops(process, ops);
        for (size_t i = 1; i < process.threads.size(); i++)
            add_thread(process, index, i, ops);
        add_thread_ops(process, process.threads[0], ops);
        add_thread_setting_ops(process.threads[0], ops);
        add_timer_ops(context_, process, ops);
        add_limit_ops(process, ops);
        add_credential_ops(process.threads[0], ops);
        if (is_late(process)) {
            wait_for_release(ops);
            add_timer_start_ops(process, ops);
            add_signals_and_filters(process, index, ops);
        } else {
            add_signals_and_filters(process, index, ops);
            wait_for_release(ops);
        }
        if (process.state == RunState::kStopped) {
            ops.call("stop", SYS_kill, {word(process.pid), SIGSTOP});
            wait_at(threads_stopped(index), process.threads.size(), ops);
        } else {
            wait_until_ready(ops);
        }
        uint64_t tail = tail_at_[index];
        ops.add("program", VR_LEAVE,
                {tail + header_.tail_leader, tails_[index].frames[0],
                 context_.window.leaving_counter(index), tail, tail + tails_[index].bytes.size(),
                 process.threads.size() - 1});
    }

    void add_signals_and_filters(const ProcessImage &process, uint32_t index, OpList &ops)
    {
        // The filters are put on all threads at once, and could forbid what these have left to do.
        if (process.threads.size() > 1)
            wait_at(threads_built(index), process.threads.size(), ops);
        add_death_signal_ops(process.threads[0], ops);
        await_stopped_children(process, ops);
        add_signal_action_ops(process, ops);
        add_pending_signal_ops(process, process.threads[0], ops);
        add_last_ops(process, ops);
        add_memory_rights_ops(process, ops);
        add_seccomp_ops(process, ops);
    }

    void add_thread(const ProcessImage &process, uint32_t index, size_t number, OpList &leader)
    {
        const ThreadImage &thread = process.threads[number];
        OpList ops(writer_, index);
        add_thread_ops(process, thread, ops);
        add_thread_setting_ops(thread, ops);
        add_credential_ops(thread, ops);
        add_pending_signal_ops(process, thread, ops);
        if (is_late(process))
            wait_for_release(ops);
        add_death_signal_ops(thread, ops);
        ops.add("its process", VR_JOIN, {threads_built(index), process.threads.size()});
        if (!is_late(process))
            wait_for_release(ops);
        if (process.state == RunState::kStopped)
            wait_at(threads_stopped(index), process.threads.size(), ops);
        else
            wait_until_ready(ops);
        ops.add("program", VR_LEAVE_THREAD,
                {tail_at_[index] + header_.tail_thread, tails_[index].frames[number],
                 context_.window.leaving_counter(index)});
        operations_ += ops.ops().size();
        struct clone_args arguments{};
        arguments.flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
                          CLONE_SYSVSEM;
        arguments.set_tid = writer_.object(thread.tid);
        arguments.set_tid_size = 1;
        arguments.stack = context_.window.stack_top(number) - kPageBytes;
        arguments.stack_size = kPageBytes;
        leader.add("thread " + std::to_string(thread.tid), VR_CLONE,
                   {writer_.object(arguments), sizeof arguments, writer_.finish(ops),
                    context_.window.stack_top(number)},
                   thread.tid);
    }

    void add_pool_filter()
    {
        const TreeImage &tree = context_.tree;
        Bytes filter = writer_.leaves_out("pool filter") ? Bytes{} : make_pool_filter(tree);
        std::vector<uint32_t> pool;
        for (uint32_t i = 0; i < tree.extents.size(); i++)
            if (tree.extents[i].anonymous)
                pool.push_back(i);
        header_.filter = writer_.data(filter) - writer_.base();
        header_.filter_count = static_cast<uint32_t>(filter.size() / sizeof(sock_filter));
        header_.pool = writer_.data(pool.data(), pool.size() * sizeof(uint32_t)) - writer_.base();
        header_.pool_count = static_cast<uint32_t>(pool.size());
    }

    RestorePlan finish()
    {
        const WindowLayout &window = context_.window;
        add_pool_filter();
        header_.window_start = window.start;
        header_.base = window.base;
        header_.plan_bytes = round_up(writer_.bytes().size());
        header_.scratch = window.scratch;
        header_.scratch_bytes = window.scratch_bytes;
        header_.shared = window.shared;
        header_.shared_bytes = window.shared_bytes;
        header_.park = window.park;
        if (header_.plan_bytes > kLargestPlan)
            throw Refused("the sandbox", "its pipes and sockets", "too much data waits in them");
        header_.window_end = window.base + header_.plan_bytes;
        header_.shared_fd = static_cast<uint32_t>(context_.descriptors.shared);
        const std::vector<VdsoPart> &vdso = first_vdso();
        if (vdso.size() > VR_MAX_VDSO_PARTS)
            throw Refused("the sandbox", "vDSO", "it has more parts than are known");
        header_.vdso_parts = static_cast<uint32_t>(vdso.size());
        // The last part is the vDSO itself; the others lie below it.
        for (size_t i = 0; i < vdso.size(); i++) {
            header_.vdso[i].start = static_cast<int64_t>(vdso[i].area.start - vdso.back().area.start);
            header_.vdso[i].bytes = vdso[i].area.size();
        }
        writer_.patch_prefix(0, &header_, sizeof header_);
        RestorePlan plan{};
        plan.bytes = writer_.bytes();
        plan.bytes.resize(header_.plan_bytes);
        plan.base = window.base;
        plan.entry = header_.entry;
        plan.coordinator = creation_.coordinator;
        plan.first_descriptor = context_.descriptors.extents;
        plan.shared_bytes = static_cast<uint32_t>(window.shared_bytes);
        plan.operations = operations_;
        return plan;
    }

    // Of the coordinator, which has it as every process of this kernel has.
    const std::vector<VdsoPart> &first_vdso() const
    {
        for (const ProcessImage &process : context_.tree.processes)
            if (!process.vdso.empty())
                return process.vdso;
        return context_.tree.vdso;
    }

    ProcessPlanContext context_;
    const Bytes &runner_;
    CreationPlan creation_;
    PlanWriter writer_;
    vr_header header_{};
    std::vector<Tail> tails_;
    std::vector<uint64_t> tail_at_;
    size_t operations_ = 0;
};

}  // namespace

RestorePlan make_restore_plan(const TreeImage &tree, const Bytes &runner,
                              const std::string &leave_out)
{
    return PlanBuilder(tree, runner, leave_out).build();
}

std::string describe_failure(const RestorePlan &plan, const void *shared_page)
{
    vr_shared shared;
    memcpy(&shared, shared_page, sizeof shared);
    if (shared.failed == 0)
        return "";
    if (plan.bytes.size() < sizeof(vr_op) || shared.op > plan.bytes.size() - sizeof(vr_op))
        return "a process of the fork failed before its first operation";
    vr_op op;
    memcpy(&op, plan.bytes.data() + shared.op, sizeof op);
    size_t at = std::min<size_t>(op.object, plan.bytes.size());
    auto *name = reinterpret_cast<const char *>(plan.bytes.data()) + at;
    std::string object(name, strnlen(name, plan.bytes.size() - at));
    std::string what = op.kind == VR_SYSCALL ? "system call " + std::to_string(op.number)
                                             : "step " + std::to_string(op.kind);
    std::string result = shared.result < 0 ? strerror(static_cast<int>(-shared.result))
                                           : "returned " + std::to_string(shared.result) +
                                                 " instead of " + std::to_string(op.expected);
    return "restore " + object + " (" + what + ", process " + std::to_string(op.process) +
           "): " + result;
}

}  // namespace venus
