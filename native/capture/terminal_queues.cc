// What waits in ptys. A terminal cannot be looked into: what waits is read and put back at once,
// while nothing in the sandbox runs, through a mode in which no byte means anything.
#include <asm/termbits.h>
#include <asm/ioctls.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "capture/descriptors.h"
#include "os/checked.h"
#include "restore/refused.h"
#include "restore/terminal_ops.h"

namespace venus {
namespace {

constexpr const char *kSandbox = "the sandbox";
constexpr size_t kLargestQueue = 1 << 17;  // two buffers of 64 KiB
constexpr int kPauseMs = 10, kMostPauses = 200;

class Drain {
public:
    Drain(TerminalImage &terminal, int master, int slave)
        : terminal_(terminal),
          name_("terminal " + std::to_string(terminal.index)),
          master_(master),
          slave_(slave)
    {
    }

    ~Drain()
    {
        try {
            apply(terminal_.settings);
            set_packets(terminal_.packet_mode);
            if (terminal_.stopped)
                write_all(master_, {stop_character(terminal_)});
        } catch (const os::Error &) {
            // The terminal is gone.
        }
    }
    Drain(const Drain &) = delete;

    void run()
    {
        set_packets(0);
        apply(quiet_settings(terminal_.settings));
        if (slave_ >= 0)
            terminal_.input = read_all(slave_);
        // What the caller has not yet read is its own; a fork's terminal begins without.
        if (terminal_.external_slot == kNoObject)
            terminal_.output = read_all(master_);
        if (!terminal_.output.empty())
            write_output();
        // Last: quiet settings would make one line of what is there.
        if (!terminal_.input.empty()) {
            apply(typing_settings(terminal_.settings));
            write_all(master_, typed_input(terminal_));
            settle(slave_);
        }
    }

private:
    void apply(const Bytes &settings)
    {
        // The kernel applies what is set at a master to its slave.
        checked(ioctl(master_, TCSETS2, settings.data()), "set", name_);
    }

    void set_packets(int on)
    {
        checked(ioctl(master_, TIOCPKT, &on), "set the packet mode of", name_);
    }

    // poll() waits for what is still on its way inside the kernel.
    static bool settle(int fd)
    {
        pollfd asked = {fd, POLLIN, 0};
        return poll(&asked, 1, 0) == 1 && (asked.revents & POLLIN);
    }

    Bytes read_all(int fd)
    {
        Bytes content;
        for (;;) {
            settle(fd);
            int waiting = 0;
            checked(ioctl(fd, FIONREAD, &waiting), "count what waits in", name_);
            if (waiting == 0)
                return content;
            size_t before = content.size();
            content.resize(before + static_cast<size_t>(waiting));
            ssize_t size = checked(read(fd, content.data() + before, static_cast<size_t>(waiting)),
                                   "read what waits in", name_);
            content.resize(before + static_cast<size_t>(size));
            if (content.size() > kLargestQueue)
                throw Refused(kSandbox, name_, "more waits in it than is known to be possible");
        }
    }

    // What was there fits again, but only in pieces, large ones waste the kernel's buffers, and once it
    // has moved the first of them on, from one buffer to the next.
    void write_all(int fd, const Bytes &content)
    {
        int pauses = 0;
        for (size_t at = 0; at < content.size();) {
            ssize_t size = write(fd, content.data() + at,
                                 std::min(kTerminalPiece, content.size() - at));
            if (size < 0 && errno == EAGAIN && pauses++ < kMostPauses) {
                settle(fd == master_ ? slave_ : master_);
                pollfd asked = {fd, POLLOUT, 0};
                poll(&asked, 1, kPauseMs);
                continue;
            }
            at += static_cast<size_t>(checked(size, "put back into", name_));
        }
    }

    void write_output()
    {
        if (!takes_output()) {
            terminal_.stopped = true;
            apply(flowing_settings(terminal_.settings));
        }
        write_all(slave_, terminal_.output);
    }

    // Not when somebody has typed ^S.
    bool takes_output()
    {
        pollfd asked = {slave_, POLLOUT, 0};
        return poll(&asked, 1, 0) == 1 && (asked.revents & POLLOUT);
    }

    TerminalImage &terminal_;
    std::string name_;
    int master_, slave_;
};

}  // namespace

void capture_terminal_queues(CaptureState &state)
{
    for (TerminalImage &terminal : state.image.terminals) {
        int master = -1, slave = -1;
        bool is_open = false;
        os::UniqueFd own_slave;
        for (uint32_t i = 0; i < state.image.objects.size(); i++) {
            if (auto *file = std::get_if<TerminalMaster>(&state.image.objects[i]);
                file && file->index == terminal.index)
                master = state.object_files[i].get();
            if (auto *file = std::get_if<TerminalSlave>(&state.image.objects[i]);
                file && file->index == terminal.index) {
                is_open = true;
                // Opened again here, /dev/tty would be a terminal of ours.
                if (!file->as_own)
                    slave = state.object_files[i].get();
            }
        }
        if (terminal.external_slot != kNoObject)
            master = state.external[terminal.external_slot].fd;
        if (master < 0)
            throw Refused(kSandbox, "terminal " + std::to_string(terminal.index),
                          "nobody who is known holds its master");
        pollfd asked = {master, 0, 0};
        poll(&asked, 1, 0);
        terminal.hung_up = asked.revents & POLLHUP;
        if (slave < 0 && (terminal.hung_up || is_open)) {
            own_slave.reset(checked(
                ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC),
                "open the other end of", "terminal " + std::to_string(terminal.index)));
        } else if (slave >= 0) {
            // An open file of ours: reading through the program's would wait if it says so.
            std::string again = "/proc/self/fd/" + std::to_string(slave);
            own_slave.reset(checked(
                open(again.c_str(), O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC), "open",
                "terminal " + std::to_string(terminal.index)));
        }
        Drain(terminal, master, own_slave.get()).run();
    }
}

}  // namespace venus
