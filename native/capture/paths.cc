#include "capture/paths.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>

#include "os/checked.h"
#include "os/proc.h"
#include "restore/refused.h"

namespace venus {
namespace {

std::optional<struct stat> look(pid_t init, const std::string &path, uint64_t flags)
{
    std::string root_path = proc::path(init, "root");
    os::UniqueFd root(checked(open(root_path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC), "open",
                          root_path));
    open_how how{};
    how.flags = O_PATH | O_CLOEXEC | flags;
    how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
    os::UniqueFd found(static_cast<int>(
        syscall(SYS_openat2, root.get(), path.c_str(), &how, sizeof how)));
    if (!found)
        return std::nullopt;
    struct stat status;
    checked(fstat(found.get(), &status), "stat", path);
    return status;
}

}  // namespace

std::optional<struct stat> look_at(pid_t init, const std::string &path)
{
    return look(init, path, O_NOFOLLOW);
}

bool is_reachable(pid_t init, const std::string &path, const struct stat &file)
{
    if (path.empty() || path[0] != '/')
        return false;
    std::optional<struct stat> found = look(init, path, S_ISLNK(file.st_mode) ? O_NOFOLLOW : 0);
    return found && found->st_dev == file.st_dev && found->st_ino == file.st_ino;
}

std::string path_in_sandbox(const StoppedProcess &process, pid_t init, const std::string &link,
                            const std::string &target)
{
    struct stat status;
    checked(stat(link.c_str(), &status), "stat", link);
    if (!is_reachable(init, target, status))
        throw Refused(process.label, target, "its name no longer leads to it");
    return target;
}

}  // namespace venus
