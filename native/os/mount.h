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

enum class LayersBy { kDescriptor, kPath };

// What the kernel takes, asked once. Before Linux 6.15 it refuses descriptors of O_PATH, and layers
// in mounts that are attached nowhere in the caller's mount namespace.
LayersBy layers_by();

struct OverlayLayers {
  std::vector<int> lower_fds;  // topmost first, not empty
  int upper_fd;
  int work_fd;
  // Further options; an empty value makes it a flag.
  std::vector<std::pair<std::string, std::string>> options;
};

// A detached overlay, nosuid and nodev. The overlay keeps the credentials of the calling thread:
// it does its work on the layers with them, ever after. By path: of the descriptors, in the /proc of
// the calling thread's mount namespace, so that no name is looked up in a layer.
UniqueFd make_overlay(const OverlayLayers& layers, LayersBy by);

// Attaches a detached mount to `path` in the calling thread's mount namespace.
void attach(int mount_fd, const std::string& path);

// Takes the topmost mount from `path`; it lives on for whoever has it open.
void detach(const std::string& path);

}  // namespace venus::os
