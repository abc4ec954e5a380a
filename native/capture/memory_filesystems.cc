#include "capture/memory_filesystems.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "capture/id_map.h"
#include "capture/proc_lines.h"
#include "os/checked.h"
#include "os/proc.h"
#include "restore/refused.h"

namespace venus {
namespace {

constexpr const char *kSandbox = "the sandbox";

class Walk {
public:
    explicit Walk(CaptureState &state)
        : state_(state),
          users_(proc::read_text(proc::path(state.init, "uid_map"))),
          groups_(proc::read_text(proc::path(state.init, "gid_map")))
    {
    }

    // Descends by descriptor, never through a link: the names are the sandbox's own. So is their
    // depth: what is under way is kept here, not on the stack.
    void mount(const std::string &path)
    {
        links_.clear();
        std::string outside = proc::path(state_.init, "root" + path);
        os::UniqueFd root(checked(open(outside.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC), "open", path));
        struct stat status;
        checked(fstat(root.get(), &status), "stat", path);
        device_ = status.st_dev;
        if (S_ISDIR(status.st_mode))
            enter(std::move(root), path, status);
        while (!open_.empty()) {
            Directory &deepest = open_.back();
            if (deepest.next == deepest.names.size()) {
                leave();
                continue;
            }
            std::string name = deepest.names[deepest.next++];
            child(deepest.fd.get(), name, deepest.path + "/" + name);
        }
    }

private:
    struct Directory {
        os::UniqueFd fd;
        std::string path;
        std::vector<std::string> names;
        size_t next;
        FileEntry own;
    };

    FileEntry entry_of(const std::string &path, const struct stat &status)
    {
        FileEntry entry{};
        entry.path = path;
        entry.mode = status.st_mode;
        std::optional<uint32_t> uid = users_.inner(status.st_uid), gid = groups_.inner(status.st_gid);
        if (!uid || !gid)
            throw Refused(kSandbox, path, "its owner has no name in the sandbox");
        entry.uid = *uid;
        entry.gid = *gid;
        entry.modified[0] = static_cast<uint64_t>(status.st_mtim.tv_sec);
        entry.modified[1] = static_cast<uint64_t>(status.st_mtim.tv_nsec);
        return entry;
    }

    void attributes(int fd, FileEntry &entry)
    {
        std::string by_number = "/proc/self/fd/" + std::to_string(fd);
        char names[4096];
        ssize_t size = listxattr(by_number.c_str(), names, sizeof names);
        if (size < 0)
            throw os::Error("list the attributes of", entry.path, errno);
        for (char *name = names; name < names + size; name += strlen(name) + 1) {
            if (strncmp(name, "user.", 5) != 0)
                throw Refused(kSandbox, entry.path,
                              std::string("its attribute ") + name + " is not supported");
            char value[65536];
            ssize_t length = checked(getxattr(by_number.c_str(), name, value, sizeof value),
                                     "read an attribute of", entry.path);
            entry.attributes.push_back({name, Bytes(value, value + length)});
        }
    }

    void enter(os::UniqueFd fd, const std::string &path, const struct stat &status)
    {
        FileEntry own = entry_of(path, status);
        attributes(fd.get(), own);
        state_.image.files.push_back(own);
        std::vector<std::string> names = proc::list("/proc/self/fd/" + std::to_string(fd.get()));
        std::sort(names.begin(), names.end());
        open_.push_back({std::move(fd), path, std::move(names), 0, std::move(own)});
    }

    // Last, because making the children changes the time of the directory.
    void leave()
    {
        open_.back().own.only_times = true;
        state_.image.files.push_back(std::move(open_.back().own));
        open_.pop_back();
    }

    void child(int parent, const std::string &name, const std::string &path)
    {
        // The plan makes it again by its path.
        if (path.size() >= PATH_MAX)
            throw Refused(kSandbox, path.substr(0, 100) + "...",
                          "its path is longer than a path may be");
        os::UniqueFd fd(checked(openat(parent, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC),
                                "open", path));
        struct stat status;
        checked(fstat(fd.get(), &status), "stat", path);
        if (status.st_dev != device_)
            return;  // a mount of its own
        if (S_ISDIR(status.st_mode)) {
            enter(std::move(fd), path, status);
            return;
        }
        FileEntry entry = entry_of(path, status);
        auto [first, is_new] = links_.emplace(status.st_ino, path);
        if (!is_new) {
            entry.link_to = first->second;
        } else if (S_ISLNK(status.st_mode)) {
            char target[4096];
            ssize_t length = checked(readlinkat(fd.get(), "", target, sizeof target), "read", path);
            entry.target.assign(target, static_cast<size_t>(length));
        } else if (S_ISREG(status.st_mode)) {
            std::string by_number = "/proc/self/fd/" + std::to_string(fd.get());
            os::UniqueFd readable(
                checked(open(by_number.c_str(), O_RDONLY | O_CLOEXEC), "open", path));
            entry.size = static_cast<uint64_t>(status.st_size);
            entry.content = copy_shared_memory(state_, readable.get(), entry.size);
            attributes(fd.get(), entry);
        } else if (!S_ISFIFO(status.st_mode) && !S_ISSOCK(status.st_mode)) {
            throw Refused(kSandbox, path, "device files are not supported");
        }
        state_.image.files.push_back(std::move(entry));
    }

    CaptureState &state_;
    IdMap users_, groups_;
    dev_t device_ = 0;
    std::map<ino_t, std::string> links_;
    std::vector<Directory> open_;  // from the mount point to the deepest
};

}  // namespace

void capture_memory_filesystems(CaptureState &state)
{
    Walk walk(state);
    for (const auto &[mountpoint, line] :
         mount_lines(proc::read_text(proc::path(state.init, "mountinfo")))) {
        if (line.type == "tmpfs" && !line.read_only && line.root == "/")
            walk.mount(mountpoint);
        else if (line.type == "mqueue" &&
                 !proc::list(proc::path(state.init, "root" + mountpoint)).empty())
            throw Refused(kSandbox, mountpoint, "POSIX message queues are not supported yet");
    }
}

}  // namespace venus
