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

    // Stacks of an address space: 0 is that of the first thread of the process that rebuilds it.
    uint64_t stack_top(size_t stack) const;
    uint64_t leaving_counter(uint32_t process) const;
    // Below the stack; not where other threads than the first of a process are.
    uint64_t work_area(size_t stack = 0) const;
};

struct ProcessPlanContext {
    const TreeImage &tree;
    DescriptorLayout descriptors;
    WindowLayout window;
    std::vector<size_t> first_stacks;  // of each process: that of its first thread
    pid_t coordinator, spare;
};

// How a process that rebuilds itself opens a file without a name.
std::string nameless_path(const DescriptorLayout &layout, uint32_t index);
DescriptorLayout lay_out_descriptors(const TreeImage &tree);
// Processes that share their memory have stacks one after the other.
std::vector<size_t> lay_out_stacks(const TreeImage &tree);
// An address range that no process of the tree uses. Throws when there is none.
WindowLayout lay_out_window(const TreeImage &tree);

}  // namespace venus
