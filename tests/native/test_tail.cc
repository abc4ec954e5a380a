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

// Where the thread's frame has it go on.
uint64_t start_of(const Tail &tail, size_t thread)
{
    constexpr size_t kRegistersOffset = 40, kRipIndex = 16;
    uint64_t rip;
    memcpy(&rip, tail.bytes.data() + (tail.frames[thread] - kAddress) + kRegistersOffset + 8 * kRipIndex,
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
    ProcessImage process{};
    process.threads = {ThreadImage{}, sleeper(), sleeper()};
    process.threads[0].xstate = Bytes(1024);
    Tail tail = build_tail(process, Bytes(100), kAddress);
    CHECK(tail.has_marks && tail.bytes.size() == tail_bytes(process, 100));
    uint64_t marks = kAddress + tail.bytes.size() - kPageBytes + TailMarks::kFirst;
    for (size_t index : {1u, 2u}) {
        uint64_t rip = start_of(tail, index);
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
    ProcessImage process{};
    process.threads = {ThreadImage{}};
    process.threads[0].xstate = Bytes(1024);
    Tail tail = build_tail(process, Bytes(100), kAddress);
    CHECK(!tail.has_marks && tail.bytes.size() == tail_bytes(process, 100));
}

void test_code_that_is_cut_is_no_resume_point()
{
    ProcessImage process{};
    process.threads = {sleeper()};
    Tail tail = build_tail(process, Bytes(100), kAddress);
    uint64_t rip = start_of(tail, 0);
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
    test_without_sleepers_there_are_no_marks();
    test_code_that_is_cut_is_no_resume_point();
    return 0;
}
