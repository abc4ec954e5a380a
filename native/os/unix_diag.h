// What the kernel knows of the Unix sockets of a network namespace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace venus {

struct UnixSocketState {
    uint64_t inode;
    int state;            // TCP_ESTABLISHED, TCP_LISTEN, ...
    uint64_t peer;        // inode; 0: none
    uint32_t read_queue;  // listening: connections that wait
    uint32_t backlog;     // listening
    std::vector<uint64_t> waiting;  // listening: inodes of the clients, oldest first; 0: closed
    uint32_t unread;      // others: bytes that it has sent and its peer has not read
    int shutdown;         // bit 0: cannot receive, bit 1: cannot send
};

// One answer of the kernel: struct unix_diag_msg and its attributes. Pure.
UnixSocketState parse_unix_socket(const uint8_t *bytes, size_t size);
// By inode, of the calling thread's network namespace.
std::map<uint64_t, UnixSocketState> list_unix_sockets();
// Irrevocable: for threads that end afterwards.
void enter_network_namespace(int pid);

}  // namespace venus
