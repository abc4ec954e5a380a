// What the daemon and the tracer of a sandbox say to each other, over a Unix stream socket.
//
// A message is a head, a body of numbers and texts, and descriptors: these come in batches, each with
// one byte.  Both ends are of one machine and, as the greeting makes sure, of one version.
#pragma once

#include <string>
#include <vector>

#include "os/error.h"
#include "os/fd.h"
#include "restore/image.h"
#include "restore/refused.h"

namespace venus {

inline constexpr uint64_t kTracerVersion = 1;

enum class MessageKind : uint32_t {
    kHello,     // of the tracer: version, pid, what it keeps for the next capture
    kEnd,       // of the daemon: the tracer ends, and keeps nothing
    kCapture,   // of the daemon: a capture
    kStopped,   // of the tracer: nothing in the sandbox runs
    kGoOn,      // of the daemon, to that: its files are frozen
    kGiveUp,    // of the daemon, to that: they could not be
    kCaptured,  // the template; the sandbox runs again, as after the other two
    kRefused,   // process, object, reason
    kFailed,    // operation, object, errno
};

// The other end is gone.
class PeerGone : public os::Error {
public:
    explicit PeerGone(std::string peer) : os::Error("talk to", std::move(peer), ECONNRESET) {}
};

class Message {
public:
    explicit Message(MessageKind kind) : kind(kind) {}

    void put(uint64_t number);
    void put(const std::string &text);
    // In the order in which they were put. Throw os::Error (EBADMSG) when there are no more.
    uint64_t number();
    std::string text();
    int take_fd();  // the caller's
    size_t fds_left() const { return received.size() - next_fd_; }

    MessageKind kind;
    std::vector<int> to_send;  // borrowed
    std::vector<os::UniqueFd> received;
    Bytes body;

private:
    void take(void *into, size_t size);

    size_t at_ = 0, next_fd_ = 0;
};

// `peer`: what PeerGone calls it.
void send_message(int socket, const Message &message, const std::string &peer);
Message receive_message(int socket, const std::string &peer);

Message failure_message(const os::Error &error);
Message refusal_message(const Refused &refused);
// Throws what kRefused or kFailed stand for.
[[noreturn]] void throw_answer(Message &answer);

}  // namespace venus
