// Who creates whom.
#include <sched.h>

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
    const Birth &leader = *plan.first[0];
    CHECK(leader.leads_session && leader.late && leader.after_session.size() == 2);
    const Birth &carrier = *leader.after_session[0];
    CHECK(!carrier.process && !carrier.late && carrier.after_session.at(0)->pid == 8);
    CHECK(leader.after_session[1]->pid == 4 && leader.after_session[1]->leads_group);
    CHECK(plan.coordinator > 8);
}

bool is_refused(const TreeImage &image, const std::string &process)
{
    try {
        plan_creation(image);
    } catch (const Refused &failure) {
        return failure.process() == process;
    }
    return false;
}

void test_impossible_session_is_refused()
{
    CHECK(is_refused(tree({process(5, 1, 5, 5), process(6, 1, 6, 6), process(7, 6, 5, 5)}),
                     "process 7"));
}

void test_adopted_orphan_comes_through_its_session()
{
    // 6 is the child of 5 and leads a session, whose process 8 was adopted by 5.
    CreationPlan plan =
        plan_creation(tree({process(5, 1, 5, 5), process(6, 5, 6, 6), process(8, 5, 6, 6)}));
    CHECK(plan.adoptions && plan.first[0]->adopts);
    const Birth &leader = *plan.first[0]->after_session.at(0);
    const Birth &carrier = *leader.after_session.at(0);
    CHECK(leader.pid == 6 && carrier.late && carrier.after_session.at(0)->pid == 8);
    // The leader is gone: a helper below the one that has adopted stands in for it.
    plan = plan_creation(tree({process(5, 1, 5, 5), process(8, 5, 7, 7)}));
    const Birth &helper = *plan.first[0]->after_session.at(0);
    CHECK(helper.pid == 7 && !helper.process && helper.late && helper.leads_session);
}

void test_shared_tables_come_from_parent_or_sibling()
{
    constexpr size_t kFiles = static_cast<size_t>(Table::kDescriptors);
    TreeImage image = tree({process(5, 1, 5, 5), process(6, 5, 5, 5), process(7, 5, 5, 5)});
    image.processes[0].shared_with[kFiles] = image.processes[1].shared_with[kFiles] = 0;
    CreationPlan plan = plan_creation(image);
    CHECK(plan.first[0]->shares == 0 && plan.first[0]->after_session.at(0)->shares == CLONE_FILES);
    CHECK(!plan.first[0]->after_session[0]->by_sibling && plan.first[0]->after_session[1]->shares == 0);
    // Without the parent.
    image.processes[0].shared_with[kFiles] = kNoObject;
    image.processes[1].shared_with[kFiles] = image.processes[2].shared_with[kFiles] = 1;
    plan = plan_creation(image);
    const Birth &first = *plan.first[0]->after_session.at(0);
    CHECK(first.pid == 6 && first.shares == 0 && first.after_session.at(0)->pid == 7);
    CHECK(first.after_session[0]->by_sibling && first.after_session[0]->shares == CLONE_FILES);
    // With a grandchild alone.
    image.processes[2].parent = 6;
    image.processes[0].shared_with[kFiles] = image.processes[2].shared_with[kFiles] = 0;
    image.processes[1].shared_with[kFiles] = kNoObject;
    CHECK(is_refused(image, "process 7"));
}

}  // namespace

int main()
{
    test_child_stays_in_the_session_its_parent_has_left();
    test_orphan_is_carried_into_its_session();
    test_lost_leaders_are_stood_in_for();
    test_impossible_session_is_refused();
    test_adopted_orphan_comes_through_its_session();
    test_shared_tables_come_from_parent_or_sibling();
    return 0;
}
