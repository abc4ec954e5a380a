#include "restore/pool_filter.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>

namespace venus {
namespace {

// Addresses are compared in blocks, so that one of 47 bits fits the 32 of the filter's registers.
constexpr unsigned kBlockShift = 16;
constexpr uint64_t kBlockBytes = uint64_t{1} << kBlockShift;
// Of the upper half of an address; what lies above is not canonical or a tag.
constexpr uint32_t kHighMask = 0x7fff;
constexpr size_t kMaxRanges = 64;
// Dead code behind the last instruction, by which a filter of ours is known.
constexpr uint32_t kMark[] = {0x756e6556, 0x6c6f6f50};

constexpr int kDontNeedLocked = 24, kGuardInstall = 102;
// What discards content, or means another thing for a file mapping.
constexpr int kAdvice[] = {MADV_DONTNEED, MADV_FREE,       MADV_REMOVE,
                           MADV_WIPEONFORK, kDontNeedLocked, kGuardInstall};

enum Cell : uint32_t { kStart, kEnd, kSpare };  // of the filter's memory

std::vector<PageRun> blocks_in_pool(const TreeImage &tree)
{
    std::vector<PageRun> runs;
    for (const ProcessImage &process : tree.processes)
        for (const Mapping &mapping : process.mappings)
            for (const ExtentPiece &piece : mapping.pieces)
                if (tree.extents[piece.extent].anonymous)
                    runs.push_back({piece.run.start & ~(kBlockBytes - 1),
                                    (piece.run.end + kBlockBytes - 1) & ~(kBlockBytes - 1)});
    std::sort(runs.begin(), runs.end(),
              [](const PageRun &a, const PageRun &b) { return a.start < b.start; });
    std::vector<PageRun> joined;
    for (const PageRun &run : runs) {
        if (!joined.empty() && run.start <= joined.back().end)
            joined.back().end = std::max(joined.back().end, run.end);
        else
            joined.push_back(run);
    }
    return coalesce(std::move(joined), 0, kMaxRanges);
}

class Program {
public:
    void add(unsigned code, uint32_t value, size_t if_true = 0, size_t if_false = 0)
    {
        code_.push_back({static_cast<uint16_t>(code), static_cast<uint8_t>(if_true),
                         static_cast<uint8_t>(if_false), value});
    }
    void load(uint32_t offset) { add(BPF_LD | BPF_W | BPF_ABS, offset); }
    void answer(uint32_t action) { add(BPF_RET | BPF_K, action); }
    // A = the argument, in blocks. kSpare is overwritten.
    void load_blocks(uint32_t argument)
    {
        add(BPF_ALU | BPF_LSH | BPF_K, 32 - kBlockShift);
        add(BPF_ST, kSpare);
        load(argument);
        add(BPF_ALU | BPF_RSH | BPF_K, kBlockShift);
        add(BPF_LDX | BPF_W | BPF_MEM, kSpare);
        add(BPF_ALU | BPF_OR | BPF_X, 0);
    }
    Bytes bytes() const
    {
        auto *first = reinterpret_cast<const uint8_t *>(code_.data());
        return Bytes(first, first + code_.size() * sizeof(sock_filter));
    }

private:
    std::vector<sock_filter> code_;
};

constexpr uint32_t argument(unsigned index)  // its lower half
{
    return static_cast<uint32_t>(offsetof(seccomp_data, args) + index * sizeof(uint64_t));
}
constexpr uint32_t kHigh = 4;  // from the lower half to the upper

// Goes on behind it for the calls in question, allows the others.
void add_calls(Program &program)
{
    program.load(offsetof(seccomp_data, arch));
    program.add(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
    program.answer(SECCOMP_RET_ALLOW);
    program.load(offsetof(seccomp_data, nr));
    size_t advices = std::size(kAdvice);
    program.add(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, advices + 3, 0);
    program.add(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, advices + 1);
    program.load(argument(2));
    for (size_t i = 0; i < advices; i++)
        program.add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(kAdvice[i]), advices - i, 0);
    program.answer(SECCOMP_RET_ALLOW);
}

// Both calls have the address in argument 0 and the length in argument 1.  The end may come out
// one block too far.
void add_range(Program &program)
{
    program.load(argument(0) + kHigh);
    program.add(BPF_ALU | BPF_AND | BPF_K, kHighMask);
    program.load_blocks(argument(0));
    program.add(BPF_ST, kStart);
    program.load(argument(1) + kHigh);
    program.add(BPF_JMP | BPF_JGT | BPF_K, kHighMask, 10, 0);
    program.load_blocks(argument(1));
    program.add(BPF_ALU | BPF_ADD | BPF_K, 1);
    program.add(BPF_LDX | BPF_W | BPF_MEM, kStart);
    program.add(BPF_ALU | BPF_ADD | BPF_X, 0);
    program.add(BPF_JMP | BPF_JA, 1);
    program.add(BPF_LD | BPF_W | BPF_IMM, UINT32_MAX);
    program.add(BPF_ST, kEnd);
    program.add(BPF_LD | BPF_W | BPF_MEM, kStart);
}

}  // namespace

Bytes make_pool_filter(const TreeImage &tree)
{
    std::vector<PageRun> ranges = blocks_in_pool(tree);
    if (ranges.empty())
        return {};
    Program program;
    add_calls(program);
    add_range(program);
    // The first range that does not end before the start decides; the accumulator holds the start.
    for (const PageRun &range : ranges) {
        program.add(BPF_JMP | BPF_JGT | BPF_K,
                    static_cast<uint32_t>((range.end >> kBlockShift) - 1), 4, 0);
        program.add(BPF_LD | BPF_W | BPF_MEM, kEnd);
        program.add(BPF_JMP | BPF_JGE | BPF_K, static_cast<uint32_t>(range.start >> kBlockShift),
                    0, 1);
        program.answer(SECCOMP_RET_USER_NOTIF);
        program.answer(SECCOMP_RET_ALLOW);
    }
    program.answer(SECCOMP_RET_ALLOW);
    for (uint32_t word : kMark)
        program.add(BPF_LD | BPF_W | BPF_IMM, word);
    program.answer(SECCOMP_RET_ALLOW);
    return program.bytes();
}

bool is_pool_filter(const Bytes &program)
{
    constexpr size_t kTail = std::size(kMark) + 1;
    size_t count = program.size() / sizeof(sock_filter);
    if (count <= kTail)
        return false;
    for (size_t i = 0; i < std::size(kMark); i++) {
        sock_filter instruction;
        memcpy(&instruction, program.data() + (count - kTail + i) * sizeof instruction,
               sizeof instruction);
        if (instruction.code != (BPF_LD | BPF_W | BPF_IMM) || instruction.k != kMark[i])
            return false;
    }
    return true;
}

}  // namespace venus
