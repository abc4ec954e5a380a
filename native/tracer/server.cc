#include "tracer/server.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/checked.h"
#include "tracer/capture_notes.h"
#include "tracer/template_messages.h"

namespace venus {
namespace {

const std::string kPeer = "daemon";
const std::string kMark = "mark of the capture";

bool is_closed(int connection)
{
    pollfd asked = {connection, POLLRDHUP, 0};
    return poll(&asked, 1, 0) == 1 && (asked.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

void require_peer(int connection)
{
    if (is_closed(connection))
        throw PeerGone(kPeer);
}

}  // namespace

void CaptureMark::set()
{
    checked(flock(fd_.get(), LOCK_EX), "lock", kMark);
    checked(pwrite(fd_.get(), "1", 1, 0), "write", kMark);
}

void CaptureMark::clear()
{
    checked(ftruncate(fd_.get(), 0), "clear", kMark);
    checked(flock(fd_.get(), LOCK_UN), "unlock", kMark);
}

void TracerServer::serve()
{
    while (wait_for(listener_.get())) {
        os::UniqueFd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!connection)
            continue;
        try {
            if (!serve_daemon(connection.get()))
                return;
        } catch (const os::Error &) {
            // Gone, or not to be understood: the next one is waited for.
        }
    }
}

// False: init has ended.
bool TracerServer::wait_for(int fd)
{
    for (;;) {
        pollfd asked[] = {{fd, POLLIN, 0}, {init_.get(), POLLIN, 0}};
        if (poll(asked, 2, -1) < 0 && errno != EINTR)
            os::fail("poll", kPeer);
        if (asked[1].revents)
            return false;
        if (asked[0].revents)
            return true;
    }
}

// False: it is over.
bool TracerServer::serve_daemon(int connection)
{
    greet(connection);
    while (wait_for(connection)) {
        Message request = receive_message(connection, kPeer);
        if (request.kind == MessageKind::kEnd)
            return false;
        if (request.kind != MessageKind::kCapture)
            throw os::Error("serve", kPeer, EBADMSG);
        send_message(connection, capture(connection, request), kPeer);
        malloc_trim(0);
    }
    return false;
}

void TracerServer::greet(int connection)
{
    Message hello(MessageKind::kHello);
    hello.put(kTracerVersion);
    hello.put(static_cast<uint64_t>(getpid()));
    hello.put(kept_.size());
    for (size_t i = 0; i < kept_.size(); i++) {
        hello.put(kept_[i].device);
        hello.put(kept_[i].inode);
        hello.put(kept_bytes_[i]);
    }
    send_message(connection, hello, kPeer);
}

Template TracerServer::capture_now(int connection, Message &request)
{
    CaptureRequest wanted;
    bool keep = request.number();
    wanted.init_host_pid = init_host_pid_;
    wanted.reset_external = request.number();
    std::vector<os::UniqueFd> owned;
    std::vector<int> externals;
    for (uint64_t left = request.number(); left > 0; left--) {
        owned.emplace_back(request.take_fd());
        externals.push_back(owned.back().get());
    }
    wanted.external = external_ends(externals);
    wanted.lineage = take_lineage(request);
    wanted.tracking = keep ? &tracking_ : nullptr;
    wanted.checkpoint = [&] { require_peer(connection); };
    wanted.while_stopped = [&] {
        send_message(connection, Message(MessageKind::kStopped), kPeer);
        if (receive_message(connection, kPeer).kind != MessageKind::kGoOn)
            throw os::Error("freeze", "files of the sandbox", ECANCELED);
    };
    mark_.set();
    try {
        Template captured = capture_template(std::move(wanted), [&] { mark_.clear(); });
        if (keep)
            settle(captured);
        return captured;
    } catch (...) {
        mark_.clear();
        throw;
    }
}

// The next capture refers to no more than what this one has.
void TracerServer::settle(const Template &captured)
{
    kept_.clear();
    kept_bytes_.clear();
    for (const SealedExtent &extent : captured.extents()) {
        kept_.push_back(extent.identity);
        kept_bytes_.push_back(extent.memory_bytes());
    }
}

Message TracerServer::capture(int connection, Message &request)
{
    try {
        Template captured = capture_now(connection, request);
        Message answer(MessageKind::kCaptured);
        put_template(answer, captured);
        // They go on living in the message.
        for (int &fd : answer.to_send) {
            answer.received.emplace_back(
                checked(fcntl(fd, F_DUPFD_CLOEXEC, 0), "duplicate", "descriptor"));
            fd = answer.received.back().get();
        }
        return answer;
    } catch (const Refused &refused) {
        return refusal_message(refused);
    } catch (const PeerGone &) {
        throw;
    } catch (const os::Error &error) {
        return failure_message(error);
    } catch (const std::exception &error) {
        // What the kernel said of a process was not what is known to be possible.
        return failure_message(os::Error("understand", error.what(), EPROTO));
    }
}

}  // namespace venus
