// Capture of what belongs to a whole process, apart from memory and descriptors.
#pragma once

#include "capture/object_table.h"
#include "capture/stopped_tree.h"

namespace venus {

void capture_process(StoppedProcess &process, StoppedTree &tree, ProcessImage &image);
Directories capture_directories(const StoppedProcess &process, const StoppedThread &thread,
                                CaptureState &state);
// Ids in credentials become those of the sandbox.
void map_credentials(const StoppedProcess &process, Credentials &credentials);

}  // namespace venus
