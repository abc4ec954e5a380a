// The tail of a process: the code that leaves the runner, and one signal frame per thread.
// It is the only part of the plan that stays mapped in a restored process.
#pragma once

#include "restore/image.h"

namespace venus {

struct Tail {
    Bytes bytes;                  // whole pages, to lie at the address it was made for
    std::vector<uint64_t> frames;  // stack pointers for rt_sigreturn, absolute
};

// Size in bytes that build_tail will need.
uint64_t tail_bytes(const ProcessImage &process, size_t code_bytes);
Tail build_tail(const ProcessImage &process, const Bytes &code, uint64_t address);

}  // namespace venus
