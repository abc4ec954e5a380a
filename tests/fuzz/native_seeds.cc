// Writes inputs for the fuzz programs, made by the encoders of the core: fuzz_seeds DIRECTORY.
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <string>

#include "check.h"
#include "os/fd.h"
#include "saved_template.h"
#include "tracer/capture_notes.h"

using namespace venus;

namespace {

void write_seed(const std::string &directory, const std::string &name, const Bytes &bytes)
{
    FILE *file = fopen((directory + "/" + name).c_str(), "wb");
    CHECK(file && fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
    CHECK(fclose(file) == 0);
}

Bytes with_first(uint8_t first, const Bytes &rest)
{
    Bytes bytes = {first};
    bytes.insert(bytes.end(), rest.begin(), rest.end());
    return bytes;
}

// As it goes over the socket, without its descriptors.
Bytes sent(const Message &message)
{
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    os::UniqueFd ours(ends[0]), theirs(ends[1]);
    send_message(theirs.get(), message, "fuzz");
    theirs.reset();
    Bytes bytes(65536);
    bytes.resize(os::read_some(ours.get(), bytes.data(), bytes.size()));
    bytes.resize(bytes.size() - (message.to_send.empty() ? 0 : 1));
    return bytes;
}

Bytes tracer_seed(uint8_t kind, uint8_t fds, const Message &message)
{
    return with_first(kind, with_first(fds, sent(message)));
}

void template_seeds(const std::string &directory)
{
    std::vector<SavedExtent> extents = {{3 * kPageBytes, {1, 77}, false, {1, 2, 3}},
                                        {9 * kPageBytes, {1, 78}, true, {}}};
    Bytes plan = small_plan(4, 0);
    write_seed(directory, "header", with_first(0, encode_template_header(small_header(plan, extents, 0))));
    vr_header own;
    memcpy(&own, plan.data(), sizeof own);
    own.pool = sizeof own;
    own.pool_count = 2;
    memcpy(plan.data(), &own, sizeof own);
    write_seed(directory, "plan", with_first(1, plan));
}

void tracer_seeds(const std::string &directory)
{
    os::UniqueFd file(memfd_create("fuzz", 0));
    Message lineage(MessageKind::kCapture);
    lineage.put(1);
    lineage.put(uint64_t{4096});
    lineage.put(1);
    lineage.to_send = {file.get()};
    lineage.put(1);
    lineage.put(7);
    lineage.put(8);
    write_seed(directory, "lineage", tracer_seed(0, 1, lineage));
    Message notes(MessageKind::kCaptured);
    put_notes(notes, {{{{4096, 8192}}, {}, {}}, {{"stop", 1.5}}});
    write_seed(directory, "notes", tracer_seed(1, 0, notes));
    write_seed(directory, "refused",
               tracer_seed(2, 0, refusal_message(Refused("process 7", "its socket", "it is odd"))));
    write_seed(directory, "failed",
               tracer_seed(2, 0, failure_message(os::Error("open", "/proc/7/maps", 2))));
}

}  // namespace

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    template_seeds(std::string(argv[1]) + "/fuzz_template");
    tracer_seeds(std::string(argv[1]) + "/fuzz_tracer");
    return 0;
}
