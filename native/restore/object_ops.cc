#include "restore/object_ops.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include "restore/file_ops.h"
#include "restore/pipe_ops.h"
#include "restore/socket_ops.h"
#include "restore/terminal_ops.h"

namespace venus {
namespace {

constexpr Word kTemporary = 0;  // the lowest free descriptor
constexpr int kOnlyAtOpen = O_CREAT | O_EXCL | O_TRUNC | O_NOCTTY;
constexpr unsigned long kSetTicks = _IOW('T', 0, uint64_t);  // TFD_IOC_SET_TICKS

struct Maker {
    const ProcessPlanContext &context;
    OpList &ops;
    uint32_t index;

    Word own() const { return word(context.descriptors.objects) + index; }
    PlanWriter &writer() { return ops.writer(); }

    // The file at descriptor 0 becomes the object.
    void keep(const std::string &object) { keep_opened(object, ops, own()); }

    void operator()(const RegularFile &file)
    {
        std::string path = file.nameless == kNoObject
                               ? file.path
                               : nameless_path(context.descriptors, file.nameless);
        ops.call(file.path, SYS_openat,
                 {word(AT_FDCWD), writer().text(path),
                  word((file.flags & ~kOnlyAtOpen) | O_CLOEXEC)},
                 kTemporary);
        if (file.offset != 0 && !(file.flags & O_PATH))
            ops.call(file.path, SYS_lseek, {kTemporary, file.offset, SEEK_SET},
                     static_cast<int64_t>(file.offset));
        if (file.flock >= 0)
            ops.call(file.path + " lock", SYS_flock, {kTemporary, word(file.flock | LOCK_NB)});
        keep(file.path);
    }

    void operator()(const DeviceFile &file)
    {
        ops.call(file.path, SYS_openat,
                 {word(AT_FDCWD), writer().text(file.path),
                  word((file.flags & ~kOnlyAtOpen) | O_CLOEXEC | O_NOCTTY)},
                 kTemporary);
        keep(file.path);
    }

    void operator()(const EventCounter &counter)
    {
        Word flags = word((counter.flags & O_NONBLOCK) | EFD_CLOEXEC) |
                     (counter.semaphore ? Word{EFD_SEMAPHORE} : Word{0});
        ops.call("eventfd", SYS_eventfd2, {0, flags}, kTemporary);
        if (counter.count != 0)
            ops.call("eventfd", SYS_write,
                     {kTemporary, writer().object(counter.count), sizeof counter.count},
                     sizeof counter.count);
        keep("eventfd");
    }

    void operator()(const TimerFile &timer)
    {
        ops.call("timerfd", SYS_timerfd_create,
                 {word(timer.clock), word((timer.flags & O_NONBLOCK) | TFD_CLOEXEC)}, kTemporary);
        keep("timerfd");
    }

    void operator()(const SignalFile &file)
    {
        ops.call("signalfd", SYS_signalfd4,
                 {~Word{0}, writer().object(file.mask), sizeof file.mask,
                  word((file.flags & O_NONBLOCK) | O_CLOEXEC)},
                 kTemporary);
        keep("signalfd");
    }

    // Its targets are added by a process that has them under their own numbers.
    void operator()(const EpollFile &)
    {
        ops.call("epoll", SYS_epoll_create1, {O_CLOEXEC}, kTemporary);
        keep("epoll");
    }

    void operator()(const SharedMemoryFile &file)
    {
        std::string object = "shared memory " + file.name;
        uint32_t first = first_of_memory(file.memory);
        if (first != index) {
            std::string path = "/proc/self/fd/" + std::to_string(context.descriptors.objects +
                                                                static_cast<int>(first));
            ops.call(object, SYS_openat,
                     {word(AT_FDCWD), writer().text(path),
                      word((file.flags & ~kOnlyAtOpen) | O_CLOEXEC)},
                     kTemporary);
        } else {
            create_memory(file, object);
        }
        if (file.offset != 0)
            ops.call(object, SYS_lseek, {kTemporary, file.offset, SEEK_SET},
                     static_cast<int64_t>(file.offset));
        keep(object);
    }

    void operator()(const ExternalFile &file)
    {
        ops.call("external " + std::to_string(file.slot), SYS_dup3,
                 {word(context.descriptors.externals) + file.slot, own(), O_CLOEXEC},
                 static_cast<int64_t>(own()));
    }

    void operator()(const PipeEnd &) {}         // pipe_ops
    void operator()(const TerminalMaster &) {}  // terminal_ops
    void operator()(const TerminalSlave &) {}
    void operator()(const UnixSocket &) {}  // socket_ops
    void operator()(const InetSocket &) {}

private:
    uint32_t first_of_memory(uint32_t memory) const
    {
        for (uint32_t i = 0;; i++)
            if (auto *file = std::get_if<SharedMemoryFile>(&context.tree.objects.at(i));
                file && file->memory == memory)
                return i;
    }

    void create_memory(const SharedMemoryFile &file, const std::string &object)
    {
        Word flags = MFD_CLOEXEC | (file.may_be_sealed ? MFD_ALLOW_SEALING : 0u);
        ops.call(object, SYS_memfd_create, {writer().text(file.name), flags}, kTemporary);
        add_content_ops(context, object, file.size, file.content, ops);
        if (file.seals != 0 && file.may_be_sealed)
            ops.call(object, SYS_fcntl, {kTemporary, F_ADD_SEALS, file.seals});
    }
};

}  // namespace

void keep_opened(const std::string &object, OpList &ops, Word number)
{
    ops.call(object, SYS_dup3, {kTemporary, number, O_CLOEXEC}, static_cast<int64_t>(number));
    ops.call(object, SYS_close, {kTemporary});
}

void add_object_ops(const ProcessPlanContext &context, OpList &ops)
{
    add_file_ops(context, ops);
    add_terminal_ops(context, ops);
    for (uint32_t i = 0; i < context.tree.objects.size(); i++) {
        Maker maker{context, ops, i};
        std::visit(maker, context.tree.objects[i]);
    }
    add_pipe_ops(context, ops);
    add_socket_ops(context, ops);
}

void add_timer_file_ops(const ProcessPlanContext &context, OpList &ops)
{
    for (uint32_t i = 0; i < context.tree.objects.size(); i++) {
        auto *timer = std::get_if<TimerFile>(&context.tree.objects[i]);
        if (timer == nullptr)
            continue;
        Word number = word(context.descriptors.objects) + i;
        if (timer->spec[2] != 0 || timer->spec[3] != 0)
            ops.call("timerfd", SYS_timerfd_settime,
                     {number, 0, ops.writer().data(timer->spec, sizeof timer->spec), 0});
        if (timer->ticks != 0)
            ops.call("timerfd", SYS_ioctl, {number, kSetTicks, ops.writer().object(timer->ticks)});
    }
}

}  // namespace venus
