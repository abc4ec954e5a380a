// Makes a sandbox: namespaces, id map, cgroups, overlay root, and PID 1 up to READY.
//
// All or nothing: when spawn() throws, nothing of the sandbox is left but the caller's own
// descriptors. Does not handle: what the plan says (sandbox-init does), limits (the cgroups that are
// passed have them), removal (kill the process; its namespaces and mounts go with it).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "os/fd.h"
#include "os/mount.h"

namespace venus::sandbox {

struct SpawnRequest {
  int init_fd = -1;
  int plan_fd = -1;
  int listen_fd = -1;
  std::string root_mountpoint;
  std::vector<int> lower_fds;  // topmost first
  int upper_parent_fd = -1;    // holds upper/ and work/
  std::uint32_t id_base = 0;
  std::uint32_t id_count = 65536;
  std::vector<int> cgroup_procs_fds;
  std::vector<std::pair<std::string, std::string>> overlay_options;
  std::chrono::milliseconds timeout{10'000};
  std::optional<os::LayersBy> layers_by;  // none: as the kernel takes them
};

struct SpawnTimings {
  std::chrono::microseconds cloned, mapped, mounted, ready;  // since the start
};

struct Spawned {
  pid_t pid;
  os::UniqueFd pidfd;
  SpawnTimings timings;
};

// Blocks. Works in a thread of its own, which changes its namespaces and credentials and ends.
Spawned spawn(const SpawnRequest& request);

}  // namespace venus::sandbox
