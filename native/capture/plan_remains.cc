#include "capture/plan_remains.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "restore/tail.h"

namespace venus {
namespace {

bool contains(const std::vector<PageRun> &runs, uint64_t address)
{
    return std::any_of(runs.begin(), runs.end(),
                       [&](const PageRun &run) { return address - run.start < run.size(); });
}

// As much as there is, up to `size`.
Bytes bytes_at(const StoppedProcess &process, uint64_t address, size_t size)
{
    Bytes bytes(size);
    ssize_t got = pread(process.memory.get(), bytes.data(), size, static_cast<off_t>(address));
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
}

// It is about to sleep and has not begun to: for how long stands in the argument.
ResumedCall sleep_to_enter(const StoppedProcess &process, unsigned argument, uint64_t value)
{
    if (!contains(process.plan_code, value))
        return {argument, value, {}};
    Bytes time(sizeof(int64_t[2]));
    process.read_memory(value, time.data(), time.size());
    return {argument, 0, std::move(time)};
}

// A mark is set by its thread, or the thread has just been taken out.
bool all_have_left(const StoppedProcess &process, const PageRun &page,
                   const std::vector<uint64_t> &left)
{
    Bytes bytes = bytes_at(process, page.start, kPageBytes);
    if (bytes.size() < kPageBytes)
        return false;
    TailMarks marks{};
    memcpy(&marks, bytes.data(), sizeof marks);
    uint64_t end = std::min(TailMarks::kFirst + marks.count, kPageBytes);
    for (uint64_t i = TailMarks::kFirst; i < end; i++)
        if (bytes[i] == 0 && std::find(left.begin(), left.end(), page.start + i) == left.end())
            return false;
    return true;
}

}  // namespace

bool is_plan(const Area &area, const std::vector<FileIdentity> &plans)
{
    return area.name.starts_with("/memfd:venus-plan") &&
           std::any_of(plans.begin(), plans.end(), [&](const FileIdentity &plan) {
               return plan.inode == area.inode;
           });
}

void find_plan_remains(StoppedProcess &process, const std::vector<Area> &areas,
                       const std::vector<FileIdentity> &plans)
{
    for (const Area &area : areas)
        if (is_plan(area, plans))
            (area.protection & PROT_WRITE ? process.plan_marks : process.plan_code)
                .push_back(area.run);
}

void leave_plan(StoppedProcess &process, ThreadImage &image)
{
    user_regs_struct &registers = image.registers;
    if (!contains(process.plan_code, registers.rip))
        return;
    std::optional<ResumePoint> point =
        resume_point(bytes_at(process, registers.rip, kResumeBytes), registers.rip);
    if (!point)
        return;
    if (point->argument) {
        unsigned long long &value = argument_register(registers, *point->argument);
        if (point->before_call && !image.resumed_call)
            image.resumed_call = sleep_to_enter(process, *point->argument, value);
        value = point->argument_value;
    }
    constexpr uint64_t kCallBytes = 2;
    registers.rip = point->before_call ? point->after_call - kCallBytes : point->after_call;
    process.left_marks.push_back(point->mark);
}

bool is_plan_left_behind(const StoppedTree &tree, const TreeImage &image, uint32_t holder)
{
    const StoppedProcess &process = tree.processes[holder];
    std::vector<uint64_t> left;
    for (uint32_t i = 0; i < image.processes.size(); i++) {
        if (holder_of(image, Table::kMemory, i) != holder)
            continue;
        left.insert(left.end(), tree.processes[i].left_marks.begin(),
                    tree.processes[i].left_marks.end());
        for (const ThreadImage &thread : image.processes[i].threads)
            if (contains(process.plan_code, thread.registers.rip))
                return false;
    }
    return std::all_of(process.plan_marks.begin(), process.plan_marks.end(),
                       [&](const PageRun &page) { return all_have_left(process, page, left); });
}

}  // namespace venus
