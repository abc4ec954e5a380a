#include <asm/termbits.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <optional>

#include "capture/descriptors.h"
#include "capture/id_map.h"
#include "capture/paths.h"
#include "os/checked.h"
#include "os/proc.h"

namespace venus {
namespace {

constexpr unsigned kTtyMajor = 5, kTerminalSlaveMajor = 136;
constexpr unsigned long kGetSettings = 0x802c542a;  // TCGETS2
constexpr unsigned long kGetDevice = 0x80045432;    // TIOCGDEV

template <typename T>
Bytes query(const SeenFile &seen, unsigned long request)
{
    Bytes bytes(sizeof(T));
    checked(ioctl(seen.file, request, bytes.data()), "get settings of", seen.describe());
    return bytes;
}

// slave: what is known of the file of its slave; none from the side of the master.
void capture_terminal_pair(const SeenFile &seen, CaptureState &state, int index,
                           std::optional<struct stat> slave)
{
    auto same = [&](const TerminalImage &terminal) { return terminal.index == index; };
    auto &terminals = state.image.terminals;
    auto known = std::find_if(terminals.begin(), terminals.end(), same);
    if (known == terminals.end()) {
        TerminalImage terminal{};
        terminal.index = index;
        terminal.settings = query<struct termios2>(seen, kGetSettings);
        terminal.window_size = query<struct winsize>(seen, TIOCGWINSZ);
        terminal.owner_uid = terminal.owner_gid = -1;
        for (uint32_t slot = 0; slot < state.external.size(); slot++)
            if (state.external[slot].terminal == index &&
                state.external[slot].identity.device == (slave ? slave->st_dev : seen.status.st_dev))
                terminal.external_slot = slot;
        if (terminal.external_slot != kNoObject)
            state.image.external_slots =
                std::max(state.image.external_slots, terminal.external_slot + 1);
        known = terminals.insert(terminals.end(), std::move(terminal));
    }
    int value = 0;
    if (!slave) {
        if (ioctl(seen.file, TIOCGPTLCK, &value) == 0)
            known->master_locked = value != 0;
        if (ioctl(seen.file, TIOCGPKT, &value) == 0)
            known->packet_mode = value != 0;
    } else {
        IdMap users(proc::read_text(seen.process.proc_path("uid_map")));
        IdMap groups(proc::read_text(seen.process.proc_path("gid_map")));
        std::optional<uint32_t> uid = users.inner(slave->st_uid);
        std::optional<uint32_t> gid = groups.inner(slave->st_gid);
        if (!uid || !gid)
            seen.refuse("its owner has no name in the sandbox");
        known->owner_uid = static_cast<int>(*uid);
        known->owner_gid = static_cast<int>(*gid);
        known->mode = static_cast<int>(slave->st_mode & 07777);
    }
}

}  // namespace

// Under the name /dev/tty, as the terminal that its opener had as its own.
OpenFile capture_own_terminal(const SeenFile &seen, CaptureState &state)
{
    unsigned device = 0;
    if (ioctl(seen.file, kGetDevice, &device) < 0)
        seen.refuse("its terminal has hung up");
    unsigned kind = (device >> 8) & 0xfff, number = (device & 0xff) | ((device >> 12) & 0xfff00);
    int index = static_cast<int>((kind - kTerminalSlaveMajor) * 256 + number);
    std::optional<struct stat> slave = look_at(state.init, "/dev/pts/" + std::to_string(index));
    if (!slave || !S_ISCHR(slave->st_mode) || slave->st_rdev != makedev(kind, number))
        seen.refuse("its terminal has no name in /dev/pts");
    capture_terminal_pair(seen, state, index, slave);
    return TerminalSlave{index, seen.flags, true};
}

OpenFile capture_terminal_file(const SeenFile &seen, CaptureState &state)
{
    unsigned kind = major(seen.status.st_rdev);
    if (kind == kTtyMajor) {
        int index = std::stoi(proc::fields(seen.details)["tty-index"]);
        capture_terminal_pair(seen, state, index, std::nullopt);
        return TerminalMaster{index, seen.flags};
    }
    int index = static_cast<int>((kind - kTerminalSlaveMajor) * 256 + minor(seen.status.st_rdev));
    capture_terminal_pair(seen, state, index, seen.status);
    return TerminalSlave{index, seen.flags};
}

}  // namespace venus
