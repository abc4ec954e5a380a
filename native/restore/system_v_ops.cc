#include "restore/system_v_ops.h"

#include <fcntl.h>
#include <sys/sem.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include <algorithm>

namespace venus {
namespace {

constexpr Word kTemporary = 0;
constexpr Word kHere = static_cast<Word>(int64_t{AT_FDCWD});
constexpr Word kCopyArea = 0x600000000000;  // the coordinator has nothing there
constexpr Word kCreate = IPC_CREAT | IPC_EXCL;
constexpr Word kSame = ~uint32_t{0};  // for setresuid()
constexpr const char *kSettings = "/proc/sys";
constexpr int kLargestSemaphore = 32767;  // SEMVMX

class SystemVMaker {
public:
    SystemVMaker(const ProcessPlanContext &context, OpList &ops) : context_(context), ops_(ops) {}

    void make_all()
    {
        const SystemVImage &image = context_.tree.system_v;
        if (image.empty())
            return;
        // The next id is a setting, which the sandbox itself may only read.
        remount(0);
        for (const SystemVMemory &memory : image.memories)
            make(memory);
        for (const SystemVSemaphores &set : image.semaphores)
            make(set);
        for (const SystemVQueue &queue : image.queues)
            make(queue);
        remount(MS_RDONLY);
    }

private:
    PlanWriter &writer() { return ops_.writer(); }

    void remount(Word read_only)
    {
        ops_.call(kSettings, SYS_mount,
                  {0, writer().text(kSettings), 0,
                   MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | MS_NOEXEC | read_only, 0});
    }

    // The kernel takes the id for the next object of this kind, and its maker as the creator.
    void create(const std::string &name, const char *kind, const SystemVObject &object, long number,
                Word second, Word third)
    {
        std::string path = std::string("/proc/sys/kernel/") + kind + "_next_id";
        std::string id = std::to_string(object.id);
        ops_.call(path, SYS_openat, {kHere, writer().text(path), O_WRONLY | O_CLOEXEC}, kTemporary);
        ops_.call(path, SYS_write, {kTemporary, writer().text(id), id.size()},
                  static_cast<int64_t>(id.size()));
        ops_.call(path, SYS_close, {kTemporary});
        bool other_maker = object.creator_uid != 0 || object.creator_gid != 0;
        if (other_maker) {
            ops_.call(name, SYS_setresgid, {kSame, object.creator_gid, kSame});
            ops_.call(name, SYS_setresuid, {kSame, object.creator_uid, kSame});
        }
        ops_.call(name, number, {static_cast<uint32_t>(object.key), second, third}, object.id);
        if (other_maker) {
            ops_.call(name, SYS_setresuid, {kSame, 0, kSame});
            ops_.call(name, SYS_setresgid, {kSame, 0, kSame});
            // A change of ids clears it, and /proc/self would belong to the host.
            ops_.call(name, SYS_prctl, {PR_SET_DUMPABLE, 1, 0, 0, 0});
        }
    }

    void make(const SystemVMemory &memory)
    {
        const SystemVObject &object = memory.object;
        std::string name = "shared memory segment " + std::to_string(object.id);
        create(name, "shm", object, SYS_shmget, memory.size, kCreate | object.mode);
        if (!memory.content.empty())
            ops_.call(name, SYS_shmat, {word(object.id), kCopyArea, 0},
                      static_cast<int64_t>(kCopyArea));
        for (const ExtentPiece &piece : memory.content) {
            uint64_t bytes = std::min(piece.run.end, memory.size) - piece.run.start;
            ops_.call(name, SYS_pread64,
                      {word(context_.descriptors.extents) + piece.extent,
                       kCopyArea + piece.run.start, bytes, piece.offset},
                      static_cast<int64_t>(bytes));
        }
        if (!memory.content.empty())
            ops_.call(name, SYS_shmdt, {kCopyArea});
        shmid_ds status{};
        set_permissions(object, status.shm_perm);
        ops_.call(name, SYS_shmctl, {word(object.id), IPC_SET, writer().object(status)});
        if (memory.locked)
            ops_.call(name, SYS_shmctl, {word(object.id), SHM_LOCK, 0});
    }

