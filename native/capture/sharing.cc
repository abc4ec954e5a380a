#include "capture/sharing.h"

#include <linux/kcmp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "os/checked.h"
#include "restore/refused.h"

namespace venus {
namespace {

constexpr struct {
    int kind;
    const char *name;
} kTableNames[kTables] = {{KCMP_VM, "address space"},
                          {KCMP_SIGHAND, "signal actions"},
                          {KCMP_FILES, "descriptor table"},
                          {KCMP_FS, "working directory"},
                          {KCMP_SYSVSEM, "semaphore undo list"}};

// The kernel's order of tables, which it gives without saying where they are: 0 same, 1 less,
// 2 greater.
long compare(Table table, pid_t a, pid_t b)
{
    return checked(syscall(SYS_kcmp, a, b, kTableNames[static_cast<size_t>(table)].kind, 0, 0),
                   "compare tables of", "threads");
}

struct Holder {
    uint32_t process;
    pid_t host_tid;
    bool is_first;  // of its process
};

// Threads with tables of their own, besides the first thread of each process.
std::vector<Holder> holders_of(Table table, const StoppedTree &tree)
{
    std::vector<Holder> holders;
    for (uint32_t i = 0; i < tree.processes.size(); i++) {
        const StoppedProcess &process = tree.processes[i];
        if (process.zombie)
            continue;
        bool of_process = table == Table::kMemory || table == Table::kSignalActions;
        for (const StoppedThread &thread : process.threads) {
            pid_t tid = thread.tracee.tid();
            bool is_first = &thread == &process.threads.front();
            if (!is_first && (of_process || have_same(table, process.first_host_tid(), tid)))
                continue;
            // One without a list of what to undo has nothing in common with others.
            if (table != Table::kSemaphoreUndo || has_semaphore_undo(tid))
                holders.push_back({i, tid, is_first});
        }
    }
    return holders;
}

}  // namespace

bool have_same(Table table, pid_t a, pid_t b)
{
    return compare(table, a, b) == 0;
}

bool has_semaphore_undo(pid_t host_tid)
{
    return !have_same(Table::kSemaphoreUndo, gettid(), host_tid);
}

std::vector<std::array<uint32_t, kTables>> find_shared_tables(const StoppedTree &tree)
{
    // Of ours: then it is none.
    checked(unshare(CLONE_SYSVSEM), "leave", "semaphore undo list");
    std::vector<std::array<uint32_t, kTables>> found(tree.processes.size());
    for (auto &shared : found)
        shared.fill(kNoObject);
    for (Table table : kAllTables) {
        size_t column = static_cast<size_t>(table);
        std::vector<Holder> holders = holders_of(table, tree);
        std::stable_sort(holders.begin(), holders.end(), [&](const Holder &a, const Holder &b) {
            return compare(table, a.host_tid, b.host_tid) == 1;
        });
        for (size_t i = 1; i < holders.size(); i++) {
            const Holder &one = holders[i - 1], &other = holders[i];
            if (!have_same(table, one.host_tid, other.host_tid))
                continue;
            if (!one.is_first || !other.is_first)
                throw Refused(tree.processes[other.process].label, kTableNames[column].name,
                              "one of its threads shares another's, but not that of its process");
            uint32_t &first = found[one.process][column];
            if (first == kNoObject)
                first = one.process;
            found[other.process][column] = first;
        }
    }
    return found;
}

}  // namespace venus
