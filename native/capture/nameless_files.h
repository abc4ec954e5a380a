// Files and directories without a name that leads to them: deleted, replaced by another, or never
// named (O_TMPFILE).
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "capture/object_table.h"
#include "capture/stopped_tree.h"

namespace venus {

// Index in TreeImage::nameless of the file behind `link`, a /proc link that shows `target`; empty
// when it is something else. Its content is carried over.
// Throws Refused when it is too large, or when it may be changed here and under another name.
std::optional<uint32_t> nameless_file(const StoppedProcess &process, const std::string &link,
                                      const std::string &target, bool writable,
                                      CaptureState &state);

}  // namespace venus
