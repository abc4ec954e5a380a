#include "capture/semaphore_undo.h"

#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/syscall.h>

#include <algorithm>

#include "capture/sharing.h"
#include "os/checked.h"
#include "restore/refused.h"

namespace venus {
namespace {

constexpr int kLargest = 32767;     // of a value and of an amount: SEMVMX, SEMAEM
constexpr size_t kSetsOfSteps = 50;  // that fit one call: 500 operations
constexpr unsigned short kEverybody = 0222;

// A set that everybody may change, for a moment.
class OpenToAll {
public:
    explicit OpenToAll(int set) : set_(set)
    {
        checked(semctl(set, 0, IPC_STAT, &before_), "look at", name());
        semid_ds open = before_;
        open.sem_perm.mode = static_cast<unsigned short>(open.sem_perm.mode | kEverybody);
        checked(semctl(set, 0, IPC_SET, &open), "open", name());
    }
    ~OpenToAll() { semctl(set_, 0, IPC_SET, &before_); }
    OpenToAll(const OpenToAll &) = delete;

private:
    std::string name() const { return "semaphores " + std::to_string(set_); }

    int set_;
    semid_ds before_{};
};

class ListReader {
public:
    ListReader(StoppedProcess &process, StoppedThread &thread) : process_(process), thread_(thread) {}

    std::vector<SemaphoreUndo> read(const SystemVSemaphores &set)
    {
        set_ = set.object.id;
        std::vector<SemaphoreUndo> found;
        for (size_t first = 0; first < set.values.size(); first += kSetsOfSteps) {
            size_t end = std::min(first + kSetsOfSteps, set.values.size());
            if (are_nothing(set, first, end))
                continue;
            for (size_t i = first; i < end; i++)
                if (int amount = amount_of(static_cast<uint16_t>(i), set.values[i]))
                    found.push_back(
                        {set_, static_cast<uint16_t>(i), static_cast<int16_t>(amount)});
        }
        return found;
    }

private:
    // Tries the steps and then what is impossible when the last semaphore's value is 0. True: the
    // steps are possible.
    bool are_possible(std::vector<sembuf> steps)
    {
        steps.push_back({steps.back().sem_num, -1, IPC_NOWAIT});
        process_.write_memory(process_.scratch, steps.data(), steps.size() * sizeof steps[0]);
        int64_t result = try_in_thread(steps.size());
        if (result == -EACCES) {
            OpenToAll open(set_);
            result = try_in_thread(steps.size());
        }
        if (result != -EAGAIN && result != -ERANGE)
            throw os::Error("ask for the semaphores of", process_.label,
                            result < 0 ? static_cast<int>(-result) : EPROTO);
        return result == -EAGAIN;
    }

    int64_t try_in_thread(size_t count)
    {
        return thread_.tracee.call(process_.gadget, SYS_semop, static_cast<uint64_t>(set_),
                                   process_.scratch, count);
    }

    // The amount goes down by what is done and up by what is taken.
    bool are_nothing(const SystemVSemaphores &set, size_t first, size_t end)
    {
        std::vector<sembuf> steps;
        for (size_t i = first; i < end; i++) {
            auto index = static_cast<uint16_t>(i);
            steps.push_back({index, static_cast<int16_t>(-set.values[i]), IPC_NOWAIT});
            auto step = [&](int amount, int flags) {
                steps.push_back({index, static_cast<int16_t>(amount),
                                 static_cast<int16_t>(flags | IPC_NOWAIT)});
            };
            step(kLargest, SEM_UNDO);
            step(-kLargest, 0);
            step(1, SEM_UNDO);  // impossible for less than nothing
            step(-1, SEM_UNDO);
            step(kLargest, 0);
            step(-kLargest, SEM_UNDO);
            step(kLargest, 0);
            step(-kLargest, SEM_UNDO);  // impossible for more than nothing
        }
        return are_possible(std::move(steps));
    }

    // The largest amount that can be done before the range ends.
    int amount_of(uint16_t index, uint16_t value)
    {
        int possible = 0, impossible = 2 * kLargest + 2;
        while (impossible - possible > 1) {
            int middle = possible + (impossible - possible) / 2;
            std::vector<sembuf> steps = {{index, static_cast<int16_t>(-value), IPC_NOWAIT}};
            for (int left = middle; left > 0; left -= kLargest) {
                auto part = static_cast<int16_t>(std::min(left, kLargest));
                steps.push_back({index, part, SEM_UNDO | IPC_NOWAIT});
                steps.push_back({index, static_cast<int16_t>(-part), IPC_NOWAIT});
            }
            (are_possible(std::move(steps)) ? possible : impossible) = middle;
        }
        return possible - kLargest - 1;
    }

    StoppedProcess &process_;
    StoppedThread &thread_;
    int set_ = 0;
};

}  // namespace

void capture_semaphore_undo(StoppedTree &tree, CaptureState &state)
{
    const std::vector<SystemVSemaphores> &sets = state.image.system_v.semaphores;
    if (sets.empty())
        return;
    auto read = [&](StoppedProcess &process, StoppedThread &thread,
                    std::vector<SemaphoreUndo> &into) {
        if (!has_semaphore_undo(thread.tracee.tid()))
            return;
        for (const SystemVSemaphores &set : sets)
            for (SemaphoreUndo &undo : ListReader(process, thread).read(set))
                into.push_back(undo);
    };
    for (uint32_t i = 0; i < tree.processes.size(); i++) {
        StoppedProcess &process = tree.processes[i];
        ProcessImage &image = state.image.processes[i];
        if (process.zombie)
            continue;
        if (image.stands_for(Table::kSemaphoreUndo, i))
            read(process, process.first(), image.semaphore_undo);
        size_t first_living = process.leader_ended ? 1 : 0;
        for (size_t j = 1; j < process.threads.size(); j++)
            if (auto &own = image.threads[first_living + j].own_semaphore_undo)
                read(process, process.threads[j], *own);
    }
}

}  // namespace venus
