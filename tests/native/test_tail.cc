// The code that enters a sleep again, and what is read from a thread that stands in it.
#include <string.h>

#include "check.h"
#include "restore/tail.h"

namespace {

using namespace venus;

constexpr uint64_t kAddress = 0x100000010000, kProgram = 0x7f0000001234, kOldArgument = 0x7ffd00000010;

ThreadImage sleeper()
{
    ThreadImage thread{};
    thread.registers.rip = kProgram;
    thread.registers.rdi = kOldArgument;
    thread.resumed_call = ResumedCall{0, 0, Bytes(16, 7)};
    thread.xstate = Bytes(1024);
    return thread;
}

ThreadImage waker()
{
    ThreadImage thread{};
    thread.xstate = Bytes(1024);
    return thread;
}

TreeImage tree_of(std::vector<ThreadImage> threads)
{
    TreeImage tree;
    tree.processes.emplace_back();
    tree.processes[0].threads = std::move(threads);
    return tree;
}

// Where the thread's frame has it go on.
uint64_t start_of(const Tail &tail, uint64_t frame)
{
    constexpr size_t kRegistersOffset = 40, kRipIndex = 16;
    uint64_t rip;
    memcpy(&rip, tail.bytes.data() + (frame - kAddress) + kRegistersOffset + 8 * kRipIndex,
           sizeof rip);
    return rip;
}

std::optional<ResumePoint> point_at(const Tail &tail, uint64_t rip)
{
    size_t offset = rip - kAddress;
    Bytes code(tail.bytes.begin() + static_cast<long>(offset), tail.bytes.end());
    return resume_point(code, rip);
}

void test_every_instruction_tells_where_the_thread_is()
{
    TreeImage tree = tree_of({waker(), sleeper(), sleeper()});
    Tail tail = build_tails(tree, Bytes(100), kAddress).at(0);
    CHECK(tail.has_marks && tail.bytes.size() == tail_bytes(tree, 100));
    uint64_t marks = kAddress + tail.bytes.size() - kPageBytes + TailMarks::kFirst;
    for (size_t index : {1u, 2u}) {
        uint64_t rip = start_of(tail, tail.frames[index]);
        auto before = point_at(tail, rip);
        CHECK(before && before->before_call && before->argument == 0u);
        CHECK(before->argument_value == kOldArgument && before->after_call == kProgram + 2);
        CHECK(before->mark == marks + index - 1);
        auto after = point_at(tail, rip + 2);
        CHECK(after && !after->before_call && after->argument == 0u && after->mark == before->mark);
        auto restored = point_at(tail, rip + 12);
        CHECK(restored && !restored->argument && restored->mark == before->mark);
        auto marked = point_at(tail, rip + 19);
        CHECK(marked && !marked->argument && marked->after_call == kProgram + 2);
        for (uint64_t within : {1u, 3u, 13u, 20u})
            CHECK(!point_at(tail, rip + within));
    }
}

void test_without_sleepers_there_are_no_marks()
{
    TreeImage tree = tree_of({waker()});
    Tail tail = build_tails(tree, Bytes(100), kAddress).at(0);
    CHECK(!tail.has_marks && tail.bytes.size() == tail_bytes(tree, 100));
}

// Two processes that have the same memory have one tail, and one page of marks.
void test_processes_may_share_it()
{
    TreeImage tree = tree_of({sleeper()});
    tree.processes.push_back(tree.processes[0]);
    tree.processes[1].shared_with[static_cast<size_t>(Table::kMemory)] = 0;
    std::vector<Tail> tails = build_tails(tree, Bytes(100), kAddress);
    CHECK(tails[0].has_marks && tails[1].has_marks && tails[1].bytes.empty());
    auto first = point_at(tails[0], start_of(tails[0], tails[0].frames[0]));
    auto second = point_at(tails[0], start_of(tails[0], tails[1].frames[0]));
    CHECK(first && second && second->mark == first->mark + 1);
    CHECK(tails[0].bytes.size() == tail_bytes(tree, 100));
}

void test_code_that_is_cut_is_no_resume_point()
{
    Tail tail = build_tails(tree_of({sleeper()}), Bytes(100), kAddress).at(0);
    uint64_t rip = start_of(tail, tail.frames[0]);
    size_t offset = rip - kAddress;
    constexpr size_t kWhole = 33;
    for (size_t size = 0; size < kWhole; size++) {
        Bytes code(tail.bytes.begin() + static_cast<long>(offset),
                   tail.bytes.begin() + static_cast<long>(offset + size));
        CHECK(!resume_point(code, rip));
    }
}

}  // namespace

int main()
{
    test_every_instruction_tells_where_the_thread_is();
    test_processes_may_share_it();
    test_without_sleepers_there_are_no_marks();
    test_code_that_is_cut_is_no_resume_point();
    return 0;
}
