// Messages between the daemon and the tracer of a sandbox, over a real socket. First byte: what the
// message is taken for; second: how many descriptors follow its bytes.
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "fuzz.h"
#include "tracer/capture_notes.h"

using namespace venus;

namespace {

constexpr size_t kMaxBytes = 65536;
constexpr size_t kFds = 4;

void take(uint8_t kind, Message &message)
{
    switch (kind % 5) {
    case 0: take_lineage(message); break;
    case 1: take_notes(message, 3); break;
    case 2: throw_answer(message); break;
    case 3:  // the greeting
        for (uint64_t left = message.number(); left > 0; left--)
            message.number();
        break;
    default:
        while (message.fds_left() > 0)
            os::UniqueFd fd(message.take_fd());
        message.text();
    }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const int file = memfd_create("fuzz", MFD_CLOEXEC);
    if (size < 2 || size > kMaxBytes)
        return 0;
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    os::UniqueFd ours(ends[0]), theirs(ends[1]);
    REQUIRE(send(theirs.get(), bytes + 2, size - 2, MSG_DONTWAIT) == static_cast<ssize_t>(size - 2));
    for (size_t left = bytes[1] % (3 * kFds); left > 0;) {
        std::vector<int> batch(std::min(left, kFds), file);
        os::send_with_fds(theirs.get(), {"", 1}, batch.data(), batch.size(), "fuzz");
        left -= batch.size();
    }
    theirs.reset();
    try {
        Message message = receive_message(ours.get(), "fuzz");
        take(bytes[0], message);
    } catch (const os::Error &) {
    } catch (const Refused &) {
    }
    return 0;
}
