#include "capture/paths.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>

#include "os/checked.h"
#include "os/proc.h"
#include "restore/refused.h"

namespace venus {

bool is_reachable(pid_t init, const std::string &path, const struct stat &file)
{
    if (path.empty() || path[0] != '/')
        return false;
    std::string root_path = proc::path(init, "root");
    os::UniqueFd root(checked(open(root_path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC), "open",
                          root_path));
    open_how how{};
    how.flags = O_PATH | O_CLOEXEC | (S_ISLNK(file.st_mode) ? O_NOFOLLOW : 0);
    how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
    os::UniqueFd found(static_cast<int>(
        syscall(SYS_openat2, root.get(), path.c_str(), &how, sizeof how)));
    if (!found)
        return false;
    struct stat status;
    checked(fstat(found.get(), &status), "stat", path);
    return status.st_dev == file.st_dev && status.st_ino == file.st_ino;
}

std::optional<struct stat> look_at(pid_t init, const std::string &path)
{
    std::string root_path = proc::path(init, "root");
    os::UniqueFd root(checked(open(root_path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC), "open",
                              root_path));
    open_how how{};
    how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
    how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
    os::UniqueFd found(static_cast<int>(
        syscall(SYS_openat2, root.get(), path.c_str(), &how, sizeof how)));
    struct stat status;
    if (!found || fstat(found.get(), &status) < 0)
        return std::nullopt;
    return status;
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
