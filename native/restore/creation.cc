#include "restore/creation.h"

#include <sched.h>

#include <algorithm>
#include <map>
#include <set>

#include "restore/refused.h"

namespace venus {
namespace {

constexpr pid_t kInit = 1;

class Planner {
public:
    explicit Planner(const TreeImage &tree) : tree_(tree)
    {
        for (const ProcessImage &process : tree.processes) {
            used_.insert({process.pid, process.group, process.session});
            for (const ThreadImage &thread : process.threads)
                used_.insert(thread.tid);
        }
    }

    CreationPlan plan()
    {
        plan_.coordinator = free_pid();
        plan_.spare = free_pid();
        for (size_t i = 0; i < tree_.processes.size(); i++)
            place(i);
        for (const ProcessImage &process : tree_.processes)
            if (!of_init(process.group) && !births_.contains(process.group))
                lend_group(process);
        check_adopted();
        return std::move(plan_);
    }

private:
    // Sessions and groups of init have no number of their own inside the sandbox.
    static bool of_init(pid_t id) { return id == 0 || id == kInit; }

    pid_t free_pid()
    {
        pid_t pid = *used_.rbegin() + 1;
        used_.insert(pid);
        return pid;
    }

    Birth &add(std::vector<std::unique_ptr<Birth>> &siblings, pid_t pid, pid_t session)
    {
        siblings.push_back(std::make_unique<Birth>());
        Birth &birth = *siblings.back();
        for (const auto &[unused, other] : births_)
            if (&other->before_session == &siblings || &other->after_session == &siblings)
                birth.creator = other;
        birth.pid = pid;
        births_[pid] = &birth;
        sessions_[pid] = session;
        plan_.births++;
        return birth;
    }

    // The process that lends its session: its leader, or a helper in the leader's place.
    Birth &session_leader(pid_t session, std::vector<std::unique_ptr<Birth>> &place_of_helper)
    {
        auto known = births_.find(session);
        if (known != births_.end())
            return *known->second;
        Birth &helper = add(place_of_helper, session, session);
        helper.leads_session = true;
        return helper;
    }

    // Among the children of a helper, whose end makes an orphan of the process.
    std::vector<std::unique_ptr<Birth>> &place_of_orphan(const ProcessImage &process, Birth *reaper)
    {
        Birth &leader = session_leader(process.session,
                                       reaper ? reaper->after_session : plan_.first);
        leader.late = !leader.process;
        Birth &carrier = add(leader.after_session, free_pid(), process.session);
        if (reaper) {
            reaper->adopts = carrier.late = plan_.adoptions = true;
            adopted_.push_back({&carrier, reaper, &process});
        }
        return carrier.after_session;
    }

    std::vector<std::unique_ptr<Birth>> &place_of(const ProcessImage &process, Birth &parent)
    {
        if (process.session == process.pid || process.session == sessions_.at(process.parent))
            return parent.after_session;
        if (parent.leads_session && process.session == birth_session(process.parent))
            return parent.before_session;
        return place_of_orphan(process, &parent);
    }

    void place(size_t index)
    {
        const ProcessImage &process = tree_.processes[index];
        bool own_session = process.session == process.pid;
        Birth *sibling = sharing_sibling(index);
        bool for_init = !sibling && process.parent == kInit &&
                        (own_session || of_init(process.session));
        std::vector<std::unique_ptr<Birth>> &siblings =
            sibling                     ? beside(*sibling, process)
            : for_init                  ? plan_.first
            : process.parent == kInit   ? place_of_orphan(process, nullptr)
                                        : place_of(process, *births_.at(process.parent));
        Birth &birth = add(siblings, process.pid, process.session);
        birth.process = index;
        birth.by_sibling = sibling != nullptr;
        birth.shares = shared_flags(process, index);
        birth.child_of_init = for_init;
        birth.leads_session = own_session;
        birth.leads_group = !own_session && process.group == process.pid;
    }

