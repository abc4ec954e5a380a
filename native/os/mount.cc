#include "os/mount.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "os/error.h"

namespace venus::os {

namespace {

// A filesystem context explains its refusals in words; without them EINVAL says nothing.
[[noreturn]] void fail_with_log(const char* operation, std::string object, int context_fd) {
  int error_number = errno;
  char line[256];
  ssize_t size;
  while ((size = ::read(context_fd, line, sizeof line)) > 0)
    object += " (" + std::string(line, static_cast<size_t>(size)) + ")";
  throw Error(operation, object, error_number);
}

void set_layer(int context_fd, const char* key, int fd, LayersBy by) {
  std::string path = "/proc/self/fd/" + std::to_string(fd);
  int result = by == LayersBy::kDescriptor
                   ? fsconfig(context_fd, FSCONFIG_SET_FD, key, nullptr, fd)
                   : fsconfig(context_fd, FSCONFIG_SET_STRING, key, path.c_str(), 0);
  if (result < 0) fail_with_log("fsconfig", std::string("overlay ") + key, context_fd);
}

UniqueFd new_overlay() {
  UniqueFd context(static_cast<int>(::syscall(SYS_fsopen, "overlay", FSOPEN_CLOEXEC)));
  if (!context) fail("fsopen", "overlay");
  return context;
}

LayersBy ask_layers_by() {
  UniqueFd context = new_overlay();
  UniqueFd directory = open_path("/", O_PATH | O_DIRECTORY);
  int result = fsconfig(context.get(), FSCONFIG_SET_FD, "lowerdir+", nullptr, directory.get());
  return result < 0 && errno == EBADF ? LayersBy::kPath : LayersBy::kDescriptor;
}

}  // namespace

UniqueFd clone_idmapped(int fd, int user_namespace_fd, const std::string& object) {
  UniqueFd tree(static_cast<int>(::syscall(SYS_open_tree, fd, "",
                                           OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH)));
  if (!tree) fail("open_tree", object);
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_IDMAP;
  attributes.userns_fd = static_cast<std::uint64_t>(user_namespace_fd);
  if (::syscall(SYS_mount_setattr, tree.get(), "", AT_EMPTY_PATH, &attributes,
                sizeof attributes) < 0)
    fail("mount_setattr(MOUNT_ATTR_IDMAP)", object);
  return tree;
}

LayersBy layers_by() {
  static const LayersBy by = ask_layers_by();
  return by;
}

UniqueFd make_overlay(const OverlayLayers& layers, LayersBy by) {
  UniqueFd context = new_overlay();
  for (int fd : layers.lower_fds) set_layer(context.get(), "lowerdir+", fd, by);
  set_layer(context.get(), "upperdir", layers.upper_fd, by);
  set_layer(context.get(), "workdir", layers.work_fd, by);
  for (const auto& [key, value] : layers.options) {
    unsigned command = value.empty() ? FSCONFIG_SET_FLAG : FSCONFIG_SET_STRING;
    const char* text = value.empty() ? nullptr : value.c_str();
    if (fsconfig(context.get(), command, key.c_str(), text, 0) < 0)
      fail_with_log("fsconfig", "overlay " + key, context.get());
  }
  if (fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) < 0)
    fail_with_log("fsconfig(CREATE)", "overlay", context.get());
  UniqueFd mount(static_cast<int>(::syscall(SYS_fsmount, context.get(), FSMOUNT_CLOEXEC,
                                            MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)));
  if (!mount) fail_with_log("fsmount", "overlay", context.get());
  return mount;
}

void attach(int mount_fd, const std::string& path) {
  if (::syscall(SYS_move_mount, mount_fd, "", AT_FDCWD, path.c_str(), MOVE_MOUNT_F_EMPTY_PATH) < 0)
    fail("move_mount", path);
}

void detach(const std::string& path) {
  if (::umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) < 0) fail("umount", path);
}

}  // namespace venus::os
