#include "restore/terminal_ops.h"

#include <asm/ioctls.h>
#include <asm/termbits.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <map>

#include "restore/refused.h"
#include "restore/pipe_ops.h"

namespace venus {
namespace {

constexpr Word kTemporary = 0;
constexpr Word kSetSettings = 0x402c542b;  // TCSETS2
constexpr int kKeptFlags = O_NONBLOCK | O_APPEND;

std::string slave_path(int index)
{
    return "/dev/pts/" + std::to_string(index);
}

void open_slave(int index, int flags, OpList &ops)
{
    std::string path = slave_path(index);
    ops.call(path, SYS_openat,
             {word(AT_FDCWD), ops.writer().text(path), word(flags | O_NOCTTY | O_CLOEXEC)},
             kTemporary);
}

// A process that leads a session takes the terminal for its own, opens it into the table that it
// shares with the coordinator, gives it up and ends.
void open_as_own(const ProcessPlanContext &context, const TerminalSlave &slave, Word number,
                 OpList &ops)
{
    PlanWriter &writer = ops.writer();
    std::string object = "terminal " + std::to_string(slave.index) + " as /dev/tty";
    constexpr Word kOpened = 1;
    OpList child(writer, 0);
    child.call(object, SYS_setsid, {}, context.spare);
    open_slave(slave.index, O_RDWR, child);
    child.call(object, SYS_ioctl, {kTemporary, TIOCSCTTY, 0});
    child.call(object, SYS_openat,
               {word(AT_FDCWD), writer.text("/dev/tty"),
                word((slave.flags & ~O_CREAT) | O_NOCTTY | O_CLOEXEC)},
               kOpened);
    child.call(object, SYS_dup3, {kOpened, number, O_CLOEXEC}, static_cast<int64_t>(number));
    child.call(object, SYS_close, {kOpened});
    child.call(object, SYS_ioctl, {kTemporary, TIOCNOTTY, 0});
    child.call(object, SYS_close, {kTemporary});
    child.add(object, VR_EXIT, {0});
    struct clone_args arguments{};
    arguments.flags = CLONE_FILES;
    arguments.exit_signal = SIGCHLD;
    arguments.set_tid = writer.object(context.spare);
    arguments.set_tid_size = 1;
    ops.add(object, VR_CLONE,
            {writer.object(arguments), sizeof arguments, writer.finish(child), 0}, context.spare);
    ops.call(object, SYS_wait4, {word(context.spare), 0, 0, 0}, context.spare);
}

// pre: the slave, if it is ever open, is at kTemporary.
void fill_queues(const ProcessPlanContext &context, const TerminalImage &terminal, Word master,
                 OpList &ops)
{
    PlanWriter &writer = ops.writer();
    std::string object = "output of terminal " + std::to_string(terminal.index);
    if (!terminal.output.empty()) {
        ops.call(object, SYS_ioctl,
                 {master, kSetSettings, writer.data(quiet_settings(terminal.settings))});
        for (size_t at = 0; at < terminal.output.size(); at += kTerminalPiece) {
            size_t size = std::min(kTerminalPiece, terminal.output.size() - at);
            ops.call(object, SYS_write,
                     {kTemporary, writer.data(terminal.output) + at, size},
                     static_cast<int64_t>(size));
        }
    }
    object = "input of terminal " + std::to_string(terminal.index);
    // Last: quiet settings would make one line of what is there.
    if (!terminal.input.empty()) {
        Bytes typed = typed_input(terminal);
        ops.call(object, SYS_ioctl,
                 {master, kSetSettings, writer.data(typing_settings(terminal.settings))});
        ops.call(object, SYS_write, {master, writer.data(typed), typed.size()},
                 static_cast<int64_t>(typed.size()));
        // It is on its way inside the kernel, and must arrive under these settings: poll() waits
        // for it, except when a part of it is there already.
        Word asked = context.window.work_area();
        ops.add(object, VR_STORE, {asked, kTemporary | Word{POLLIN} << 32});
        ops.call_unjudged(object, SYS_poll, {asked, 1, 0});
        timespec moment = {0, 2'000'000};
        ops.call_unjudged(object, SYS_nanosleep, {writer.object(moment), 0});
    }
}

// The slot is a Unix socket of the caller's, over which it gets the new master.
void hand_over(const ProcessPlanContext &context, const TerminalImage &terminal, Word master,
               OpList &ops)
{
    PlanWriter &writer = ops.writer();
    union {
        cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } ancillary{};
    ancillary.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    auto number = static_cast<int>(master);
    memcpy(CMSG_DATA(&ancillary.header), &number, sizeof number);
    char byte = 'm';
    iovec vector = {reinterpret_cast<void *>(writer.object(byte)), sizeof byte};
    msghdr message{};
    message.msg_iov = reinterpret_cast<iovec *>(writer.object(vector));
    message.msg_iovlen = 1;
    message.msg_control = reinterpret_cast<void *>(writer.object(ancillary));
    message.msg_controllen = sizeof ancillary;
    std::string object = "master of terminal " + std::to_string(terminal.index);
    ops.call(object, SYS_sendmsg,
             {word(context.descriptors.externals) + terminal.external_slot, writer.object(message),
              MSG_NOSIGNAL | MSG_DONTWAIT},
             sizeof byte);
    ops.call(object, SYS_close, {master});
}

}  // namespace

Bytes quiet_settings(const Bytes &settings)
{
    Bytes quiet = settings;
    termios2 changed;
    memcpy(&changed, quiet.data(), sizeof changed);
    changed.c_iflag &= IXON;  // clearing it would let a stopped terminal go on
    changed.c_oflag &= ~static_cast<tcflag_t>(OPOST);
    changed.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ECHONL | ISIG | IEXTEN);
    changed.c_cc[VSTART] = changed.c_cc[VSTOP] = 0;  // disabled
    changed.c_cc[VMIN] = UINT8_MAX;                  // so that poll() waits for what is on its way
    changed.c_cc[VTIME] = 0;
    memcpy(quiet.data(), &changed, sizeof changed);
    return quiet;
}

