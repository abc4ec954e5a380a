// Numbers that all parts of a plan agree on: addresses of the window, descriptors, barriers.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "restore/image.h"

namespace venus {

// Descriptors in the stubs. Everything below `objects` is free for the program's own numbers.
struct DescriptorLayout {
    int objects;   // one for each open file of the tree
    int extents;   // received: memory
    int externals;  // received: ends that belong to the daemon
    int shared;    // received: the shared pages of this fork
    int nameless;  // files without a name
    int masters;   // of ptys whose master goes to the caller of the fork: by index in the tree
    int end;
};

struct WindowLayout {
    uint64_t start, park, shared, scratch, base;
    uint64_t shared_bytes, scratch_bytes;

    uint64_t stack_top(size_t thread) const;  // 0: the leader
    uint64_t leaving_counter(uint32_t process) const;
    uint64_t work_area() const { return scratch; }  // below the leader's stack
};

struct ProcessPlanContext {
    const TreeImage &tree;
    DescriptorLayout descriptors;
    WindowLayout window;
};

// How a process that rebuilds itself opens a file without a name.
std::string nameless_path(const DescriptorLayout &layout, uint32_t index);
DescriptorLayout lay_out_descriptors(const TreeImage &tree);
// An address range that no process of the tree uses. Throws when there is none.
WindowLayout lay_out_window(const TreeImage &tree);

}  // namespace venus
