// One stopped thread, seen through ptrace.
//
// pre: every call comes from the OS thread that seized it (ptrace belongs to a thread).
// The thread never runs code of its own between stop() and release(), except for the system calls
// that are injected.  Its registers are put back with an interrupted system call turned into a
// fresh one, so that the program cannot tell that it was stopped.
#pragma once

#include <sys/types.h>
#include <sys/user.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace venus {

struct RseqRegistration {
    uint64_t area = 0;
    uint32_t bytes = 0, signature = 0;
};

class Tracee {
public:
    explicit Tracee(pid_t tid);
    Tracee(Tracee &&other) noexcept;
    Tracee &operator=(Tracee &&other) noexcept;
    Tracee(const Tracee &) = delete;
    ~Tracee();  // releases; the program goes on

    pid_t tid() const { return tid_; }
    // Asks for a stop. False: the thread has ended.
    bool interrupt();
    enum class Stop { kStopped, kPending, kEnded };
    // Whether the stop that was asked for has come.
    Stop poll_stop();
    bool in_group_stop() const { return in_group_stop_; }

    // As they were at the stop.
    const user_regs_struct &registers() const { return at_stop_; }
    uint64_t signal_mask() const { return signal_mask_; }
    std::vector<uint8_t> xstate() const;
    RseqRegistration rseq() const;
    // Queued signals of the thread, or of its whole process.
    std::vector<std::vector<uint8_t>> pending(bool of_process) const;
    // Oldest first, as the kernel numbers them; empty without filters.
    std::vector<std::vector<uint8_t>> seccomp_filters() const;

    // Registers the program continues with; see restartable() in the .cc.
    void set_continuation(const user_regs_struct &registers) { continuation_ = registers; }

    // Runs a system call in the thread; `gadget` is the address of a syscall instruction in it.
    // Returns the raw result (negative errno).
    int64_t call(uint64_t gadget, int64_t number, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0,
                 uint64_t d = 0, uint64_t e = 0, uint64_t f = 0);
    // Registers and mask are again those of the stop. It stays stopped; calls may follow.
    void put_back();
    void release();

private:
    void swap(Tracee &other) noexcept;
    void set(const user_regs_struct &registers, uint64_t signal_mask);
    void wait_stopped(int expected_signal, const char *operation);
    void read_stop();
    std::string name() const;

    pid_t tid_ = -1;
    bool seized_ = false, stopped_ = false, in_group_stop_ = false;
    user_regs_struct at_stop_{}, continuation_{};
    uint64_t signal_mask_ = 0;
    bool changed_ = false;  // registers and mask must be put back
    // SIGSTOP cannot be blocked: one that came between is put aside, and sent again at the end.
    bool stop_signal_came_ = false;
};

}  // namespace venus
