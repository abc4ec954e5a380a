#include "os/pid_namespace.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>

#include "os/proc.h"

namespace venus::os {
namespace {

// NS_GET_TGID_IN_PIDNS of <linux/nsfs.h>, which may be older than the kernel.
constexpr unsigned long kNumberInside = _IOR(0xb7, 9, int);

}  // namespace

PidNamespace::PidNamespace(pid_t member)
    : fd_(open_path(proc::path(member, "ns/pid"), O_RDONLY))
{
}

bool PidNamespace::may_hold(pid_t host_pid) const
{
    return ioctl(fd_.get(), kNumberInside, host_pid) >= 0 || errno != ESRCH;
}

}  // namespace venus::os
