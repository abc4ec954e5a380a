// Names of files as the sandbox sees them.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "capture/stopped_tree.h"

namespace venus {

// Whether opening `path` inside the sandbox leads to this very file. The sandbox controls what the
// path leads to, so it is only looked at (O_PATH, inside its root, which is that of its init), never
// opened.
bool is_reachable(pid_t init, const std::string &path, const struct stat &file);

// What a path leads to, inside the sandbox's root, not through a link at its end.
std::optional<struct stat> look_at(pid_t init, const std::string &path);

// The name of the file behind a /proc link, or Refused when that name no longer leads to it.
std::string path_in_sandbox(const StoppedProcess &process, pid_t init, const std::string &link,
                            const std::string &target);

}  // namespace venus
