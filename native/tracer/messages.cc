#include "tracer/messages.h"

#include <string.h>
#include <sys/socket.h>

#include <algorithm>

namespace venus {
namespace {

constexpr size_t kMaxBodyBytes = 16 << 20;
constexpr size_t kMaxFds = 16384;

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
    memcpy(into, body.data() + at_, size);
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
        message.body.resize(head.body_bytes);
        receive_whole(socket, message.body.data(), message.body.size(), peer);
        while (message.received.size() < head.fds) {
            char byte;
            if (os::receive_with_fds(socket, &byte, 1, message.received, peer) == 0)
                throw PeerGone(peer);
        }
        return message;
    } catch (const os::Error &error) {
        if (is_gone(error))
            throw PeerGone(peer);
        throw;
    }
}

void put_lineage(Message &message, const Lineage &lineage)
{
    message.put(lineage.extents.size());
    for (const SealedExtent &extent : lineage.extents) {
        message.put(extent.size);
        message.put(extent.anonymous);
        message.to_send.push_back(extent.fd.get());
    }
    message.put(lineage.plans.size());
    for (const FileIdentity &plan : lineage.plans) {
        message.put(plan.device);
        message.put(plan.inode);
    }
}

Lineage take_lineage(Message &message)
{
    Lineage lineage;
    for (uint64_t left = message.number(); left > 0; left--) {
        uint64_t size = message.number();
        bool anonymous = message.number();
        os::UniqueFd fd(message.take_fd());
        FileIdentity identity = identity_of(fd.get());
        lineage.extents.push_back({std::move(fd), size, identity, true, anonymous, {}});
    }
    for (uint64_t left = message.number(); left > 0; left--) {
        uint64_t device = message.number();
        lineage.plans.push_back({device, message.number()});
    }
    return lineage;
}

void put_template(Message &message, const Template &captured)
{
    Bytes header = captured.save(false);
    message.put(std::string(header.begin(), header.end()));
    std::vector<int> descriptors = captured.descriptors();
    message.to_send.insert(message.to_send.end(), descriptors.begin(), descriptors.end());
    for (const std::vector<PageRun> &runs : captured.huge_runs()) {
        message.put(runs.size());
        for (const PageRun &run : runs) {
            message.put(run.start);
            message.put(run.end);
        }
    }
    message.put(captured.times_ms().size());
    for (const auto &[name, milliseconds] : captured.times_ms()) {
        message.put(name);
        message.put(static_cast<uint64_t>(milliseconds * 1e6));
    }
}

Template take_template(Message &message)
{
    std::string header = message.text();
    std::vector<os::UniqueFd> owned;
    std::vector<int> descriptors;
    while (message.fds_left() > 0) {
        owned.emplace_back(message.take_fd());
        descriptors.push_back(owned.back().get());
    }
    Template loaded = Template::load({header.begin(), header.end()}, descriptors, false);
    std::vector<std::vector<PageRun>> huge(descriptors.size() - 1);
    for (std::vector<PageRun> &runs : huge)
        for (uint64_t left = message.number(); left > 0; left--) {
            uint64_t start = message.number();
            runs.push_back({start, message.number()});
        }
    std::map<std::string, double> times;
    for (uint64_t left = message.number(); left > 0; left--) {
        std::string name = message.text();
        times[name] = static_cast<double>(message.number()) / 1e6;
    }
    loaded.remember(std::move(huge), std::move(times));
    return loaded;
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
