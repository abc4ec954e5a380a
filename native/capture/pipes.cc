#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "capture/descriptors.h"
#include "capture/paths.h"
#include "os/checked.h"

namespace venus {
namespace {

// tee() leaves the data where it is; the copy, with its packets, is read from a pipe of ours.
void peek_pipe(const SeenFile &seen, PipeImage &pipe)
{
    std::string again = "/proc/self/fd/" + std::to_string(seen.file);
    os::UniqueFd reader(checked(open(again.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC), "open the read end of",
                            seen.describe()));
    int waiting = 0;
    checked(ioctl(reader.get(), FIONREAD, &waiting), "count the data of", seen.describe());
    pipe.content.resize(static_cast<size_t>(waiting));
    if (pipe.content.empty())
        return;
    int ends[2];
    checked(pipe2(ends, O_CLOEXEC | O_NONBLOCK), "create", "a pipe");
    os::UniqueFd out(ends[0]), in(ends[1]);
    checked(fcntl(in.get(), F_SETPIPE_SZ, pipe.capacity), "size", "a pipe");
    ssize_t copied = tee(reader.get(), in.get(), pipe.content.size(), SPLICE_F_NONBLOCK);
    if (copied != waiting)
        throw os::Error("copy the data of", seen.describe(), copied < 0 ? errno : EIO);
    for (size_t filled = 0; filled < pipe.content.size();) {
        auto size = static_cast<size_t>(checked(
            read(out.get(), pipe.content.data() + filled, pipe.content.size() - filled), "read", "a pipe"));
        pipe.packets.push_back(static_cast<uint32_t>(size));
        filled += size;
    }
    // A stream comes at once, and so does a single packet: which it is the flags of an end tell.
    if (pipe.packets.size() == 1)
        pipe.packets.clear();
}

}  // namespace

OpenFile capture_pipe(const SeenFile &seen, CaptureState &state)
{
    auto key = std::pair(seen.status.st_dev, seen.status.st_ino);
    bool named = !seen.target.starts_with("pipe:");
    auto known = state.pipes.find(key);
    if (known == state.pipes.end()) {
        if (named && !is_reachable(state.init, seen.target, seen.status))
            seen.refuse("its name no longer leads to it");
        PipeImage found;
        found.capacity = static_cast<uint32_t>(
            checked(fcntl(seen.file, F_GETPIPE_SZ), "get the capacity of", seen.describe()));
        peek_pipe(seen, found);
        if (named)
            found.fifo_path = seen.target;
        known = state.pipes.emplace(key, static_cast<uint32_t>(state.image.pipes.size())).first;
        state.image.pipes.push_back(std::move(found));
    }
    PipeImage &pipe = state.image.pipes[known->second];
    if ((seen.flags & O_DIRECT) && pipe.packets.empty() && !pipe.content.empty())
        pipe.packets.push_back(static_cast<uint32_t>(pipe.content.size()));
    return PipeEnd{known->second, seen.flags, named ? seen.target : ""};
}

}  // namespace venus
