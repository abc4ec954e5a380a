#include "capture/nameless_files.h"

#include <fcntl.h>
#include <unistd.h>

#include "capture/id_map.h"
#include "capture/paths.h"
#include "os/checked.h"
#include "os/proc.h"
#include "restore/refused.h"

namespace venus {
namespace {

constexpr const char kDeleted[] = " (deleted)";
constexpr uint64_t kLargestBytes = uint64_t{256} << 20;
constexpr blkcnt_t kBlockBytes = 512;
constexpr int kMostNames = 100;

// "#" and a number is what the kernel shows of a file that was made without a name (O_TMPFILE).
bool has_number_for_name(const std::string &path)
{
    std::string name = path.substr(path.rfind('/') + 1);
    return name.size() > 1 && name[0] == '#' && name.find_first_not_of("0123456789", 1) == name.npos;
}

}  // namespace

std::optional<uint32_t> nameless_file(const StoppedProcess &process, const std::string &link,
                                      const std::string &target, bool writable,
                                      CaptureState &state)
{
    struct stat status;
    checked(stat(link.c_str(), &status), "stat", link);
    bool is_directory = S_ISDIR(status.st_mode);
    if ((!S_ISREG(status.st_mode) && !is_directory) || !target.starts_with("/") ||
        !target.ends_with(kDeleted))
        return std::nullopt;
    // A layer below does not count the removals of layers above it: a file that can only be read
    // may have a link count although it is gone.
    if (!is_directory && (status.st_nlink > 1 || (status.st_nlink == 1 && writable)))
        throw Refused(process.label, target, "it is deleted but has other names");
    auto key = std::pair(status.st_dev, status.st_ino);
    auto known = state.nameless.find(key);
    if (known != state.nameless.end())
        return known->second;
    if (!is_directory && static_cast<uint64_t>(status.st_blocks * kBlockBytes) > kLargestBytes)
        throw Refused(process.label, target, "it is deleted and larger than 256 MiB");
    NamelessFile file{};
    file.is_directory = is_directory;
    file.path = target.substr(0, target.size() - (sizeof kDeleted - 1));
    file.mode = status.st_mode & 07777;
    IdMap users(proc::read_text(process.proc_path("uid_map")));
    IdMap groups(proc::read_text(process.proc_path("gid_map")));
    std::optional<uint32_t> uid = users.inner(status.st_uid), gid = groups.inner(status.st_gid);
    if (!uid || !gid)
        throw Refused(process.label, target, "its owner has no name in the sandbox");
    file.uid = *uid;
    file.gid = *gid;
    file.modified[0] = static_cast<uint64_t>(status.st_mtim.tv_sec);
    file.modified[1] = static_cast<uint64_t>(status.st_mtim.tv_nsec);
    file.size = static_cast<uint64_t>(status.st_size);
    file.directory = file.path.substr(0, std::max<size_t>(1, file.path.rfind('/')));
    std::optional<struct stat> directory = look_at(state.init, file.directory);
    if (!directory || !S_ISDIR(directory->st_mode)) {
        // Its own is gone too. (Not assigned: GCC 12 takes that for a copy that overlaps.)
        file.directory = std::string(1, '/');
        file.path = file.path.substr(file.path.rfind('/'));
        directory = look_at(state.init, file.directory);
    }
    file.directory_modified[0] = static_cast<uint64_t>(directory->st_mtim.tv_sec);
    file.directory_modified[1] = static_cast<uint64_t>(directory->st_mtim.tv_nsec);
    if (is_directory) {
        // It has to have some name before it can be removed.
        for (int tries = 0; look_at(state.init, file.path); tries++, file.path += '~')
            if (tries == kMostNames)
                throw Refused(process.label, target, "it is deleted, and its name is taken");
    } else {
        file.never_named = has_number_for_name(file.path);
        file.name_taken = look_at(state.init, file.path).has_value();
        os::UniqueFd readable(checked(open(link.c_str(), O_RDONLY | O_CLOEXEC), "open", target));
        file.content = copy_shared_memory(state, readable.get(), file.size);
    }
    auto index = static_cast<uint32_t>(state.image.nameless.size());
    state.image.nameless.push_back(std::move(file));
    state.nameless[key] = index;
    return index;
}

}  // namespace venus