    // Which tables a process gets from its creator.
    static uint64_t shared_flags(const ProcessImage &process, size_t index)
    {
        static constexpr uint64_t flags[kTables] = {CLONE_VM, CLONE_SIGHAND, CLONE_FILES, CLONE_FS,
                                                    CLONE_SYSVSEM};
        uint64_t found = 0;
        for (Table table : kAllTables)
            if (!process.stands_for(table, static_cast<uint32_t>(index)))
                found |= flags[static_cast<size_t>(table)];
        return found;
    }

    static bool shares_all(const ProcessImage &process, size_t index, const ProcessImage &other)
    {
        return std::all_of(kAllTables.begin(), kAllTables.end(), [&](Table table) {
            size_t column = static_cast<size_t>(table);
            return process.stands_for(table, static_cast<uint32_t>(index)) ||
                   process.shared_with[column] == other.shared_with[column];
        });
    }

    // Null: the parent will do, or nothing is shared.
    Birth *sharing_sibling(size_t index)
    {
        const ProcessImage &process = tree_.processes[index];
        if (shared_flags(process, index) == 0)
            return nullptr;
        for (const ProcessImage &other : tree_.processes)
            if (other.pid == process.parent && shares_all(process, index, other))
                return nullptr;
        for (size_t i = 0; i < index; i++)
            if (tree_.processes[i].parent == process.parent &&
                shares_all(process, index, tree_.processes[i]))
                return births_.at(tree_.processes[i].pid);
        throw Refused(name_of(process), "its tables",
                      "it shares them with neither its parent nor a sibling");
    }

    // Where a sibling creates it: in the sibling's session, or in the one that had before.
    std::vector<std::unique_ptr<Birth>> &beside(Birth &sibling, const ProcessImage &process)
    {
        if (process.session == process.pid || process.session == sessions_.at(sibling.pid))
            return sibling.after_session;
        if (sibling.leads_session && process.session == birth_session(sibling.pid))
            return sibling.before_session;
        throw Refused(name_of(process), "session " + std::to_string(process.session),
                      "it shares tables with a process of another session");
    }

    // An orphan goes to the next subreaper above, which must be the one that has it.
    void check_adopted() const
    {
        for (const Orphan &orphan : adopted_) {
            const Birth *reaper = orphan.carrier;
            do
                reaper = parent_of(*reaper);
            while (reaper && !reaper->adopts);
            if (reaper != orphan.reaper)
                throw Refused(name_of(*orphan.process),
                              "session " + std::to_string(orphan.process->session),
                              "its parent has neither this session nor was born in it");
        }
    }

    // None: init, or the coordinator.
    static const Birth *parent_of(const Birth &birth)
    {
        return birth.by_sibling ? parent_of(*birth.creator) : birth.creator;
    }

    static std::string name_of(const ProcessImage &process)
    {
        return "process " + std::to_string(process.pid);
    }

    // The session that a process had when it was born: that of its parent.
    pid_t birth_session(pid_t pid)
    {
        for (const ProcessImage &process : tree_.processes)
            if (process.pid == pid)
                return process.parent == kInit ? 0 : sessions_.at(process.parent);
        return 0;
    }

    void lend_group(const ProcessImage &process)
    {
        std::vector<std::unique_ptr<Birth>> &siblings =
            of_init(process.session) ? plan_.first
                                     : session_leader(process.session, plan_.first).after_session;
        add(siblings, process.group, process.session).leads_group = true;
    }

    struct Orphan {
        const Birth *carrier, *reaper;
        const ProcessImage *process;
    };

    const TreeImage &tree_;
    CreationPlan plan_;
    std::vector<Orphan> adopted_;
    std::set<pid_t> used_ = {kInit};
    std::map<pid_t, Birth *> births_;
    std::map<pid_t, pid_t> sessions_;
};

}  // namespace

CreationPlan plan_creation(const TreeImage &tree)
{
    return Planner(tree).plan();
}

}  // namespace venus
