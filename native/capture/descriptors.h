// Capture of descriptors: which open file each number of each process leads to.
#pragma once

#include <sys/stat.h>

#include "capture/object_table.h"
#include "capture/stopped_tree.h"

namespace venus {

// One descriptor as the capture of its open file sees it.
struct SeenFile {
    StoppedProcess &process;
    const StoppedThread &thread;  // whose descriptor it is
    int number;
    int file;  // our duplicate
    struct stat status;
    std::string target;   // what /proc/<pid>/fd/<n> leads to
    std::string details;  // fdinfo
    int flags;            // without O_CLOEXEC, which belongs to the descriptor, and O_ASYNC
    bool asynchronous;    // O_ASYNC
    uint64_t offset;

    std::string describe() const;
    std::string read_details() const;
    [[noreturn]] void refuse(const std::string &reason) const;
    // What ends by itself: see Refused::passes.
    [[noreturn]] void refuse_for_now(const std::string &reason) const;
};

DescriptorTable capture_descriptors(StoppedProcess &process, const StoppedThread &thread,
                                    CaptureState &state);
// Besides what it is: locks of the open file, its lease, who gets a signal from it.
void capture_file_state(const SeenFile &seen, uint32_t object, CaptureState &state);
// Locks that the process has through this descriptor.
void capture_posix_locks(const SeenFile &seen, uint32_t object, DescriptorTable &table);
// What can only be said when all descriptors of the tree are known: peers, queues, epoll targets.
void finish_descriptors(const StoppedTree &tree, CaptureState &state);

void finish_sockets(CaptureState &state);
void capture_terminal_queues(CaptureState &state);

// The kinds, each in a file of its own.
OpenFile capture_pipe(const SeenFile &seen, CaptureState &state);
OpenFile capture_terminal_file(const SeenFile &seen, CaptureState &state);
OpenFile capture_own_terminal(const SeenFile &seen, CaptureState &state);
OpenFile capture_socket(const SeenFile &seen, CaptureState &state);
OpenFile capture_inet(const SeenFile &seen, int family);
Bytes socket_name(const SeenFile &seen);  // struct sockaddr
OpenFile capture_anonymous_inode(const SeenFile &seen, CaptureState &state);

}  // namespace venus
