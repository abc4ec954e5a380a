#include "capture/descriptors.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "capture/nameless_files.h"
#include "capture/paths.h"
#include "os/checked.h"
#include "restore/refused.h"
#include "os/proc.h"

namespace venus {
namespace {

constexpr unsigned kMemoryMajor = 1, kTtyMajor = 5, kTerminalSlaveMajor = 136,
                   kTerminalSlaveMajorEnd = 144;
constexpr int kAsync = 020000;  // FASYNC
constexpr int kUnnamed = O_TMPFILE & ~O_DIRECTORY;

std::string task_path(const StoppedProcess &process, const StoppedThread &thread,
                      const std::string &name)
{
    return process.proc_path("task/" + std::to_string(thread.tracee.tid()) + "/" + name);
}

// The object that another descriptor led to before.
uint32_t known_object(const SeenFile &seen, const CaptureState &state)
{
    for (uint32_t i = 0; i < state.object_files.size(); i++) {
        int known = state.object_files[i].get();
        struct stat status;
        if (known >= 0 && fstat(known, &status) == 0 && status.st_ino == seen.status.st_ino &&
            status.st_dev == seen.status.st_dev &&
            syscall(SYS_kcmp, getpid(), seen.thread.tracee.tid(), KCMP_FILE, known, seen.number) == 0)
            return i;
    }
    return kNoObject;
}

OpenFile capture_named(const SeenFile &seen, CaptureState &state)
{
    RegularFile file{seen.target, seen.flags, seen.offset, S_ISDIR(seen.status.st_mode)};
    if (is_reachable(state.init, seen.target, seen.status))
        return file;
    std::optional<uint32_t> nameless =
        nameless_file(seen.process, "/proc/self/fd/" + std::to_string(seen.file), seen.target,
                      (seen.flags & O_ACCMODE) != O_RDONLY, state);
    if (!nameless)
        seen.refuse("it is deleted or replaced: its name no longer leads to it");
    file.nameless = *nameless;
    file.flags &= ~(kUnnamed | (file.is_directory ? 0 : O_DIRECTORY));
    if (file.is_directory)
        file.offset = 0;  // there is nothing in it
    return file;
}

bool has_type(const SeenFile &seen, unsigned type)
{
    struct statfs kind;
    return fstatfs(seen.file, &kind) == 0 && static_cast<unsigned>(kind.f_type) == type;
}

OpenFile capture_proc_file(const SeenFile &seen, CaptureState &state)
{
    if (!is_reachable(state.init, seen.target, seen.status))
        seen.refuse("its process has ended, or its name does not lead to it");
    RegularFile file{seen.target, seen.flags, seen.offset, S_ISDIR(seen.status.st_mode)};
    constexpr size_t kFirst = sizeof "/proc/" - 1;
    file.of_process = seen.target.size() > kFirst && isdigit(seen.target[kFirst]);
    return file;
}

// "net:[4026531840]": of the sandbox's own.
OpenFile capture_namespace(const SeenFile &seen, CaptureState &state)
{
    std::string kind = seen.target.substr(0, seen.target.find(':'));
    if (kind.find('/') != kind.npos ||
        proc::read_link(proc::path(state.init, "ns/" + kind)) != seen.target)
        seen.refuse("a namespace that is not the sandbox's");
    return RegularFile{"/proc/self/ns/" + kind, seen.flags, 0};
}

OpenFile capture_shared_memory(const SeenFile &seen, CaptureState &state)
{
    SharedMemoryFile file{};
    size_t deleted = seen.target.rfind(" (deleted)");
    file.name = seen.target.substr(7, deleted - 7);
    file.flags = seen.flags;
    file.size = static_cast<uint64_t>(seen.status.st_size);
    file.offset = seen.offset;
    auto key = std::pair(seen.status.st_dev, seen.status.st_ino);
    auto known = state.memories.find(key);
    if (known != state.memories.end()) {
        file.memory = known->second;
        return file;
    }
    int seals = fcntl(seen.file, F_GET_SEALS);
    if (seals < 0)
        seen.refuse("memory in huge pages is not supported");
    file.seals = static_cast<uint32_t>(seals);
    file.may_be_sealed = (file.seals & F_SEAL_SEAL) == 0;
    file.memory = static_cast<uint32_t>(state.memories.size());
    state.memories[key] = file.memory;
    std::string again = "/proc/self/fd/" + std::to_string(seen.file);
    os::UniqueFd readable(checked(open(again.c_str(), O_RDONLY | O_CLOEXEC), "open", seen.target));
    file.content = copy_shared_memory(state, readable.get(), file.size);
    return file;
}

OpenFile capture_character_device(const SeenFile &seen, CaptureState &state)
{
    unsigned kind = major(seen.status.st_rdev);
    unsigned minor_number = minor(seen.status.st_rdev);
    if (kind == kMemoryMajor) {
        static constexpr unsigned harmless[] = {3, 5, 7, 8, 9};  // null zero full random urandom
        if (std::find(std::begin(harmless), std::end(harmless), minor_number) ==
            std::end(harmless))
            seen.refuse("this device is not supported");
        return DeviceFile{seen.target, seen.flags};
    }
    bool master = kind == kTtyMajor && minor_number == 2;
    bool slave = kind >= kTerminalSlaveMajor && kind < kTerminalSlaveMajorEnd;
    if (master || slave)
        return capture_terminal_file(seen, state);
    if (kind == kTtyMajor && minor_number == 0)
        return capture_own_terminal(seen, state);
    seen.refuse("this device is not supported");
}

OpenFile capture_open_file(const SeenFile &seen, CaptureState &state)
{
    for (uint32_t slot = 0; slot < state.external.size(); slot++)
        // All masters of a sandbox have the same identity; their slaves are what it holds.
        if (state.external[slot].terminal < 0 &&
            state.external[slot].identity == FileIdentity{seen.status.st_dev, seen.status.st_ino}) {
            state.image.external_slots = std::max(state.image.external_slots, slot + 1);
            return ExternalFile{slot, seen.flags};
        }
    if (seen.flags & O_PATH)
        return has_type(seen, PROC_SUPER_MAGIC) ? capture_proc_file(seen, state)
                                                : capture_named(seen, state);
    if (seen.target.starts_with("/memfd:"))
        return capture_shared_memory(seen, state);
    switch (seen.status.st_mode & S_IFMT) {
    case S_IFREG:
    case S_IFDIR:
        if (has_type(seen, PROC_SUPER_MAGIC))
            return capture_proc_file(seen, state);
        if (has_type(seen, NSFS_MAGIC))
            return capture_namespace(seen, state);
        return capture_named(seen, state);
    case S_IFCHR:
        return capture_character_device(seen, state);
    case S_IFIFO:
        return capture_pipe(seen, state);
    case S_IFSOCK:
        return capture_socket(seen, state);
    default:
        return capture_anonymous_inode(seen, state);
    }
}

}  // namespace

std::string SeenFile::describe() const
{
    return "descriptor " + std::to_string(number) + " (" + target + ")";
}

void SeenFile::refuse(const std::string &reason) const
{
    throw Refused(process.label, describe(), reason);
}

void SeenFile::refuse_for_now(const std::string &reason) const
{
    throw Refused(process.label, describe(), reason).passing();
}

std::string SeenFile::read_details() const
{
    return proc::read_text(task_path(process, thread, "fdinfo/" + std::to_string(number)));
}

DescriptorTable capture_descriptors(StoppedProcess &process, const StoppedThread &thread,
                                    CaptureState &state)
{
    DescriptorTable table;
    os::UniqueFd own_pidfd;
    if (&thread != &process.threads.front())
        own_pidfd = open_pidfd(thread.tracee.tid());
    int pidfd = own_pidfd ? own_pidfd.get() : process.pidfd.get();
    for (int number : proc::list_numbers(task_path(process, thread, "fd"))) {
        os::UniqueFd file(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd, number, 0)));
        checked(file.get(), "duplicate a descriptor of", process.label);
        SeenFile seen{process, thread, number, file.get(), {}, {}, {}, 0, false, 0};
        checked(fstat(file.get(), &seen.status), "stat a descriptor of", process.label);
        seen.target = proc::read_link(task_path(process, thread, "fd/" + std::to_string(number)));
        seen.details = seen.read_details();
        std::map<std::string, std::string> fields = proc::fields(seen.details);
        int flags = static_cast<int>(std::stol(fields["flags"], nullptr, 8));
        seen.flags = flags & ~(O_CLOEXEC | kAsync);
        seen.asynchronous = flags & kAsync;
        seen.offset = std::stoull(fields["pos"]);
        uint32_t object = known_object(seen, state);
        if (object == kNoObject) {
            OpenFile captured = capture_open_file(seen, state);
            object = state.add_object(std::move(captured), std::move(file));
            capture_file_state(seen, object, state);
            if (S_ISSOCK(seen.status.st_mode))
                state.socket_inodes[object] = seen.status.st_ino;
        }
        table.descriptors.push_back({number, object, (flags & O_CLOEXEC) != 0});
        capture_posix_locks(seen, object, table);
    }
    return table;
}

}  // namespace venus
