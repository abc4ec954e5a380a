#include "capture/system_v.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/sem.h>
#include <sched.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>

#include "capture/id_map.h"
#include "capture/proc_lines.h"
#include "capture/semaphore_undo.h"
#include "os/checked.h"
#include "os/proc.h"
#include "restore/refused.h"

namespace venus {
namespace {

constexpr const char *kSandbox = "the sandbox";
constexpr uint32_t kPermissionBits = 0777;
constexpr uint32_t kRemoved = 01000, kLocked = 02000;  // SHM_DEST, SHM_LOCKED
constexpr int kCopyMessage = 040000;                    // MSG_COPY
constexpr size_t kLargestMessage = 1 << 20;

// One line of /proc/sysvipc/<kind>, by the names of its columns.
using Row = std::map<std::string, std::string>;

std::vector<Row> list(const char *kind)
{
    return table_rows(proc::read_text(std::string("/proc/sysvipc/") + kind));
}

class Reader {
public:
    explicit Reader(CaptureState &state)
        : state_(state),
          users_(proc::read_text(proc::path(state.init, "uid_map"))),
          groups_(proc::read_text(proc::path(state.init, "gid_map")))
    {
    }

    void read_all()
    {
        for (Row &row : list("shm"))
            state_.image.system_v.memories.push_back(memory(row));
        for (Row &row : list("sem"))
            state_.image.system_v.semaphores.push_back(semaphores(row));
        for (Row &row : list("msg"))
            state_.image.system_v.queues.push_back(queue(row));
    }

private:
    SystemVObject object(Row &row, const char *id)
    {
        SystemVObject object{};
        object.id = std::stoi(row.at(id));
        object.key = static_cast<int32_t>(std::stol(row.at("key")));
        object.mode = static_cast<uint32_t>(std::stoul(row.at("perms"), nullptr, 8)) & kPermissionBits;
        auto inner = [&](const IdMap &map, const char *column) {
            std::optional<uint32_t> found =
                map.inner(static_cast<uint32_t>(std::stoul(row.at(column))));
            if (!found)
                throw Refused(kSandbox, std::string(id) + " " + row.at(id),
                              "its owner has no name in the sandbox");
            return *found;
        };
        object.uid = inner(users_, "uid");
        object.gid = inner(groups_, "gid");
        object.creator_uid = inner(users_, "cuid");
        object.creator_gid = inner(groups_, "cgid");
        return object;
    }

    SystemVMemory memory(Row &row)
    {
        SystemVMemory memory{object(row, "shmid"), std::stoull(row.at("size")), false, false, {}};
        auto state = static_cast<uint32_t>(std::stoul(row.at("perms"), nullptr, 8));
        memory.removed = state & kRemoved;
        memory.locked = state & kLocked;
        std::string name = "shared memory segment " + row.at("shmid");
        // Through a file, which tells its holes; reading them through the mapping would fill them.
        void *at = shmat(memory.object.id, nullptr, SHM_RDONLY);
        if (at == reinterpret_cast<void *>(-1))
            throw os::Error("attach", name, errno);
        char path[64];
        auto start = reinterpret_cast<uint64_t>(at);
        uint64_t end = (start + memory.size + kPageBytes - 1) & ~(kPageBytes - 1);
        snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", start, end);
        os::UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
        int error = errno;
        shmdt(at);
        if (!file)
            throw os::Error("open", name, error);
        struct statfs kind;
        checked(fstatfs(file.get(), &kind), "look at", name);
        if (kind.f_type == HUGETLBFS_MAGIC)
            throw Refused(kSandbox, name, "memory in huge pages is not supported");
        struct stat status;
        checked(fstat(file.get(), &status), "stat", name);
        state_.system_v_device = status.st_dev;
        memory.content = copy_shared_memory(state_, file.get(), memory.size);
        return memory;
    }

    SystemVSemaphores semaphores(Row &row)
    {
        SystemVSemaphores set{object(row, "semid"), {}};
        set.values.resize(std::stoul(row.at("nsems")));
        checked(semctl(set.object.id, 0, GETALL, set.values.data()), "read",
                "semaphores " + row.at("semid"));
        return set;
    }

    SystemVQueue queue(Row &row)
    {
        SystemVQueue queue{object(row, "msqid"), 0, {}};
        std::string name = "message queue " + row.at("msqid");
        msqid_ds status;
        checked(msgctl(queue.object.id, IPC_STAT, &status), "look at", name);
        queue.capacity = status.msg_qbytes;
        Bytes message(sizeof(long) + kLargestMessage);
        for (msgqnum_t index = 0; index < status.msg_qnum; index++) {
            ssize_t size = checked(msgrcv(queue.object.id, message.data(), kLargestMessage,
                                          static_cast<long>(index), kCopyMessage | IPC_NOWAIT),
                                   "read", name);
            int64_t type;
            memcpy(&type, message.data(), sizeof type);
            auto text = message.begin() + sizeof type;
            queue.messages.push_back({type, Bytes(text, text + size)});
        }
        return queue;
    }

    CaptureState &state_;
    IdMap users_, groups_;
};

}  // namespace

void capture_system_v(StoppedTree &tree, CaptureState &state)
{
    std::string path = proc::path(state.init, "ns/ipc");
    os::UniqueFd fd(checked(open(path.c_str(), O_RDONLY | O_CLOEXEC), "open", path));
    checked(setns(fd.get(), CLONE_NEWIPC), "enter", path);
    Reader(state).read_all();
    capture_semaphore_undo(tree, state);
}

}  // namespace venus
