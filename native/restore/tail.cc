#include "restore/tail.h"

#include <signal.h>
#include <string.h>

#include <algorithm>

#include "restore/refused.h"

namespace venus {
namespace {

// arch/x86/include/uapi/asm/sigcontext.h and ucontext.h
constexpr uint32_t kXstateMagic1 = 0x46505853, kXstateMagic2 = 0x46505845;
constexpr uint64_t kFrameFlags = 1 | 2 | 4;  // FP_XSTATE, SIGCONTEXT_SS, STRICT_RESTORE_SS
constexpr size_t kSoftwareBytesOffset = 464;
constexpr size_t kXstateAlignment = 64;
constexpr uint8_t kSystemCall[] = {0x0f, 0x05};
// mov r64, imm64 for the register of system call argument n
constexpr uint8_t kLoad[6][2] = {{0x48, 0xbf}, {0x48, 0xbe}, {0x48, 0xba},
                                 {0x49, 0xba}, {0x49, 0xb8}, {0x49, 0xb9}};
constexpr uint8_t kSetByte[] = {0xc6, 0x05};                          // mov byte [rip+disp32], imm8
constexpr uint8_t kJumpToNextWord[] = {0xff, 0x25, 0, 0, 0, 0};       // jmp *[rip]
constexpr size_t kSetByteBytes = sizeof kSetByte + 4 + 1;

struct SignalContext {
    uint64_t r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip,
        flags;
    uint16_t cs, gs, fs, ss;
    uint64_t error, trap, old_mask, fault_address, xstate;
    uint64_t reserved[8];
};
struct SignalFrame {  // struct rt_sigframe without its return address and siginfo
    uint64_t uc_flags, uc_link;
    uint64_t stack[3];
    SignalContext context;
    uint64_t mask;
};
struct SoftwareBytes {
    uint32_t magic1, extended_size;
    uint64_t features;
    uint32_t xstate_size, padding[7];
};
static_assert(sizeof(SignalContext) == 256 && sizeof(SoftwareBytes) == 48);

size_t align(size_t value, size_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

size_t thread_bytes(const ThreadImage &thread)
{
    return align(sizeof(SignalFrame), kXstateAlignment) +
           align(thread.xstate.size() + sizeof kXstateMagic2, kXstateAlignment) + kResumeBytes;
}

void append(Bytes &code, const void *bytes, size_t size)
{
    size_t at = code.size();
    code.resize(at + size);
    if (size > 0)
        memcpy(code.data() + at, bytes, size);
}

template <typename Visit>
void for_each_thread(const TreeImage &tree, uint32_t holder, Visit visit)
{
    for (uint32_t i = 0; i < tree.processes.size(); i++)
        if (holder_of(tree, Table::kMemory, i) == holder)
            for (const ThreadImage &thread : tree.processes[i].threads)
                if (!thread.ended)
                    visit(thread);
}

uint32_t count_sleepers(const TreeImage &tree, uint32_t holder)
{
    uint32_t count = 0;
    for_each_thread(tree, holder,
                    [&](const ThreadImage &thread) { count += thread.resumed_call.has_value(); });
    return count;
}

// Code and frames of one address space, in whole pages.
uint64_t bytes_with_frames(const TreeImage &tree, uint32_t holder, size_t code_bytes)
{
    uint64_t size = align(code_bytes, kXstateAlignment);
    for_each_thread(tree, holder,
                    [&](const ThreadImage &thread) { size += thread_bytes(thread); });
    return align(size, kPageBytes);
}

// syscall; mov <argument>, <old value>; mov byte [<mark>], 1; jmp *[rip]; <where the program goes on>;
// <data>
// No stack is touched: the program may use all of it below its red zone and in it.
Bytes resume_code(const ThreadImage &thread, user_regs_struct &registers, uint64_t address,
                  uint64_t mark)
{
    const ResumedCall &call = *thread.resumed_call;
    unsigned long long &argument = argument_register(registers, call.argument);
    uint64_t after_call = registers.rip + sizeof kSystemCall;
    Bytes code;
    code.reserve(kResumeBytes);
    append(code, kSystemCall, sizeof kSystemCall);
    append(code, kLoad[call.argument], sizeof kLoad[call.argument]);
    append(code, &argument, sizeof argument);
    auto distance = static_cast<int32_t>(mark - (address + code.size() + kSetByteBytes));
    append(code, kSetByte, sizeof kSetByte);
    append(code, &distance, sizeof distance);
    code.push_back(1);
    append(code, kJumpToNextWord, sizeof kJumpToNextWord);
    append(code, &after_call, sizeof after_call);
    code.resize(align(code.size(), 8));
    argument = call.data.empty() ? call.value : address + code.size();
    append(code, call.data.data(), call.data.size());
    code.resize(kResumeBytes);
    registers.rip = address;
    return code;
}

// Reads code, piece by piece.
class Reader {
public:
    explicit Reader(const Bytes &code) : code_(code) {}

    size_t at() const { return at_; }
    bool take(const uint8_t *wanted, size_t size)
    {
        if (code_.size() - at_ < size || memcmp(code_.data() + at_, wanted, size) != 0)
            return false;
        at_ += size;
        return true;
    }
    template <typename T>
    bool take_value(T &value)
    {
        if (code_.size() - at_ < sizeof value)
            return false;
        memcpy(&value, code_.data() + at_, sizeof value);
        at_ += sizeof value;
        return true;
    }

private:
    const Bytes &code_;
    size_t at_ = 0;
};

SignalContext context_of(const user_regs_struct &registers)
{
    SignalContext context{};
    context.r8 = registers.r8;
    context.r9 = registers.r9;
    context.r10 = registers.r10;
    context.r11 = registers.r11;
    context.r12 = registers.r12;
    context.r13 = registers.r13;
    context.r14 = registers.r14;
    context.r15 = registers.r15;
    context.rdi = registers.rdi;
    context.rsi = registers.rsi;
    context.rbp = registers.rbp;
    context.rbx = registers.rbx;
    context.rdx = registers.rdx;
    context.rax = registers.rax;
    context.rcx = registers.rcx;
    context.rsp = registers.rsp;
    context.rip = registers.rip;
    context.flags = registers.eflags;
    context.cs = static_cast<uint16_t>(registers.cs);
    context.ss = static_cast<uint16_t>(registers.ss);
    return context;
}

// Appends the frame of a thread, at a multiple of 64 bytes. Returns where it is.
// `next_mark`: address of the first mark that nobody has.
uint64_t append_frame(const ThreadImage &thread, uint64_t address, uint64_t &next_mark, Bytes &tail)
{
    uint64_t frame_at = tail.size();
    uint64_t xstate_at = frame_at + align(sizeof(SignalFrame), kXstateAlignment);
    uint64_t resume_at = frame_at + thread_bytes(thread) - kResumeBytes;
    tail.resize(frame_at + thread_bytes(thread));

    user_regs_struct registers = thread.registers;
    if (thread.resumed_call) {
        Bytes resumed = resume_code(thread, registers, address + resume_at, next_mark++);
        memcpy(tail.data() + resume_at, resumed.data(), resumed.size());
    }
    SignalFrame frame{};
    frame.uc_flags = kFrameFlags;
    memcpy(frame.stack, thread.alternate_stack, sizeof frame.stack);
    frame.context = context_of(registers);
    frame.context.xstate = address + xstate_at;
    frame.mask = thread.signal_mask;
    memcpy(tail.data() + frame_at, &frame, sizeof frame);

    Bytes xstate = thread.xstate;
    SoftwareBytes software{};
    software.magic1 = kXstateMagic1;
    software.extended_size = static_cast<uint32_t>(xstate.size() + sizeof kXstateMagic2);
    memcpy(&software.features, xstate.data() + kSoftwareBytesOffset, sizeof software.features);
    software.xstate_size = static_cast<uint32_t>(xstate.size());
    memcpy(xstate.data() + kSoftwareBytesOffset, &software, sizeof software);
    memcpy(tail.data() + xstate_at, xstate.data(), xstate.size());
    memcpy(tail.data() + xstate_at + xstate.size(), &kXstateMagic2, sizeof kXstateMagic2);

    // rt_sigreturn looks for the return address 8 bytes below the stack pointer, siginfo and
    // then the context behind it: ret address 8, ucontext, siginfo on x86-64.
    return address + frame_at;
}

}  // namespace

unsigned long long &argument_register(user_regs_struct &registers, unsigned argument)
{
    switch (argument) {
    case 0: return registers.rdi;
    case 1: return registers.rsi;
    case 2: return registers.rdx;
    case 3: return registers.r10;
    case 4: return registers.r8;
    default: return registers.r9;
    }
}

std::optional<ResumePoint> resume_point(const Bytes &code, uint64_t instruction_pointer)
{
    Reader reader(code);
    ResumePoint point{};
    point.before_call = reader.take(kSystemCall, sizeof kSystemCall);
    for (unsigned argument = 0; argument < 6 && !point.argument; argument++)
        if (reader.take(kLoad[argument], sizeof kLoad[argument])) {
            point.argument = argument;
            if (!reader.take_value(point.argument_value))
                return std::nullopt;
        }
    if (point.before_call && !point.argument)
        return std::nullopt;
    int32_t distance = 0;
    uint8_t one = 0;
    bool sets_mark = reader.take(kSetByte, sizeof kSetByte);
    if (sets_mark && !(reader.take_value(distance) && reader.take_value(one) && one == 1))
        return std::nullopt;
    if (point.argument && !sets_mark)
        return std::nullopt;
    point.mark = sets_mark ? instruction_pointer + reader.at() + static_cast<uint64_t>(distance) : 0;
    if (!reader.take(kJumpToNextWord, sizeof kJumpToNextWord) || !reader.take_value(point.after_call))
        return std::nullopt;
    return point;
}

uint64_t tail_bytes(const TreeImage &tree, size_t code_bytes)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < tree.processes.size(); i++)
        if (holder_of(tree, Table::kMemory, i) == i)
            total += bytes_with_frames(tree, i, code_bytes) +
                     (count_sleepers(tree, i) > 0 ? kPageBytes : 0);
    return total;
}

