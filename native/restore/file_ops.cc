#include "restore/file_ops.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>

namespace venus {
namespace {

constexpr Word kTemporary = 0;
constexpr Word kCopyArea = 0x600000000000;  // the coordinator has nothing there
constexpr Word kHere = static_cast<Word>(int64_t{AT_FDCWD});
constexpr int64_t kMayExist = -17;  // EEXIST: what every fresh sandbox has already

void add_times(const FileEntry &entry, OpList &ops)
{
    uint64_t times[4] = {entry.modified[0], entry.modified[1], entry.modified[0], entry.modified[1]};
    ops.call(entry.path, SYS_utimensat,
             {kHere, ops.writer().text(entry.path), ops.writer().data(times, sizeof times),
              AT_SYMLINK_NOFOLLOW});
}

void add_attributes(const FileEntry &entry, OpList &ops)
{
    for (const auto &[name, value] : entry.attributes)
        ops.call(entry.path + " " + name, SYS_lsetxattr,
                 {ops.writer().text(entry.path), ops.writer().text(name),
                  ops.writer().data(value), value.size(), 0});
}

void add_file(const ProcessPlanContext &context, const FileEntry &entry, OpList &ops)
{
    Word path = ops.writer().text(entry.path);
    Word permissions = entry.mode & 07777;
    if (entry.only_times) {
        add_times(entry, ops);
        return;
    }
    if (!entry.link_to.empty()) {
        ops.call(entry.path, SYS_link, {ops.writer().text(entry.link_to), path});
        return;
    }
    switch (entry.mode & S_IFMT) {
    case S_IFDIR:
        ops.call_at_least(entry.path, SYS_mkdir, {path, permissions}, kMayExist);
        break;
    case S_IFLNK:
        ops.call_at_least(entry.path, SYS_symlink, {ops.writer().text(entry.target), path},
                          kMayExist);
        break;
    case S_IFREG:
        ops.call(entry.path, SYS_openat,
                 {kHere, path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600},
                 kTemporary);
        add_content_ops(context, entry.path, entry.size, entry.content, ops);
        ops.call(entry.path, SYS_close, {kTemporary});
        break;
    default:
        ops.call(entry.path, SYS_mknod, {path, entry.mode, 0});
    }
    ops.call(entry.path, SYS_lchown, {path, entry.uid, entry.gid});
    if (!S_ISLNK(entry.mode))
        ops.call(entry.path, SYS_chmod, {path, permissions});
    add_attributes(entry, ops);
    add_times(entry, ops);
}

// Opens what the nameless file shall be at kTemporary. Whether it has a name until it is removed.
bool make_nameless(const ProcessPlanContext &context, const NamelessFile &file,
                   const std::string &object, OpList &ops)
{
    Word path = ops.writer().text(file.path);
    if (file.is_directory) {
        ops.call(object, SYS_mkdir, {path, 0700});
        ops.call(object, SYS_openat,
                 {kHere, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC}, kTemporary);
        return true;
    }
    bool named = !file.name_taken && !file.never_named;
    if (named)
        ops.call(object, SYS_openat,
                 {kHere, path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600},
                 kTemporary);
    else
        ops.call(object, SYS_openat,
                 {kHere, ops.writer().text(file.directory), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600},
                 kTemporary);
    add_content_ops(context, object, file.size, file.content, ops);
    return named;
}

void add_nameless(const ProcessPlanContext &context, const NamelessFile &file, Word number,
                  OpList &ops)
{
    std::string object = "nameless file " + file.path;
    bool named = make_nameless(context, file, object, ops);
    ops.call(object, SYS_fchown, {kTemporary, file.uid, file.gid});
    ops.call(object, SYS_fchmod, {kTemporary, file.mode});
    uint64_t times[4] = {file.modified[0], file.modified[1], file.modified[0], file.modified[1]};
    ops.call(object, SYS_utimensat,
             {kTemporary, 0, ops.writer().data(times, sizeof times), 0});
    if (named) {
        ops.call(object, file.is_directory ? SYS_rmdir : SYS_unlink,
                 {ops.writer().text(file.path)});
        uint64_t before[4] = {0, UTIME_OMIT, file.directory_modified[0],
                              file.directory_modified[1]};
        ops.call(object, SYS_utimensat,
                 {kHere, ops.writer().text(file.directory),
                  ops.writer().data(before, sizeof before), 0});
    }
    // Held without the right to write, which would keep a process from being its program.
    constexpr Word kAgain = 1;
    ops.call(object, SYS_openat,
             {kHere, ops.writer().text("/proc/self/fd/0"), O_RDONLY | O_CLOEXEC}, kAgain);
    ops.call(object, SYS_dup3, {kAgain, number, O_CLOEXEC}, static_cast<int64_t>(number));
    ops.call(object, SYS_close, {kAgain});
    ops.call(object, SYS_close, {kTemporary});
}

}  // namespace

// Content comes from the extent through a mapping: the descriptor of an extent is shared by all
// forks, and so is its file position.
void add_content_ops(const ProcessPlanContext &context, const std::string &object, uint64_t size,
                     const std::vector<ExtentPiece> &content, OpList &ops)
{
    ops.call(object, SYS_ftruncate, {kTemporary, size});
    for (const ExtentPiece &piece : content) {
        ops.call(object, SYS_mmap,
                 {kCopyArea, piece.run.size(), PROT_READ, MAP_PRIVATE | MAP_FIXED,
                  word(context.descriptors.extents) + piece.extent, piece.offset},
                 static_cast<int64_t>(kCopyArea));
        uint64_t bytes = std::min(piece.run.end, size) - piece.run.start;
        ops.call(object, SYS_pwrite64, {kTemporary, kCopyArea, bytes, piece.run.start},
                 static_cast<int64_t>(bytes));
        ops.call(object, SYS_munmap, {kCopyArea, piece.run.size()});
    }
}

void add_file_ops(const ProcessPlanContext &context, OpList &ops)
{
    for (const FileEntry &entry : context.tree.files)
        add_file(context, entry, ops);
    for (size_t i = 0; i < context.tree.nameless.size(); i++)
        add_nameless(context, context.tree.nameless[i], word(context.descriptors.nameless) + i, ops);
}

}  // namespace venus
