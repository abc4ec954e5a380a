// Who creates whom.
#include "check.h"
#include "restore/creation.h"
#include "restore/refused.h"

namespace {

using namespace venus;

ProcessImage process(pid_t pid, pid_t parent, pid_t group, pid_t session)
{
    ProcessImage image{};
    image.pid = pid;
    image.parent = parent;
    image.group = group;
    image.session = session;
    return image;
}

TreeImage tree(std::vector<ProcessImage> processes)
{
    TreeImage image;
    image.processes = std::move(processes);
    return image;
}

void test_child_stays_in_the_session_its_parent_has_left()
{
    CreationPlan plan =
        plan_creation(tree({process(5, 1, 5, 5), process(6, 5, 6, 6), process(7, 6, 5, 5)}));
    CHECK(plan.births == 3 && plan.first.size() == 1 && plan.first[0]->leads_session);
    const Birth &second = *plan.first[0]->after_session.at(0);
    CHECK(second.leads_session && second.before_session.size() == 1);
    CHECK(second.before_session[0]->pid == 7 && second.after_session.empty());
}

void test_orphan_is_carried_into_its_session()
{
    CreationPlan plan = plan_creation(tree({process(5, 1, 5, 5), process(8, 1, 5, 5)}));
    CHECK(plan.births == 3);
    const Birth &carrier = *plan.first[0]->after_session.at(0);
    CHECK(!carrier.process && carrier.after_session.at(0)->pid == 8);
    CHECK(!carrier.after_session[0]->child_of_init);
}

void test_lost_leaders_are_stood_in_for()
{
    CreationPlan plan = plan_creation(tree({process(8, 1, 4, 3)}));
    CHECK(plan.first.size() == 1 && plan.first[0]->pid == 3 && !plan.first[0]->process);
    CHECK(plan.first[0]->leads_session && plan.first[0]->after_session.size() == 2);
    CHECK(plan.first[0]->after_session[1]->pid == 4 && plan.first[0]->after_session[1]->leads_group);
    CHECK(plan.coordinator > 8);
}

void test_impossible_session_is_refused()
{
    bool refused = false;
    try {
        plan_creation(tree({process(5, 1, 5, 5), process(6, 1, 6, 6), process(7, 6, 5, 5)}));
    } catch (const Refused &failure) {
        refused = failure.process() == "process 7";
    }
    CHECK(refused);
}

}  // namespace

int main()
{
    test_child_stays_in_the_session_its_parent_has_left();
    test_orphan_is_carried_into_its_session();
    test_lost_leaders_are_stood_in_for();
    test_impossible_session_is_refused();
    return 0;
}
