// The new mount API. Every function returns an owned descriptor or throws os::Error.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "os/fd.h"

namespace venus::os {

// A detached bind clone of the directory behind `fd`, whose ids are shifted by the user namespace.
// The filesystem must support idmapped mounts. The caller must be in the mount namespace of `fd`.
UniqueFd clone_idmapped(int fd, int user_namespace_fd, const std::string& object);

struct OverlayLayers {
  std::vector<int> lower_fds;  // topmost first, not empty
  int upper_fd;
  int work_fd;
  // Further options; an empty value makes it a flag.
  std::vector<std::pair<std::string, std::string>> options;
};

// A detached overlay, nosuid and nodev. The overlay keeps the credentials of the calling thread:
// it does its work on the layers with them, ever after.
UniqueFd make_overlay(const OverlayLayers& layers);

// Attaches a detached mount to `path` in the calling thread's mount namespace.
void attach(int mount_fd, const std::string& path);

}  // namespace venus::os
