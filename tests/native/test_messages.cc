// Messages of tracers: what they carry comes back, and what is not whole is refused.
#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <functional>

#include "check.h"
#include "tracer/capture_notes.h"

namespace {

using namespace venus;

struct Ends {
    Ends()
    {
        int ends[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
        sender.reset(ends[0]);
        receiver.reset(ends[1]);
    }
    os::UniqueFd sender, receiver;
};

int error_of(const std::function<void()> &act)
{
    try {
        act();
    } catch (const os::Error &error) {
        return error.error_number();
    }
    return 0;
}

// kind, number of descriptors, bytes of the body: none.
void send_head(const Ends &ends, uint32_t descriptors)
{
    uint32_t head[] = {static_cast<uint32_t>(MessageKind::kHello), descriptors, 0, 0};
    os::write_whole(ends.sender.get(), {reinterpret_cast<char *>(head), sizeof head}, "head");
}

void test_numbers_texts_and_descriptors_come_back()
{
    Ends ends;
    os::UniqueFd file(memfd_create("test", MFD_CLOEXEC));
    Message sent(MessageKind::kCapture);
    sent.put(7);
    sent.put(std::string(100000, 'x'));
    sent.put("");
    sent.to_send.assign(70, file.get());
    send_message(ends.sender.get(), sent, "test");
    Message got = receive_message(ends.receiver.get(), "test");
    CHECK(got.kind == MessageKind::kCapture && got.number() == 7);
    CHECK(got.text() == std::string(100000, 'x') && got.text().empty());
    CHECK(got.fds_left() == 70);
    CHECK(error_of([&] { got.number(); }) == EBADMSG);
}

void test_what_a_head_promises_must_come()
{
    Ends ends;
    send_head(ends, 2);
    // Bytes for ever, and never a descriptor.
    os::write_whole(ends.sender.get(), "..", "batch");
    CHECK(error_of([&] { receive_message(ends.receiver.get(), "test"); }) == EBADMSG);
}

void test_more_than_a_head_promises_is_refused()
{
    Ends ends;
    os::UniqueFd file(memfd_create("test", MFD_CLOEXEC));
    int fds[] = {file.get(), file.get()};
    send_head(ends, 1);
    os::send_with_fds(ends.sender.get(), ".", fds, 2, "batch");
    CHECK(error_of([&] { receive_message(ends.receiver.get(), "test"); }) == EBADMSG);
}

void test_notes_of_a_capture_come_back()
{
    Message message(MessageKind::kCaptured);
    put_notes(message, {{{{4096, 8192}}, {}}, {{"stop", 1.5}}});
    CaptureNotes notes = take_notes(message, 2);
    CHECK(notes.huge.size() == 2 && notes.huge[0].size() == 1 && notes.huge[0][0].end == 8192);
    CHECK(notes.times_ms.at("stop") == 1.5);
}

}  // namespace

int main()
{
    test_numbers_texts_and_descriptors_come_back();
    test_what_a_head_promises_must_come();
    test_more_than_a_head_promises_is_refused();
    test_notes_of_a_capture_come_back();
    return 0;
}
