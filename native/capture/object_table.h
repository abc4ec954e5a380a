// Open file descriptions of the whole tree, each once, however many processes share it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "memory/extent.h"
#include "os/fd.h"
#include "restore/image.h"

namespace venus {

struct ExternalEnd {
    int fd;
    FileIdentity identity;
    int terminal = -1;  // index of the pty of which it is the master
};

// Everything that a capture gathers besides the processes.
struct CaptureState {
    TreeImage image;
    std::vector<SealedExtent> extents;       // parallel to image.extents
    std::vector<os::UniqueFd> object_files;      // parallel to image.objects: duplicates, may be empty
    // Of the template that the sandbox was forked from: pages still there are referenced.
    std::vector<SealedExtent> inherited;
    std::map<size_t, uint32_t> used_inherited;  // number there → index into extents
    std::vector<FileIdentity> inherited_plans;
    std::vector<ExternalEnd> external;  // files that belong to the daemon: pipes and ptys to it
    std::map<std::pair<dev_t, ino_t>, uint32_t> memories;  // shared memory → SharedMemoryFile::memory
    std::map<std::pair<dev_t, ino_t>, uint32_t> pipes;
    std::map<std::pair<dev_t, ino_t>, uint32_t> nameless;  // files → TreeImage::nameless
    dev_t system_v_device = 0;  // of shared memory segments, once there was one
    std::map<uint32_t, uint64_t> socket_inodes;  // of objects that are sockets
    pid_t init;
    std::map<pid_t, pid_t> inner_ids;     // of threads, by their ids on the host
    std::map<pid_t, pid_t> inner_groups;  // of process groups
    bool reset_external = false;  // connections to outside come back reset instead of being refused
    std::function<void()> checkpoint = [] {};  // throws when nobody wants the capture any more

    uint32_t add_object(OpenFile file, os::UniqueFd duplicate);
    uint32_t add_extent(SealedExtent extent);
    // What is referred to is part of the template. Index into `extents`.
    uint32_t use_inherited(size_t number);
};

// Content of a memfd or shared anonymous memory, copied into an extent of its own; holes stay holes.
std::vector<ExtentPiece> copy_shared_memory(CaptureState &state, int fd, uint64_t size);

}  // namespace venus
