#include "tracer/messages.h"

#include <sys/socket.h>

#include <algorithm>

namespace venus {
namespace {

constexpr size_t kMaxBodyBytes = 16 << 20;
constexpr size_t kMaxFds = 16384;
// So much room at a time is made for a body: what a head says need not come.
constexpr size_t kBodyPiece = 65536;

struct Head {
    uint32_t kind, fds;
    uint64_t body_bytes;
};

bool is_gone(const os::Error &error)
{
    return error.error_number() == EPIPE || error.error_number() == ECONNRESET;
}

void send_whole(int socket, std::string_view bytes, const std::string &peer)
{
    while (!bytes.empty()) {
        ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            os::fail("send", peer);
        bytes.remove_prefix(static_cast<size_t>(sent));
    }
}

void receive_whole(int socket, void *into, size_t size, const std::string &peer)
{
    auto *at = static_cast<char *>(into);
    while (size > 0) {
        size_t got = os::read_some(socket, at, size);
        if (got == 0)
            throw PeerGone(peer);
        at += got;
        size -= got;
    }
}

[[noreturn]] void bad_message(const std::string &what)
{
    throw os::Error("read message,", what, EBADMSG);
}

}  // namespace

void Message::put(uint64_t number)
{
    auto *bytes = reinterpret_cast<const uint8_t *>(&number);
    body.insert(body.end(), bytes, bytes + sizeof number);
}

void Message::put(const std::string &text)
{
    put(text.size());
    body.insert(body.end(), text.begin(), text.end());
}

void Message::take(void *into, size_t size)
{
    if (size > body.size() - at_)
        bad_message("it is too short");
    std::copy_n(body.data() + at_, size, static_cast<uint8_t *>(into));
    at_ += size;
}

uint64_t Message::number()
{
    uint64_t number;
    take(&number, sizeof number);
    return number;
}

std::string Message::text()
{
    uint64_t size = number();
    if (size > body.size() - at_)
        bad_message("a text of it is cut");
    std::string text(size, '\0');
    take(text.data(), size);
    return text;
}

int Message::take_fd()
{
    if (next_fd_ == received.size())
        bad_message("descriptors of it are missing");
    return received[next_fd_++].release();
}

void send_message(int socket, const Message &message, const std::string &peer)
{
    Head head = {static_cast<uint32_t>(message.kind), static_cast<uint32_t>(message.to_send.size()),
                 message.body.size()};
    if (message.body.size() > kMaxBodyBytes || message.to_send.size() > kMaxFds)
        throw os::Error("send", "message to " + peer, E2BIG);
    try {
        send_whole(socket, {reinterpret_cast<const char *>(&head), sizeof head}, peer);
        send_whole(socket, {reinterpret_cast<const char *>(message.body.data()), message.body.size()},
                   peer);
        for (size_t at = 0; at < message.to_send.size(); at += os::kMaxFdsAtOnce)
            os::send_with_fds(socket, {"", 1}, message.to_send.data() + at,
                              std::min(os::kMaxFdsAtOnce, message.to_send.size() - at), peer);
    } catch (const os::Error &error) {
        if (is_gone(error))
            throw PeerGone(peer);
        throw;
    }
}

Message receive_message(int socket, const std::string &peer)
{
    try {
        Head head;
        receive_whole(socket, &head, sizeof head, peer);
        if (head.body_bytes > kMaxBodyBytes || head.fds > kMaxFds)
            bad_message("it is too large");
        Message message(static_cast<MessageKind>(head.kind));
        while (message.body.size() < head.body_bytes) {
            size_t at = message.body.size();
            message.body.resize(std::min<size_t>(head.body_bytes, at + kBodyPiece));
            receive_whole(socket, message.body.data() + at, message.body.size() - at, peer);
        }
        while (message.received.size() < head.fds) {
            char byte;
            size_t before = message.received.size();
            if (os::receive_with_fds(socket, &byte, 1, message.received, peer) == 0)
                throw PeerGone(peer);
            if (message.received.size() == before)
                bad_message("a batch of descriptors is empty");
        }
        if (message.received.size() > head.fds)
            bad_message("it has more descriptors than it says");
        return message;
    } catch (const os::Error &error) {
        if (is_gone(error))
            throw PeerGone(peer);
        throw;
    }
}

Message failure_message(const os::Error &error)
{
    Message message(MessageKind::kFailed);
    message.put(error.operation());
    message.put(error.object());
    message.put(static_cast<uint64_t>(error.error_number()));
    return message;
}

Message refusal_message(const Refused &refused)
{
    Message message(MessageKind::kRefused);
    message.put(refused.process());
    message.put(refused.object());
    message.put(refused.reason());
    return message;
}

void throw_answer(Message &answer)
{
    if (answer.kind != MessageKind::kRefused && answer.kind != MessageKind::kFailed)
        bad_message("it is of kind " + std::to_string(static_cast<uint32_t>(answer.kind)));
    std::string first = answer.text(), object = answer.text();
    if (answer.kind == MessageKind::kRefused)
        throw Refused(first, object, answer.text());
    throw os::Error(first, object, static_cast<int>(answer.number()));
}

}  // namespace venus
