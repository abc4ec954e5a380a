#include "restore/pipe_ops.h"

#include <fcntl.h>
#include <sys/syscall.h>

namespace venus {
namespace {

constexpr Word kReader = 0, kWriter = 1;  // while a pipe is being made
constexpr int kKeptFlags = O_NONBLOCK | O_APPEND | O_DIRECT;

void add_pipe_content(const PipeImage &pipe, const std::string &object, OpList &ops)
{
    if (pipe.content.empty())
        return;
    Word content = ops.writer().data(pipe.content);
    if (pipe.packets.empty()) {
        ops.call(object, SYS_write, {kWriter, content, pipe.content.size()},
                 static_cast<int64_t>(pipe.content.size()));
        return;
    }
    ops.call(object, SYS_fcntl, {kWriter, F_SETFL, O_DIRECT | O_NONBLOCK});
    for (uint32_t size : pipe.packets) {
        ops.call(object, SYS_write, {kWriter, content, size}, size);
        content += size;
    }
}

void make_pipe(const ProcessPlanContext &context, uint32_t index, OpList &ops)
{
    const PipeImage &pipe = context.tree.pipes[index];
    PlanWriter &writer = ops.writer();
    std::string object = pipe.fifo_path.empty() ? "pipe" : pipe.fifo_path;
    bool named = !pipe.fifo_path.empty();
    if (named) {
        // Both ends at once, so that no open below has to wait for a peer.
        ops.call(object, SYS_openat,
                 {word(AT_FDCWD), writer.text(pipe.fifo_path), O_RDWR | O_NONBLOCK | O_CLOEXEC},
                 kReader);
        ops.call(object, SYS_dup3, {kReader, kWriter, O_CLOEXEC}, kWriter);
    } else {
        Word ends = context.window.work_area();
        ops.call(object, SYS_pipe2, {ends, O_CLOEXEC});
    }
    ops.call(object, SYS_fcntl, {kWriter, F_SETPIPE_SZ, pipe.capacity}, pipe.capacity);
    add_pipe_content(pipe, object, ops);
    bool used[2] = {false, false};
    for (uint32_t i = 0; i < context.tree.objects.size(); i++) {
        auto *end = std::get_if<PipeEnd>(&context.tree.objects[i]);
        if (end == nullptr || end->pipe != index)
            continue;
        Word own = word(context.descriptors.objects) + i;
        int access = end->flags & O_ACCMODE;
        Word side = access == O_RDONLY ? kReader : kWriter;
        if (!named && access != O_RDWR && !used[side]) {
            used[side] = true;
            ops.call(object, SYS_dup3, {side, own, O_CLOEXEC}, static_cast<int64_t>(own));
        } else {
            // Another open file of the same pipe.
            std::string again = "/proc/self/fd/" + std::to_string(side);
            constexpr Word kThird = 2;
            ops.call(object, SYS_openat,
                     {word(AT_FDCWD), writer.text(again),
                      word(access | O_NONBLOCK | O_CLOEXEC)},
                     kThird);
            ops.call(object, SYS_dup3, {kThird, own, O_CLOEXEC}, static_cast<int64_t>(own));
            ops.call(object, SYS_close, {kThird});
        }
        ops.call(object, SYS_fcntl, {own, F_SETFL, word(end->flags & kKeptFlags)});
    }
    ops.call(object, SYS_close, {kReader});
    ops.call(object, SYS_close, {kWriter});
}

}  // namespace

void add_pipe_ops(const ProcessPlanContext &context, OpList &ops)
{
    for (uint32_t i = 0; i < context.tree.pipes.size(); i++)
        make_pipe(context, i, ops);
}

}  // namespace venus
