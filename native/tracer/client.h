// The daemon's end of the tracer of one sandbox (server.h).
#pragma once

#include <map>

#include "capture/template.h"
#include "tracer/messages.h"

namespace venus {

class TracerClient {
public:
    // Takes the connected socket, and waits for the greeting. Throws os::Error (EPROTONOSUPPORT) when
    // the tracer is of another version: end() is what it still understands.
    explicit TracerClient(int socket);

    pid_t pid() const { return pid_; }
    // Files of the pool that it keeps for the next capture, as it was connected: → bytes of memory.
    const std::map<std::pair<uint64_t, uint64_t>, uint64_t> &kept() const { return kept_; }

    // See capture_template. `keep`: there may be another capture. Whatever it throws but PeerGone, the
    // sandbox runs again.
    Template capture(const std::vector<int> &externals, const std::function<void()> &while_stopped,
                     const Template *parent, bool keep, bool reset_external);
    bool gone() const;
    void end();
    // For so long at most.
    void wait_until_gone(int timeout_ms);

private:
    os::UniqueFd socket_;
    pid_t pid_ = 0;
    std::map<std::pair<uint64_t, uint64_t>, uint64_t> kept_;
};

// Lets it end, of whatever version it is.
void end_tracer(int socket);

}  // namespace venus
