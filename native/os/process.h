// Processes by pidfd, and what a thread may change about itself.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "os/fd.h"

namespace venus::os {

// A child of this process: killed and reaped on destruction unless released.
class ChildProcess {
 public:
  ChildProcess(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}
  ChildProcess(ChildProcess&&) = default;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }
  UniqueFd release() { return std::move(pidfd_); }

 private:
  pid_t pid_;
  UniqueFd pidfd_;
};

enum class WaitOutcome { readable, exited, timed_out };

// Waits until `fd` is readable or at its end, or the process of `pidfd` dies with `fd` silent.
WaitOutcome wait_readable(int fd, int pidfd, std::chrono::steady_clock::time_point deadline);

// The following change only the calling thread, irrevocably: for threads that end afterwards.

void block_signals();

// Lets the thread, and what it clones, get the CPU sooner after a wake-up, for shorter stretches
// (EEVDF, Linux 6.12). Best effort: an older kernel ignores it.
void shorten_slice();

// Moves the thread into the mount namespace of the process, at that namespace's root directory.
void enter_mount_namespace(int pidfd);

// Whatever ids the thread takes on later, its capabilities stay.
void keep_capabilities();

// The effective uid, and with it the owner of user namespaces that the thread makes. After
// keep_capabilities().
void assume_effective_uid(uid_t uid);

// File-system access as `uid`:`uid`. After keep_capabilities().
void assume_filesystem_ids(uid_t uid);

}  // namespace venus::os