std::vector<Tail> build_tails(const TreeImage &tree, const Bytes &code, uint64_t address)
{
    std::vector<Tail> tails(tree.processes.size());
    for (uint32_t i = 0; i < tree.processes.size(); i++) {
        if (holder_of(tree, Table::kMemory, i) != i)
            continue;
        TailMarks marks{count_sleepers(tree, i)};
        if (TailMarks::kFirst + marks.count > kPageBytes)
            throw Refused(tree.processes[i].name, "its threads", "too many of them sleep");
        Bytes bytes = code;
        bytes.resize(align(code.size(), kXstateAlignment));
        uint64_t marks_at = address + bytes_with_frames(tree, i, code.size());
        uint64_t next_mark = marks_at + TailMarks::kFirst;
        for (uint32_t j = i; j < tree.processes.size(); j++) {
            if (holder_of(tree, Table::kMemory, j) != i)
                continue;
            tails[j].address = address;
            for (const ThreadImage &thread : tree.processes[j].threads)
                tails[j].frames.push_back(
                    thread.ended ? 0 : append_frame(thread, address, next_mark, bytes));
        }
        bytes.resize(marks_at - address);
        if (marks.count > 0) {
            append(bytes, &marks, sizeof marks);
            bytes.resize(align(bytes.size(), kPageBytes));
        }
        for (Tail &tail : tails)
            if (tail.address == address) {
                tail.size = bytes.size();
                tail.has_marks = marks.count > 0;
            }
        address += bytes.size();
        tails[i].bytes = std::move(bytes);
    }
    return tails;
}

}  // namespace venus
