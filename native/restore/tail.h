// The tail of an address space: the code that leaves the runner, one signal frame per thread, and the
// code that enters interrupted sleeps again. It is the only part of the plan that stays mapped in a
// restored process.
//
// Where threads sleep, the last page of the tail has a mark for each, which its thread sets when it
// leaves: a capture can then tell whether one may still come back, e.g. from a signal handler that
// interrupted the sleep. The page is the process's own to write: what it says is believed at its own
// expense only.
#pragma once

#include <optional>

#include "restore/image.h"

namespace venus {

struct Tail {
    uint64_t address = 0;
    Bytes bytes;  // whole pages; none with a process that shares the memory of another
    uint64_t size = 0;
    bool has_marks = false;  // in its last page, which must be writable
    std::vector<uint64_t> frames;  // of the process's threads: stack pointers for rt_sigreturn
};

// The last page: a count, then the marks.
struct TailMarks {
    static constexpr uint64_t kFirst = 8;
    uint32_t count;
};

// Where a thread stands that enters a sleep again.
struct ResumePoint {
    uint64_t after_call;  // where its program goes on
    bool before_call;     // the sleep is still to be entered; otherwise it is over
    // Unless the thread has it back already: the argument that is another during the sleep.
    std::optional<unsigned> argument;
    uint64_t argument_value = 0;
    uint64_t mark;  // address
};
// `code`: what lies at the instruction pointer and behind it. None: no code of that kind.
std::optional<ResumePoint> resume_point(const Bytes &code, uint64_t instruction_pointer);
inline constexpr size_t kResumeBytes = 64;

// The register of system call argument 0..5.
unsigned long long &argument_register(user_regs_struct &registers, unsigned argument);

// Size in bytes of all tails. `code_bytes`: of what leaves the runner.
uint64_t tail_bytes(const TreeImage &tree, size_t code_bytes);
// One for each process, from `address` on.
std::vector<Tail> build_tails(const TreeImage &tree, const Bytes &code, uint64_t address);

}  // namespace venus
