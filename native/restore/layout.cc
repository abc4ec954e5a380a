#include "restore/layout.h"

#include <algorithm>

#include "venus_restore_format.h"
#include "restore/refused.h"

namespace venus {
namespace {

constexpr int kMinObjectDescriptor = 64;
constexpr uint64_t kFirstWindow = 0x100000000000, kLastWindow = 0x500000000000;
constexpr uint64_t kWindowBytes = uint64_t{1} << 30;
constexpr size_t kLeaderPages = VR_LEADER_PAGES;

bool is_free(const TreeImage &tree, PageRun window)
{
    for (const ProcessImage &process : tree.processes) {
        for (const Mapping &mapping : process.mappings)
            if (mapping.area.start < window.end && window.start < mapping.area.end)
                return false;
        for (const VdsoPart &part : process.vdso)
            if (part.area.start < window.end && window.start < part.area.end)
                return false;
    }
    return true;
}

uint64_t total_bytes(const std::vector<VdsoPart> &parts)
{
    uint64_t bytes = 0;
    for (const VdsoPart &part : parts)
        bytes += part.area.size();
    return bytes;
}

uint64_t round_up(uint64_t bytes)
{
    return (bytes + kPageBytes - 1) & ~(kPageBytes - 1);
}

}  // namespace

uint64_t WindowLayout::stack_top(size_t stack) const
{
    return scratch + (kLeaderPages + stack) * kPageBytes;
}

uint64_t WindowLayout::work_area(size_t stack) const
{
    return stack == 0 ? scratch : stack_top(stack) - kPageBytes;
}

uint64_t WindowLayout::leaving_counter(uint32_t process) const
{
    return shared + offsetof(vr_shared, leaving) + process * sizeof(uint32_t);
}

std::string nameless_path(const DescriptorLayout &layout, uint32_t index)
{
    return "/proc/self/fd/" + std::to_string(layout.nameless + static_cast<int>(index));
}

DescriptorLayout lay_out_descriptors(const TreeImage &tree)
{
    int highest = kMinObjectDescriptor - 1;
    auto look_through = [&](const DescriptorTable &table) {
        for (const DescriptorImage &descriptor : table.descriptors)
            highest = std::max(highest, descriptor.number);
    };
    for (const ProcessImage &process : tree.processes) {
        look_through(process.files);
        for (const ThreadImage &thread : process.threads)
            if (thread.own_descriptors)
                look_through(*thread.own_descriptors);
    }
    DescriptorLayout layout;
    layout.objects = highest + 1;
    layout.extents = layout.objects + static_cast<int>(tree.objects.size());
    layout.externals = layout.extents + static_cast<int>(tree.extents.size());
    layout.shared = layout.externals + static_cast<int>(tree.external_slots);
    layout.nameless = layout.shared + 1;
    layout.masters = layout.nameless + static_cast<int>(tree.nameless.size());
    layout.end = layout.masters + static_cast<int>(tree.terminals.size());
    return layout;
}

std::vector<size_t> lay_out_stacks(const TreeImage &tree)
{
    std::vector<size_t> first(tree.processes.size()), used(tree.processes.size());
    for (uint32_t i = 0; i < tree.processes.size(); i++) {
        size_t &next = used[holder_of(tree, Table::kMemory, i)];
        first[i] = next;
        next += std::max<size_t>(1, tree.processes[i].threads.size());
    }
    return first;
}

WindowLayout lay_out_window(const TreeImage &tree)
{
    std::vector<size_t> stacks = lay_out_stacks(tree);
    size_t threads = 1;
    uint64_t park_bytes = total_bytes(tree.vdso);
    for (size_t i = 0; i < tree.processes.size(); i++) {
        threads = std::max(threads, stacks[i] + tree.processes[i].threads.size());
        park_bytes = std::max(park_bytes, total_bytes(tree.processes[i].vdso));
    }
    for (uint64_t start = kFirstWindow; start < kLastWindow; start += kWindowBytes) {
        if (!is_free(tree, {start, start + kWindowBytes}))
            continue;
        WindowLayout window{};
        window.start = window.park = start;
        window.shared = window.park + park_bytes;
        window.shared_bytes = round_up(sizeof(vr_shared));
        window.scratch = window.shared + window.shared_bytes;
        window.scratch_bytes = (kLeaderPages + threads) * kPageBytes;
        window.base = window.scratch + window.scratch_bytes;
        return window;
    }
    throw Refused("the sandbox", "its address spaces", "they leave no room for the restore plan");
}

}  // namespace venus