    void make(const SystemVSemaphores &set)
    {
        std::string name = "semaphores " + std::to_string(set.object.id);
        create(name, "sem", set.object, SYS_semget, set.values.size(), kCreate | set.object.mode);
        const std::vector<uint16_t> &values = set.values;
        ops_.call(name + " values", SYS_semctl,
                  {word(set.object.id), 0, SETALL,
                   writer().data(values.data(), values.size() * sizeof values[0])});
        semid_ds status{};
        set_permissions(set.object, status.sem_perm);
        ops_.call(name, SYS_semctl, {word(set.object.id), 0, IPC_SET, writer().object(status)});
    }

    void make(const SystemVQueue &queue)
    {
        std::string name = "message queue " + std::to_string(queue.object.id);
        create(name, "msg", queue.object, SYS_msgget, kCreate | queue.object.mode, 0);
        msqid_ds status{};
        set_permissions(queue.object, status.msg_perm);
        status.msg_qbytes = queue.capacity;
        ops_.call(name, SYS_msgctl, {word(queue.object.id), IPC_SET, writer().object(status)});
        for (const SystemVMessage &message : queue.messages) {
            Bytes text(sizeof message.type);
            memcpy(text.data(), &message.type, sizeof message.type);
            text.insert(text.end(), message.text.begin(), message.text.end());
            ops_.call(name + " content", SYS_msgsnd,
                      {word(queue.object.id), writer().data(text), message.text.size(),
                       IPC_NOWAIT});
        }
    }

    template <typename Permissions>
    static void set_permissions(const SystemVObject &object, Permissions &permissions)
    {
        permissions.uid = object.uid;
        permissions.gid = object.gid;
        permissions.mode = static_cast<decltype(permissions.mode)>(object.mode);
    }

    const ProcessPlanContext &context_;
    OpList &ops_;
};

}  // namespace

void add_system_v_ops(const ProcessPlanContext &context, OpList &ops)
{
    SystemVMaker(context, ops).make_all();
}

// In one call, which leaves the value as it is: to nothing, what is to be undone together with its
// opposite, and back.
void add_semaphore_undo_ops(const ProcessPlanContext &context, const std::vector<SemaphoreUndo> &list,
                            OpList &ops)
{
    auto value_of = [&](const SemaphoreUndo &undo) -> int {
        for (const SystemVSemaphores &set : context.tree.system_v.semaphores)
            if (set.object.id == undo.set)
                return set.values.at(undo.index);
        return 0;
    };
    for (const SemaphoreUndo &undo : list) {
        std::vector<sembuf> steps;
        auto step = [&](int amount, short flags) {
            if (amount != 0)
                steps.push_back({undo.index, static_cast<int16_t>(amount),
                                 static_cast<int16_t>(flags | IPC_NOWAIT)});
        };
        int value = value_of(undo);
        step(-value, 0);
        for (int left = undo.amount; left != 0;) {
            int part = std::clamp(left, -kLargestSemaphore, kLargestSemaphore);
            step(std::max(part, 0), 0);
            step(-part, SEM_UNDO);
            step(std::min(part, 0), 0);
            left -= part;
        }
        step(value, 0);
        ops.call("undo of semaphores", SYS_semop,
                 {word(undo.set), ops.writer().data(steps.data(), steps.size() * sizeof steps[0]),
                  steps.size()});
    }
}

void add_system_v_removal_ops(const ProcessPlanContext &context, OpList &ops)
{
    for (const SystemVMemory &memory : context.tree.system_v.memories)
        if (memory.removed)
            ops.call("removal of segment " + std::to_string(memory.object.id), SYS_shmctl,
                     {word(memory.object.id), IPC_RMID, 0});
}

}  // namespace venus
