#include "restore/creation.h"

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
        for (size_t i = 0; i < tree_.processes.size(); i++)
            place(i);
        for (const ProcessImage &process : tree_.processes)
            if (!of_init(process.group) && !births_.contains(process.group))
                lend_group(process);
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
        birth.pid = pid;
        births_[pid] = &birth;
        sessions_[pid] = session;
        plan_.births++;
        return birth;
    }

    // The process that lends its session: its leader, or a helper in the leader's place.
    Birth &session_leader(pid_t session)
    {
        auto known = births_.find(session);
        if (known != births_.end())
            return *known->second;
        Birth &helper = add(plan_.first, session, session);
        helper.leads_session = true;
        return helper;
    }

    void place(size_t index)
    {
        const ProcessImage &process = tree_.processes[index];
        bool own_session = process.session == process.pid;
        std::vector<std::unique_ptr<Birth>> *siblings = nullptr;
        bool for_init = false;
        if (process.parent == kInit) {
            if (own_session || of_init(process.session)) {
                siblings = &plan_.first;
                for_init = true;
            } else {
                Birth &leader = session_leader(process.session);
                // A helper that leads the session may itself be the creator: it ends anyway.
                if (leader.process) {
                    Birth &carrier = add(leader.after_session, free_pid(), process.session);
                    siblings = &carrier.after_session;
                } else {
                    siblings = &leader.after_session;
                }
            }
        } else {
            Birth &parent = *births_.at(process.parent);
            pid_t parent_session = sessions_.at(process.parent);
            if (own_session || process.session == parent_session)
                siblings = &parent.after_session;
            else if (parent.leads_session && process.session == birth_session(process.parent))
                siblings = &parent.before_session;
            else
                throw Refused("process " + std::to_string(process.pid),
                              "session " + std::to_string(process.session),
                              "its parent has neither this session nor was born in it");
        }
        Birth &birth = add(*siblings, process.pid, process.session);
        birth.process = index;
        birth.child_of_init = for_init;
        birth.leads_session = own_session;
        birth.leads_group = !own_session && process.group == process.pid;
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
                                     : session_leader(process.session).after_session;
        add(siblings, process.group, process.session).leads_group = true;
    }

    const TreeImage &tree_;
    CreationPlan plan_;
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
