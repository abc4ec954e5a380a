#include "capture/held_sockets.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/checked.h"
#include "os/proc.h"

namespace venus {

std::map<uint64_t, int> held_sockets(const StoppedProcess &process)
{
    std::map<uint64_t, int> found;
    for (int number : proc::list_numbers(process.proc_path("fd"))) {
        std::string target = proc::read_link(process.proc_path("fd/" + std::to_string(number)));
        unsigned long inode = 0;
        if (sscanf(target.c_str(), "socket:[%lu]", &inode) == 1)
            found[inode] = number;
    }
    return found;
}

os::UniqueFd duplicate_socket(const StoppedTree &tree, uint64_t inode)
{
    for (const StoppedProcess &process : tree.processes) {
        if (process.zombie)
            continue;
        std::map<uint64_t, int> held = held_sockets(process);
        auto at = held.find(inode);
        if (at != held.end())
            return os::UniqueFd(static_cast<int>(
                checked(syscall(SYS_pidfd_getfd, process.pidfd.get(), at->second, 0),
                        "duplicate a socket of", process.label)));
    }
    return {};
}

}  // namespace venus
