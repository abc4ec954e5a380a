#include "os/process.h"

#include <linux/securebits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "os/error.h"

namespace venus::os {

ChildProcess::~ChildProcess() {
  if (!pidfd_) return;
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  siginfo_t info;
  while (::waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED) < 0 && errno == EINTR) {
  }
}

WaitOutcome wait_readable(int fd, int pidfd, std::chrono::steady_clock::time_point deadline) {
  using std::chrono::milliseconds;
  for (;;) {
    auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd set[2] = {{fd, POLLIN, 0}, {pidfd, POLLIN, 0}};
    int ready = ::poll(set, 2, static_cast<int>(std::max<long>(left.count(), 0)));
    if (ready < 0 && errno != EINTR) fail("poll", "status of sandbox-init");
    if (ready > 0 && set[0].revents) return WaitOutcome::readable;
    if (ready > 0 && set[1].revents) return WaitOutcome::exited;
    if (ready == 0) return WaitOutcome::timed_out;
  }
}

void block_signals() {
  sigset_t all;
  ::sigfillset(&all);
  if (int error_number = ::pthread_sigmask(SIG_SETMASK, &all, nullptr))
    throw Error("pthread_sigmask", "all signals", error_number);
}

void shorten_slice() {
  struct {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
  } attributes{};
  attributes.size = sizeof attributes;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) < 0) return;
  attributes.runtime = 100'000;
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

void enter_mount_namespace(int pidfd) {
  // The root and working directory are shared by all threads until this one has its own.
  if (::unshare(CLONE_FS) < 0) fail("unshare", "CLONE_FS");
  if (::setns(pidfd, CLONE_NEWNS) < 0) fail("setns", "mount namespace of the sandbox");
}

void keep_capabilities() {
  if (::prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) < 0)
    fail("prctl(PR_SET_SECUREBITS)", "SECBIT_NO_SETUID_FIXUP");
}

void assume_effective_uid(uid_t uid) {
  // Raw: the one of libc would change all threads.
  if (::syscall(SYS_setresuid, -1, uid, -1) < 0) fail("setresuid", std::to_string(uid));
}

void assume_filesystem_ids(uid_t uid) {
  // Raw: these return the previous id and no error, so success is asked for by a second call.
  ::syscall(SYS_setfsgid, uid);
  ::syscall(SYS_setfsuid, uid);
  if (static_cast<uid_t>(::syscall(SYS_setfsgid, -1)) != uid ||
      static_cast<uid_t>(::syscall(SYS_setfsuid, -1)) != uid)
    throw Error("setfsuid", std::to_string(uid), EPERM);
}

}  // namespace venus::os