Bytes typing_settings(const Bytes &settings)
{
    termios2 wanted, typing;
    memcpy(&wanted, settings.data(), sizeof wanted);
    Bytes quiet = quiet_settings(settings);
    if ((wanted.c_lflag & ICANON) == 0)
        return quiet;
    memcpy(&typing, quiet.data(), sizeof typing);
    typing.c_lflag |= ICANON;
    for (int special : {VERASE, VKILL, VWERASE, VREPRINT, VLNEXT})
        typing.c_cc[special] = 0;
    typing.c_cc[VEOF] = wanted.c_cc[VEOF];
    memcpy(quiet.data(), &typing, sizeof typing);
    return quiet;
}

// In lines the kernel keeps the end of file (^D) as a zero byte.
Bytes typed_input(const TerminalImage &terminal)
{
    termios2 wanted;
    memcpy(&wanted, terminal.settings.data(), sizeof wanted);
    Bytes typed = terminal.input;
    if (wanted.c_lflag & ICANON)
        std::replace(typed.begin(), typed.end(), uint8_t{0}, uint8_t{wanted.c_cc[VEOF]});
    return typed;
}

Bytes flowing_settings(const Bytes &settings)
{
    Bytes flowing = quiet_settings(settings);
    termios2 changed;
    memcpy(&changed, flowing.data(), sizeof changed);
    changed.c_iflag = 0;
    memcpy(flowing.data(), &changed, sizeof changed);
    return flowing;
}

uint8_t stop_character(const TerminalImage &terminal)
{
    termios2 wanted;
    memcpy(&wanted, terminal.settings.data(), sizeof wanted);
    return wanted.c_cc[VSTOP];
}

