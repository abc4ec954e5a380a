// Capture of one address space.
#pragma once

#include "capture/object_table.h"
#include "capture/stopped_tree.h"
#include "capture/write_tracking.h"

namespace venus {

// Finds a syscall instruction in the vDSO, needed before anything can be injected, and what is left of
// the plan that made the process.
// `sharer`: a process of the same memory that is prepared already, or null.
void prepare_injection(StoppedProcess &process, const std::vector<FileIdentity> &plans,
                       const StoppedProcess *sharer);
// The parts of the caller's own vDSO, in the order of their addresses.
std::vector<VdsoPart> own_vdso();
// `known`: see store_own_pages.
void capture_memory(StoppedProcess &process, CaptureState &state, ProcessImage &image,
                    KnownProcess *known);

}  // namespace venus
