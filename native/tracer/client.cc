#include "tracer/client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <exception>

#include "os/checked.h"
#include "tracer/capture_notes.h"
#include "tracer/template_messages.h"

namespace venus {
namespace {

const std::string kPeer = "tracer";
constexpr timeval kGreetingPatience = {20, 0};

void limit_waiting(int socket, timeval patience)
{
    checked(setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience),
            "limit the waiting for", kPeer);
}

}  // namespace

TracerClient::TracerClient(int socket) : socket_(socket)
{
    // One that has lost its daemon first puts everything back.
    limit_waiting(socket, kGreetingPatience);
    Message hello = receive_message(socket, kPeer);
    limit_waiting(socket, {});
    uint64_t version = hello.number();
    if (hello.kind != MessageKind::kHello || version != kTracerVersion)
        throw os::Error("greet", kPeer + " of version " + std::to_string(version), EPROTONOSUPPORT);
    pid_ = static_cast<pid_t>(hello.number());
    for (uint64_t left = hello.number(); left > 0; left--) {
        uint64_t device = hello.number(), inode = hello.number();
        kept_[{device, inode}] = hello.number();
    }
}

Template TracerClient::capture(const std::vector<int> &externals,
                               const std::function<void()> &while_stopped, const Template *parent,
                               bool keep, bool reset_external)
{
    Message request(MessageKind::kCapture);
    Lineage lineage = parent ? parent->lineage() : Lineage{};
    request.put(keep);
    request.put(reset_external);
    request.put(externals.size());
    request.to_send = externals;
    put_lineage(request, lineage);
    send_message(socket_.get(), request, kPeer);
    Message answer = receive_message(socket_.get(), kPeer);
    if (answer.kind == MessageKind::kStopped) {
        std::exception_ptr failure;
        try {
            if (while_stopped)
                while_stopped();
        } catch (...) {
            failure = std::current_exception();
        }
        send_message(socket_.get(), Message(failure ? MessageKind::kGiveUp : MessageKind::kGoOn), kPeer);
        answer = receive_message(socket_.get(), kPeer);
        if (failure)
            std::rethrow_exception(failure);
    }
    if (answer.kind != MessageKind::kCaptured)
        throw_answer(answer);
    return take_template(answer);
}

bool TracerClient::gone() const
{
    pollfd asked = {socket_.get(), POLLRDHUP, 0};
    return poll(&asked, 1, 0) == 1;
}

void TracerClient::end()
{
    try {
        end_tracer(socket_.get());
    } catch (const PeerGone &) {
        // Then there is nothing to be done.
    }
}

void TracerClient::wait_until_gone(int timeout_ms)
{
    pollfd asked = {socket_.get(), POLLRDHUP, 0};
    while (poll(&asked, 1, timeout_ms) < 0 && errno == EINTR)
        ;
}

void end_tracer(int socket)
{
    send_message(socket, Message(MessageKind::kEnd), kPeer);
}

}  // namespace venus
