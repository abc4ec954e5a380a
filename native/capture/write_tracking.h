// What a sandbox has written since its last snapshot.
//
// After a capture the private pages of every process are write-protected (os/write_protection.h) and
// it is remembered in which extents they lie.  The next capture copies what was written since and
// references the rest.  Nothing is taken on trust: a page counts as known only if its mapping still
// is under our userfaultfd and the kernel has not seen it written.  New processes, mappings that were
// made, moved or grown, and address spaces after execve are copied whole once.
//
// Not for two at once: each protects pages, and clears what the other looks for.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "capture/object_table.h"
#include "capture/stopped_tree.h"
#include "memory/page_choice.h"
#include "os/page_scan.h"
#include "os/write_protection.h"

namespace venus {

struct KnownExtent {
    SealedExtent extent;
    uint64_t stored_bytes;
};

struct KnownProcess {
    std::string started;  // tells a process from a later one with its number
    std::shared_ptr<os::WriteProtection> protection;
    std::vector<PageRun> protected_pages, fillers;
    std::vector<StoredRun> stored;  // indices into `extents`
    std::vector<KnownExtent> extents;
};

class WriteTracking {
public:
    void begin() { now_.clear(); }
    // Takes the knowledge out: a capture that fails leaves none.
    KnownProcess take(const StoppedProcess &process);
    // For the next capture.
    void remember(pid_t host_pid, KnownProcess process);
    // Forgets processes that were not remembered since.
    void settle();

private:
    std::map<pid_t, KnownProcess> before_, now_;
};

// Makes `known.protection`, if it can be made: a process without free descriptors stays unknown.
void protect_from(StoppedProcess &process, KnownProcess &known);

}  // namespace venus
