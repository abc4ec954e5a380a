#include "restore/terminal_ops.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

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

}  // namespace

void add_terminal_ops(const ProcessPlanContext &context, OpList &ops)
{
    PlanWriter &writer = ops.writer();
    std::map<int, Word> masters;
    for (const TerminalImage &terminal : context.tree.terminals)
        masters[terminal.index] = 0;
    for (uint32_t i = 0; i < context.tree.objects.size(); i++)
        if (auto *master = std::get_if<TerminalMaster>(&context.tree.objects[i]))
            masters[master->index] = word(context.descriptors.objects) + i;
    // Lowest index first: the kernel hands out the lowest that is free.
    for (const auto &[index, number] : masters) {
        std::string object = "terminal " + std::to_string(index);
        if (number == 0)
            throw Refused("the sandbox", object, "no process of it holds its master");
        ops.add(object, VR_OPEN_PTY, {word(index), number});
        int unlocked = 0;
        ops.call(object, SYS_ioctl, {number, TIOCSPTLCK, writer.object(unlocked)});
    }
    for (const TerminalImage &terminal : context.tree.terminals) {
        std::string path = slave_path(terminal.index);
        open_slave(terminal.index, O_RDWR, ops);
        ops.call(path, SYS_ioctl, {kTemporary, kSetSettings, writer.data(terminal.settings)});
        ops.call(path, SYS_ioctl, {kTemporary, TIOCSWINSZ, writer.data(terminal.window_size)});
        if (terminal.owner_uid >= 0) {
            ops.call(path, SYS_fchown,
                     {kTemporary, word(terminal.owner_uid), word(terminal.owner_gid)});
            ops.call(path, SYS_fchmod, {kTemporary, word(terminal.mode)});
        }
        ops.call(path, SYS_close, {kTemporary});
    }
    for (uint32_t i = 0; i < context.tree.objects.size(); i++) {
        Word own = word(context.descriptors.objects) + i;
        if (auto *slave = std::get_if<TerminalSlave>(&context.tree.objects[i])) {
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
