// The tail of an address space: the code that leaves the runner, and one signal frame per thread.
// It is the only part of the plan that stays mapped in a restored process.
#pragma once

#include "restore/image.h"

namespace venus {

struct Tail {
    uint64_t address = 0;
    Bytes bytes;  // whole pages; none with a process that shares the memory of another
    uint64_t size = 0;
    std::vector<uint64_t> frames;  // of the process's threads: stack pointers for rt_sigreturn
};

// Size in bytes of all tails. `code_bytes`: of what leaves the runner.
uint64_t tail_bytes(const TreeImage &tree, size_t code_bytes);
// One for each process, from `address` on.
std::vector<Tail> build_tails(const TreeImage &tree, const Bytes &code, uint64_t address);

}  // namespace venus
