#include "restore/restore_plan.h"

#include <linux/filter.h>
#include <string.h>
#include <sys/syscall.h>

#include <algorithm>

#include "restore/creation.h"
#include "restore/family_ops.h"
#include "restore/object_ops.h"
#include "restore/pool_filter.h"
#include "restore/refused.h"
#include "restore/system_v_ops.h"
#include "restore/tail.h"

namespace venus {
namespace {

constexpr uint64_t kAddressSpaceEnd = 0x7ffffffff000;
constexpr uint64_t kLargestPlan = uint64_t{1} << 29;

uint64_t round_up(uint64_t bytes)
{
    return (bytes + kPageBytes - 1) & ~(kPageBytes - 1);
}

class PlanBuilder {
public:
    PlanBuilder(const TreeImage &tree, const Bytes &runner, const std::string &leave_out)
        : creation_(plan_creation(tree)),
          context_{tree,
                   lay_out_descriptors(tree),
                   lay_out_window(tree),
                   lay_out_stacks(tree),
                   creation_.coordinator,
                   creation_.spare},
          runner_(runner),
          header_(header_of(runner)),
          writer_(context_.window.base, prefix_bytes(tree), leave_out),
          tails_(build_tails(tree, tail_code(), context_.window.base + round_up(runner.size())))
    {
        write_tails();
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
        FamilyWriter family(context_, creation_, tails_, header_, writer_);
        family.create_all(ops);
        add_system_v_removal_ops(context_, ops);
        family.see_all_through(ops);
        ops.add("coordinator", VR_EXIT, {0});
        header_.first_op = writer_.finish(ops);
        operations_ = family.operations() + ops.ops().size();
        return finish();
    }

private:
    static vr_header header_of(const Bytes &runner)
    {
        vr_header header;
        memcpy(&header, runner.data(), sizeof header);
        return header;
    }

    uint64_t prefix_bytes(const TreeImage &tree) const
    {
        return round_up(runner_.size()) + tail_bytes(tree, header_.tail_code_bytes);
    }

    Bytes tail_code() const
    {
        auto start = runner_.begin() + header_.tail_code;
        return {start, start + header_.tail_code_bytes};
    }

    void write_tails()
    {
        writer_.patch_prefix(0, runner_.data(), runner_.size());
        for (const Tail &tail : tails_)
            if (!tail.bytes.empty())
                writer_.patch_prefix(tail.address - context_.window.base, tail.bytes.data(),
                                     tail.bytes.size());
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

    CreationPlan creation_;
    ProcessPlanContext context_;
    const Bytes &runner_;
    vr_header header_;
    PlanWriter writer_;
    std::vector<Tail> tails_;
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
