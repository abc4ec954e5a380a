// Names of files as the sandbox sees them.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "capture/stopped_tree.h"

// The sandbox controls what a path leads to, so it is resolved inside its root, which is that of its
// init, and only looked at (O_PATH), never opened.
namespace venus {

// What lies there; of a symbolic link at the end, the link itself.
std::optional<struct stat> look_at(pid_t init, const std::string &path);

// Whether opening `path` inside the sandbox leads to this very file.
bool is_reachable(pid_t init, const std::string &path, const struct stat &file);

// The name of the file behind a /proc link, or Refused when that name no longer leads to it.
std::string path_in_sandbox(const StoppedProcess &process, pid_t init, const std::string &link,
                            const std::string &target);

}  // namespace venus
