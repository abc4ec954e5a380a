// What a program may have set on a socket.
#pragma once

#include <sys/socket.h>

#include "capture/descriptors.h"
#include "os/checked.h"

namespace venus {

template <typename T>
T socket_option(const SeenFile &seen, int level, int name)
{
    T value{};
    socklen_t size = sizeof value;
    checked(getsockopt(seen.file, level, name, &value, &size), "get an option of", seen.describe());
    return value;
}

// The options that differ from those of a fresh socket of the same kind, in the order in which they
// can be set. `connected`: a TCP connection, which tunes its buffers by itself.
// pre: the calling thread is in the network namespace of the sandbox.
std::vector<SocketOption> differing_options(const SeenFile &seen, int family, int type,
                                            int protocol, bool connected);

void refuse_packet_filter(const SeenFile &seen);

// Lets the calling thread's peeks at a socket begin at its first byte or message and advance.
class PeekFromStart {
public:
    explicit PeekFromStart(const SeenFile &seen);
    ~PeekFromStart();
    PeekFromStart(const PeekFromStart &) = delete;

private:
    int file_, previous_;
};

}  // namespace venus
