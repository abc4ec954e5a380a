#include "restore/tail.h"

#include <signal.h>
#include <string.h>

#include <algorithm>

namespace venus {
namespace {

// arch/x86/include/uapi/asm/sigcontext.h and ucontext.h
constexpr uint32_t kXstateMagic1 = 0x46505853, kXstateMagic2 = 0x46505845;
constexpr uint64_t kFrameFlags = 1 | 2 | 4;  // FP_XSTATE, SIGCONTEXT_SS, STRICT_RESTORE_SS
constexpr size_t kXsaveHeaderOffset = 512, kSoftwareBytesOffset = 464;
constexpr size_t kXstateAlignment = 64;
constexpr size_t kResumeBytes = 64;  // code + pointer + data of one resumed call

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

// mov r64, imm64 for the register of system call argument n
void load_argument(Bytes &code, unsigned argument, uint64_t value)
{
    static constexpr uint8_t opcodes[6][2] = {{0x48, 0xbf}, {0x48, 0xbe}, {0x48, 0xba},
                                              {0x49, 0xba}, {0x49, 0xb8}, {0x49, 0xb9}};
    append(code, opcodes[argument], sizeof opcodes[argument]);
    append(code, &value, sizeof value);
}

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

// syscall; mov <argument>, <old value>; jmp *[rip]; <where the program goes on>; <data>
// No stack is touched: the program may use all of it below its red zone and in it.
Bytes resume_code(const ThreadImage &thread, user_regs_struct &registers, uint64_t address)
{
    const ResumedCall &call = *thread.resumed_call;
    unsigned long long &argument = argument_register(registers, call.argument);
    uint64_t after_call = registers.rip + 2;
    static constexpr uint8_t kSyscall[] = {0x0f, 0x05};
    static constexpr uint8_t kJumpToNextWord[] = {0xff, 0x25, 0, 0, 0, 0};
    Bytes code;
    code.reserve(kResumeBytes);
    append(code, kSyscall, sizeof kSyscall);
    load_argument(code, call.argument, argument);
    append(code, kJumpToNextWord, sizeof kJumpToNextWord);
    append(code, &after_call, sizeof after_call);
    code.resize(align(code.size(), 8));
    argument = call.data.empty() ? call.value : address + code.size();
    append(code, call.data.data(), call.data.size());
    code.resize(kResumeBytes);
    registers.rip = address;
    return code;
}

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
uint64_t append_frame(const ThreadImage &thread, uint64_t address, Bytes &tail)
{
    uint64_t frame_at = tail.size();
    uint64_t xstate_at = frame_at + align(sizeof(SignalFrame), kXstateAlignment);
    uint64_t resume_at = frame_at + thread_bytes(thread) - kResumeBytes;
    tail.resize(frame_at + thread_bytes(thread));

    user_regs_struct registers = thread.registers;
    if (thread.resumed_call) {
        Bytes resumed = resume_code(thread, registers, address + resume_at);
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

uint64_t tail_bytes(const TreeImage &tree, size_t code_bytes)
{
    std::vector<uint64_t> sizes(tree.processes.size());
    for (uint32_t i = 0; i < tree.processes.size(); i++) {
        uint64_t &size = sizes[holder_of(tree, Table::kMemory, i)];
        size = std::max<uint64_t>(size, align(code_bytes, kXstateAlignment));
        for (const ThreadImage &thread : tree.processes[i].threads)
            if (!thread.ended)
                size += thread_bytes(thread);
    }
    uint64_t total = 0;
    for (uint64_t size : sizes)
        total += align(size, kPageBytes);
    return total;
}

std::vector<Tail> build_tails(const TreeImage &tree, const Bytes &code, uint64_t address)
{
    std::vector<Tail> tails(tree.processes.size());
    for (uint32_t i = 0; i < tree.processes.size(); i++) {
        if (holder_of(tree, Table::kMemory, i) != i)
            continue;
        Bytes bytes = code;
        bytes.resize(align(code.size(), kXstateAlignment));
        for (uint32_t j = i; j < tree.processes.size(); j++) {
            if (holder_of(tree, Table::kMemory, j) != i)
                continue;
            tails[j].address = address;
            for (const ThreadImage &thread : tree.processes[j].threads)
                tails[j].frames.push_back(thread.ended ? 0 : append_frame(thread, address, bytes));
        }
        bytes.resize(align(bytes.size(), kPageBytes));
        for (Tail &tail : tails)
            if (tail.address == address)
                tail.size = bytes.size();
        address += bytes.size();
        tails[i].bytes = std::move(bytes);
    }
    return tails;
}

}  // namespace venus
