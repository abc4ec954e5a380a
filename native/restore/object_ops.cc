#include "restore/object_ops.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <set>

#include "restore/file_ops.h"
#include "restore/pipe_ops.h"
#include "restore/socket_ops.h"
#include "restore/terminal_ops.h"

namespace venus {
namespace {

constexpr Word kTemporary = 0;  // the lowest free descriptor
constexpr int kSetSignal = 10;  // F_SETSIG
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
        if (!file.of_process)
            open(file);
    }

    void open(const RegularFile &file)
    {
        std::string path = file.nameless == kNoObject
                               ? file.path
                               : nameless_path(context.descriptors, file.nameless);
        ops.call(file.path, SYS_openat,
                 {word(AT_FDCWD), writer().text(path),
                  word((file.flags & ~kOnlyAtOpen) | O_CLOEXEC)},
                 kTemporary);
        if (file.offset != 0 && !(file.flags & O_PATH) && !file.of_process)
            ops.call(file.path, SYS_lseek, {kTemporary, file.offset, SEEK_SET},
                     static_cast<int64_t>(file.offset));
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

void add_file_lock_ops(const ProcessPlanContext &context, OpList &ops)
{
    constexpr int kSetRange = 37;  // F_OFD_SETLK
    for (const FileLock &lock : context.tree.file_locks) {
        Word number = word(context.descriptors.objects) + lock.object;
        struct flock request{};
        request.l_type = lock.exclusive ? F_WRLCK : F_RDLCK;
        request.l_whence = SEEK_SET;
        request.l_start = static_cast<off_t>(lock.start);
        request.l_len = static_cast<off_t>(lock.length);
        if (lock.of_range)
            ops.call("lock of a range", SYS_fcntl, {number, kSetRange, ops.writer().object(request)});
        else
            ops.call("lock of a file", SYS_flock,
                     {number, word((lock.exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB)});
    }
}

}  // namespace

void keep_opened(const std::string &object, OpList &ops, Word number)
{
    ops.call(object, SYS_dup3, {kTemporary, number, O_CLOEXEC}, static_cast<int64_t>(number));
    ops.call(object, SYS_close, {kTemporary});
}

bool has_late_files(const TreeImage &tree)
{
    return !tree.file_signals.empty() || std::any_of(tree.objects.begin(), tree.objects.end(), [](const OpenFile &object) {
        auto *file = std::get_if<RegularFile>(&object);
        return file && file->of_process;
    });
}

void open_files_of_processes(const ProcessPlanContext &context, OpList &ops)
{
    for (uint32_t i = 0; i < context.tree.objects.size(); i++)
        if (auto *file = std::get_if<RegularFile>(&context.tree.objects[i]);
            file && file->of_process)
            Maker{context, ops, i}.open(*file);
}

void seek_files_of_processes(const ProcessPlanContext &context, OpList &ops)
{
    for (uint32_t i = 0; i < context.tree.objects.size(); i++)
        if (auto *file = std::get_if<RegularFile>(&context.tree.objects[i]);
            file && file->of_process && file->offset != 0 && !(file->flags & O_PATH))
            ops.call(file->path, SYS_lseek,
                     {word(context.descriptors.objects) + i, file->offset, SEEK_SET},
                     static_cast<int64_t>(file->offset));
}

void fetch_files_of_processes(const ProcessPlanContext &context, const DescriptorTable &table,
                              OpList &ops)
{
    constexpr Word kCoordinator = 0, kFetched = 1;
    std::set<uint32_t> wanted;
    for (const DescriptorImage &descriptor : table.descriptors)
        if (auto *file = std::get_if<RegularFile>(&context.tree.objects[descriptor.object]);
            file && file->of_process)
            wanted.insert(descriptor.object);
    if (wanted.empty())
        return;
    ops.call("coordinator", SYS_pidfd_open, {word(context.coordinator), 0}, kCoordinator);
    for (uint32_t object : wanted) {
        const std::string &path = std::get<RegularFile>(context.tree.objects[object]).path;
        Word own = word(context.descriptors.objects) + object;
        ops.call(path, SYS_pidfd_getfd, {kCoordinator, own, 0}, kFetched);
        ops.call(path, SYS_dup3, {kFetched, own, O_CLOEXEC}, static_cast<int64_t>(own));
        ops.call(path, SYS_close, {kFetched});
    }
    ops.call("coordinator", SYS_close, {kCoordinator});
}

void add_file_signal_ops(const ProcessPlanContext &context, OpList &ops)
{
    constexpr Word kSame = ~uint32_t{0};
    constexpr int kSetOwner = 15;  // F_SETOWN_EX
    PlanWriter &writer = ops.writer();
    auto as_user = [&](const std::string &object, uint32_t uid, uint32_t effective_uid) {
        ops.call(object, SYS_setresuid, {uid, effective_uid, kSame});
        // A change of ids clears it, and /proc/self would belong to the host.
        ops.call(object, SYS_prctl, {PR_SET_DUMPABLE, 1, 0, 0, 0});
    };
    for (const FileSignal &signal : context.tree.file_signals) {
        std::string object = "signal of a file";
        Word number = word(context.descriptors.objects) + signal.object;
        if (signal.lease >= 0) {
            if (signal.lease_uid != 0)
                as_user("lease", 0, signal.lease_uid);
            ops.call("lease", SYS_fcntl, {number, F_SETLEASE, word(signal.lease)});
            if (signal.lease_uid != 0)
                as_user("lease", 0, 0);
        }
        if (signal.owner_kind >= 0) {
            struct {
                int kind, pid;
            } owner{signal.owner_kind, signal.owner};
            bool other = signal.uid != 0 || signal.effective_uid != 0;
            if (other)
                as_user(object, signal.uid, signal.effective_uid);
            ops.call(object, SYS_fcntl, {number, kSetOwner, writer.object(owner)});
            if (other)
                as_user(object, 0, 0);
        }
        if (signal.signal != 0)
            ops.call(object, SYS_fcntl, {number, kSetSignal, word(signal.signal)});
    }
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
    add_file_lock_ops(context, ops);
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
