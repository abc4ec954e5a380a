#include "sandbox/spawn.h"

#include <fcntl.h>

#include <exception>
#include <optional>
#include <random>
#include <system_error>
#include <thread>

#include "os/error.h"
#include "os/init_process.h"
#include "os/mount.h"
#include "os/process.h"
#include "sandbox/status.h"

namespace venus::sandbox {

namespace {

using Clock = std::chrono::steady_clock;

std::string proc_path(pid_t pid, const char* name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

void validate(const SpawnRequest& request) {
  auto refuse = [](const char* object) { throw os::Error("spawn", object, EINVAL); };
  if (request.lower_fds.empty()) refuse("without lower directories");
  if (request.root_mountpoint.empty() || request.root_mountpoint[0] != '/')
    refuse("with a root mount point that is not absolute");
  if (request.id_base == 0 || request.id_count == 0 ||
      request.id_base > UINT32_MAX - request.id_count)
    refuse("with an id range that holds the host's root or wraps");
}

// What the kernel counts by user (inotify instances, queued signals, message queues, namespaces) it
// also charges to the owner of the user namespace. Were that the host's root, one sandbox could use
// up what root and all other sandboxes share. So each has an owner of its own, out of its tenant's
// range: a number that no process of the host runs under. Two of one tenant may draw the same.
uid_t draw_owner(const SpawnRequest& request) {
  return request.id_base + static_cast<uid_t>(std::random_device()() % request.id_count);
}

void write_id_maps(pid_t pid, const SpawnRequest& request) {
  std::string map =
      "0 " + std::to_string(request.id_base) + " " + std::to_string(request.id_count) + "\n";
  for (const char* name : {"uid_map", "gid_map"}) {
    std::string path = proc_path(pid, name);
    os::write_whole(os::open_path(path, O_WRONLY).get(), map, path);
  }
}

void join_cgroups(pid_t pid, const std::vector<int>& procs_fds) {
  std::string text = std::to_string(pid);
  for (int fd : procs_fds) os::write_whole(fd, text, "cgroup.procs of the sandbox");
}

// Leaves the thread in the sandbox's mount namespace with the sandbox's file-system ids.
//
// The order is forced by the kernel: clones are made while this thread is still in the namespace of
// the originals; the overlay remembers the credentials of its maker, which must be able to own files
// as the sandbox's root (host root, through an idmapped upper, gets EOVERFLOW and the kernel then
// mounts read-only without a word) and yet hold the host's capabilities.
//
// Where layers go by path, the clones are attached while the overlay is made: the sandbox, which has
// no process but this thread yet, never sees them.
os::UniqueFd mount_root(const os::WaitingInit& init, const SpawnRequest& request) {
  os::UniqueFd user_namespace = os::open_path(proc_path(init.pid(), "ns/user"), O_RDONLY);
  std::vector<os::UniqueFd> clones;
  os::OverlayLayers layers{};
  for (int fd : request.lower_fds) {
    clones.push_back(os::clone_idmapped(fd, user_namespace.get(), "lower directory"));
    layers.lower_fds.push_back(clones.back().get());
  }
  clones.push_back(
      os::clone_idmapped(request.upper_parent_fd, user_namespace.get(), "parent of upper"));
  os::UniqueFd upper = os::open_at(clones.back().get(), "upper", O_PATH | O_DIRECTORY);
  os::UniqueFd work = os::open_at(clones.back().get(), "work", O_PATH | O_DIRECTORY);
  layers.upper_fd = upper.get();
  layers.work_fd = work.get();
  layers.options = request.overlay_options;

  os::enter_mount_namespace(init.pidfd());
  os::assume_filesystem_ids(request.id_base);
  const os::LayersBy by = request.layers_by ? *request.layers_by : os::layers_by();
  const bool attached = by == os::LayersBy::kPath;
  for (const os::UniqueFd& clone : clones)
    if (attached) os::attach(clone.get(), request.root_mountpoint);
  os::UniqueFd root = os::make_overlay(layers, by);
  for (std::size_t i = 0; attached && i < clones.size(); ++i) os::detach(request.root_mountpoint);
  os::attach(root.get(), request.root_mountpoint);
  return root;
}

Spawned run(const SpawnRequest& request) {
  const auto start = Clock::now();
  const auto deadline = start + request.timeout;
  auto since_start = [start] {
    return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
  };
  SpawnTimings timings{};
  os::block_signals();
  os::shorten_slice();
  os::keep_capabilities();
  os::assume_effective_uid(draw_owner(request));
  os::WaitingInit init({request.init_fd, request.plan_fd, request.listen_fd});
  os::assume_effective_uid(0);
  timings.cloned = since_start();
  write_id_maps(init.pid(), request);
  join_cgroups(init.pid(), request.cgroup_procs_fds);
  timings.mapped = since_start();
  os::UniqueFd root = mount_root(init, request);
  timings.mounted = since_start();
  init.go(root.get());
  wait_ready(init.status_fd(), init.pidfd(), deadline);
  timings.ready = since_start();
  return {init.pid(), init.take(), timings};
}

}  // namespace

Spawned spawn(const SpawnRequest& request) {
  validate(request);
  std::optional<Spawned> spawned;
  std::exception_ptr failure;
  auto work = [&] {
    try {
      spawned = run(request);
    } catch (...) {
      failure = std::current_exception();
    }
  };
  try {
    std::thread(work).join();
  } catch (const std::system_error& error) {
    throw os::Error("create", "thread for a sandbox", error.code().value());
  }
  if (failure) std::rethrow_exception(failure);
  return std::move(*spawned);
}

}  // namespace venus::sandbox
