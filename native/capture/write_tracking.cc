#include "capture/write_tracking.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/checked.h"

namespace venus {
namespace {

constexpr const char *kDevice = "/dev/userfaultfd";
constexpr uint64_t kNew = 0xaa00;  // USERFAULTFD_IOC_NEW
constexpr size_t kStartTime = 22;  // field of stat

// Everything that recvmsg(2) needs, at its place in the process.
struct Reception {
    int pair[2];
    char byte;
    iovec vector;
    msghdr message;
    union {
        cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } ancillary;
};

// A descriptor of the stopped process, closed again at the end.
class TheirFd {
public:
    TheirFd(StoppedProcess &process, int64_t number) : process_(process), number_(number) {}
    ~TheirFd()
    {
        if (number_ >= 0)
            process_.call(SYS_close, static_cast<uint64_t>(number_));
    }
    TheirFd(const TheirFd &) = delete;

    uint64_t number() const { return static_cast<uint64_t>(number_); }
    explicit operator bool() const { return number_ >= 0; }
    os::UniqueFd duplicate() const
    {
        return os::UniqueFd(static_cast<int>(checked(
            syscall(SYS_pidfd_getfd, process_.pidfd.get(), number_, 0), "duplicate", "descriptor")));
    }

private:
    StoppedProcess &process_;
    int64_t number_;
};

// A userfaultfd belongs to the address space that makes it, and what is in a sandbox may not: the
// process is handed the device and makes one for us.
os::UniqueFd make_inside(StoppedProcess &process)
{
    os::UniqueFd device(checked(open(kDevice, O_RDWR | O_CLOEXEC), "open", kDevice));
    uint64_t at = process.scratch;
    if (process.call(SYS_socketpair, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0,
                     at + offsetof(Reception, pair)) < 0)
        return {};
    Reception there{};
    process.read_memory(at, &there, sizeof there);
    TheirFd sending(process, there.pair[0]), receiving(process, there.pair[1]);
    int number = device.get();
    os::send_with_fds(sending.duplicate().get(), {"", 1}, &number, 1, kDevice);
    auto pointer = [&](size_t offset) { return reinterpret_cast<char *>(at + offset); };
    there.vector = {pointer(offsetof(Reception, byte)), 1};
    there.message.msg_iov = reinterpret_cast<iovec *>(pointer(offsetof(Reception, vector)));
    there.message.msg_iovlen = 1;
    there.message.msg_control = pointer(offsetof(Reception, ancillary));
    there.message.msg_controllen = sizeof there.ancillary;
    process.write_memory(at, &there, sizeof there);
    if (process.call(SYS_recvmsg, receiving.number(), at + offsetof(Reception, message),
                     MSG_CMSG_CLOEXEC | MSG_DONTWAIT) < 0)
        return {};
    process.read_memory(at, &there, sizeof there);
    number = -1;
    if (there.message.msg_controllen >= CMSG_LEN(sizeof number))
        memcpy(&number, CMSG_DATA(&there.ancillary.header), sizeof number);
    TheirFd their_device(process, number);
    if (!their_device)
        return {};
    TheirFd made(process, process.call(SYS_ioctl, their_device.number(), kNew,
                                       O_CLOEXEC | O_NONBLOCK));
    return made ? made.duplicate() : os::UniqueFd();
}

}  // namespace

KnownProcess WriteTracking::take(const StoppedProcess &process)
{
    KnownProcess known;
    auto at = before_.find(process.host_pid);
    if (at != before_.end() && at->second.started == process.stat.at(kStartTime))
        known = std::move(at->second);
    if (at != before_.end())
        before_.erase(at);
    known.started = process.stat.at(kStartTime);
    return known;
}

void WriteTracking::remember(pid_t host_pid, KnownProcess process)
{
    now_[host_pid] = std::move(process);
}

void WriteTracking::settle()
{
    before_ = std::move(now_);
    now_.clear();
}

void protect_from(StoppedProcess &process, KnownProcess &known)
{
    os::UniqueFd fd = make_inside(process);
    known.protection.reset();
    if (fd)
        known.protection = std::make_shared<os::WriteProtection>(std::move(fd));
}

}  // namespace venus
