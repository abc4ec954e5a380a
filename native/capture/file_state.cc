// What an open file has besides what it is: locks, a lease, a receiver of signals.
#include <fcntl.h>
#include <sys/statfs.h>
#include <linux/magic.h>

#include <algorithm>

#include "capture/descriptors.h"
#include "capture/id_map.h"
#include "capture/proc_lines.h"
#include "os/checked.h"
#include "os/proc.h"

namespace venus {
namespace {

constexpr int kAsync = 020000;                                          // FASYNC
constexpr int kGetSignal = 11, kGetOwner = 16, kGetOwnerUids = 17;      // F_GETSIG, F_GETOWN_EX, ...
constexpr int kOwnerIsThread = 0, kOwnerIsProcess = 1;                  // F_OWNER_*

uint32_t inner_user(const SeenFile &seen, uint32_t host_uid)
{
    IdMap users(proc::read_text(seen.process.proc_path("uid_map")));
    std::optional<uint32_t> uid = users.inner(host_uid);
    if (!uid)
        seen.refuse("user " + std::to_string(host_uid) + " has no name in the sandbox");
    return *uid;
}

void capture_lease(const SeenFile &seen, const LockLine &line, FileSignal &signal)
{
    struct statfs kind;
    if (line.state != "ACTIVE")
        seen.refuse_for_now("its lease is being broken");
    checked(fstatfs(seen.file, &kind), "look at the file system of", seen.describe());
    if (line.exclusive && kind.f_type == TMPFS_MAGIC)
        seen.refuse("reading what is in memory would break its lease");
    signal.lease = line.exclusive ? F_WRLCK : F_RDLCK;
    signal.lease_uid = inner_user(seen, seen.status.st_uid);
}

void capture_owner(const SeenFile &seen, const CaptureState &state, FileSignal &signal)
{
    struct {
        int kind, pid;
    } owner{};
    if (fcntl(seen.file, kGetOwner, &owner) < 0 || owner.pid == 0)
        return;
    bool single = owner.kind == kOwnerIsThread || owner.kind == kOwnerIsProcess;
    const std::map<pid_t, pid_t> &known = single ? state.inner_ids : state.inner_groups;
    auto found = known.find(owner.pid);
    if (found == known.end())
        seen.refuse("who gets its signals is not known");
    signal.owner_kind = owner.kind;
    signal.owner = found->second;
    uint32_t uids[2] = {};
    checked(fcntl(seen.file, kGetOwnerUids, uids), "get the owner of", seen.describe());
    signal.uid = inner_user(seen, uids[0]);
    signal.effective_uid = inner_user(seen, uids[1]);
}

}  // namespace

void capture_file_state(const SeenFile &seen, uint32_t object, CaptureState &state)
{
    // It belongs to the daemon.
    if (std::holds_alternative<ExternalFile>(state.image.objects[object]) || (seen.flags & O_PATH))
        return;
    FileSignal signal{};
    signal.object = object;
    std::vector<FileLock> locks;
    for (const LockLine &line : lock_lines(seen.details)) {
        if (line.kind == "FLOCK" || line.kind == "OFDLCK")
            locks.push_back({object, line.kind == "OFDLCK", line.exclusive, line.start, line.length});
        else if (line.kind == "LEASE")
            capture_lease(seen, line, signal);
        else if (line.kind != "POSIX")
            seen.refuse("its " + line.kind + " lock is not supported");
    }
    capture_owner(seen, state, signal);
    signal.signal = std::max(0, fcntl(seen.file, kGetSignal));
    signal.flags = seen.flags | (seen.asynchronous ? kAsync : 0);
    bool signals = signal.owner_kind >= 0 || signal.signal != 0 || signal.lease >= 0 ||
                   seen.asynchronous;
    auto *file = std::get_if<RegularFile>(&state.image.objects[object]);
    if (file && file->of_process && (signals || !locks.empty()))
        seen.refuse("a file of a process that is locked, or that sends signals, is not supported");
    if (signals)
        state.image.file_signals.push_back(signal);
    state.image.file_locks.insert(state.image.file_locks.end(), locks.begin(), locks.end());
}

void capture_posix_locks(const SeenFile &seen, uint32_t object, DescriptorTable &table)
{
    for (const LockLine &line : lock_lines(seen.details)) {
        bool known = std::any_of(table.locks.begin(), table.locks.end(), [&](PosixLock &lock) {
            return lock.object == object && lock.start == line.start && lock.length == line.length;
        });
        if (line.kind == "POSIX" && !known)
            table.locks.push_back({object, seen.number, line.exclusive ? F_WRLCK : F_RDLCK,
                                   line.start, line.length});
    }
}

}  // namespace venus
