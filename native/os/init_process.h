// Starts the first process of a sandbox without copying the (large) calling process.
#pragma once

#include "os/fd.h"
#include "os/process.h"

namespace venus::os {

struct InitDescriptors {
  int init_fd;    // the static program
  int plan_fd;
  int listen_fd;
};

// A process in new user, pid, mount, net, ipc and uts namespaces that waits to become sandbox-init.
class WaitingInit {
 public:
  // All signals of the calling thread must be blocked: the child shares this process's memory until
  // it execs and must run no handler of it.
  explicit WaitingInit(const InitDescriptors& descriptors);
  WaitingInit(const WaitingInit&) = delete;
  WaitingInit& operator=(const WaitingInit&) = delete;
  // Kills and reaps the child unless taken.
  ~WaitingInit();

  pid_t pid() const { return child_->pid(); }
  int pidfd() const { return child_->pidfd(); }
  int status_fd() const { return status_.get(); }

  // Lets the child exec, with `root_fd` (its root mount) as VENUS_FD_ROOT. Its id maps and cgroups
  // must be in place.
  void go(int root_fd);

  // The descriptor of the process, which is the caller's from now on. Only after init has reported:
  // before that the child may still stand on a stack of ours.
  UniqueFd take();

 private:
  struct Stack;
  Stack* stack_;
  UniqueFd go_;
  UniqueFd status_;
  ChildProcess* child_ = nullptr;
};

}  // namespace venus::os