void add_terminal_ops(const ProcessPlanContext &context, OpList &ops)
{
    PlanWriter &writer = ops.writer();
    std::map<int, Word> masters;
    for (size_t i = 0; i < context.tree.terminals.size(); i++)
        masters[context.tree.terminals[i].index] = word(context.descriptors.masters) + i;
    for (uint32_t i = 0; i < context.tree.objects.size(); i++)
        if (auto *master = std::get_if<TerminalMaster>(&context.tree.objects[i]))
            masters[master->index] = word(context.descriptors.objects) + i;
    // Lowest index first: the kernel hands out the lowest that is free.
    for (const auto &[index, number] : masters) {
        std::string object = "terminal " + std::to_string(index);
        ops.add(object, VR_OPEN_PTY, {word(index), number});
        int unlocked = 0;
        ops.call(object, SYS_ioctl, {number, TIOCSPTLCK, writer.object(unlocked)});
    }
    for (const TerminalImage &terminal : context.tree.terminals) {
        std::string path = slave_path(terminal.index);
        Word master = masters[terminal.index];
        // Through the master: opening a slave that was never open would leave it hung up.
        ops.call(path, SYS_ioctl, {master, TIOCSWINSZ, writer.data(terminal.window_size)});
        bool opens = terminal.owner_uid >= 0 || terminal.hung_up;
        if (opens)
            open_slave(terminal.index, O_RDWR | O_NONBLOCK, ops);
        fill_queues(context, terminal, master, ops);
        ops.call(path, SYS_ioctl, {master, kSetSettings, writer.data(terminal.settings)});
        if (terminal.stopped)
            ops.call(path, SYS_write, {master, writer.object(stop_character(terminal)), 1}, 1);
        if (terminal.owner_uid >= 0) {
            ops.call(path, SYS_fchown,
                     {kTemporary, word(terminal.owner_uid), word(terminal.owner_gid)});
            ops.call(path, SYS_fchmod, {kTemporary, word(terminal.mode)});
        }
        if (opens)
            ops.call(path, SYS_close, {kTemporary});
    }
    for (uint32_t i = 0; i < context.tree.objects.size(); i++) {
        Word own = word(context.descriptors.objects) + i;
        auto *slave = std::get_if<TerminalSlave>(&context.tree.objects[i]);
        if (slave && slave->as_own) {
            open_as_own(context, *slave, own, ops);
        } else if (slave) {
            open_slave(slave->index, slave->flags & ~O_CREAT, ops);
            keep_opened(slave_path(slave->index), ops, own);
        } else if (auto *master = std::get_if<TerminalMaster>(&context.tree.objects[i])) {
            ops.call("terminal " + std::to_string(master->index), SYS_fcntl,
                     {own, F_SETFL, word(master->flags & kKeptFlags)});
        }
    }
    for (const TerminalImage &terminal : context.tree.terminals) {
        std::string object = "terminal " + std::to_string(terminal.index);
        int on = 1;
        if (terminal.packet_mode)
            ops.call(object, SYS_ioctl, {masters[terminal.index], TIOCPKT, writer.object(on)});
        if (terminal.master_locked)
            ops.call(object, SYS_ioctl, {masters[terminal.index], TIOCSPTLCK, writer.object(on)});
        if (terminal.external_slot != kNoObject)
            hand_over(context, terminal, masters[terminal.index], ops);
    }
}

void add_controlling_terminal_ops(const ProcessImage &process, OpList &ops)
{
    if (process.controlling_terminal < 0)
        return;
    std::string path = slave_path(process.controlling_terminal);
    open_slave(process.controlling_terminal, O_RDWR, ops);
    ops.call("controlling terminal " + path, SYS_ioctl, {kTemporary, TIOCSCTTY, 0});
    ops.call(path, SYS_close, {kTemporary});
}

void add_foreground_ops(const ProcessImage &process, OpList &ops)
{
    if (process.controlling_terminal < 0 || process.foreground_group == 0)
        return;
    std::string path = slave_path(process.controlling_terminal);
    open_slave(process.controlling_terminal, O_RDWR, ops);
    ops.call("foreground group of " + path, SYS_ioctl,
             {kTemporary, TIOCSPGRP, ops.writer().object(process.foreground_group)});
    ops.call(path, SYS_close, {kTemporary});
}

}  // namespace venus
