// What is left in a fork of the plan that made it, as the next capture sees it.
//
// A thread that sleeps for what remained of a sleep stands there. In a fork of the fork it enters the
// call again from its program, as if no plan had been between; so a process has one plan's memory,
// however often it was forked.
#pragma once

#include "capture/areas.h"
#include "capture/object_table.h"
#include "capture/stopped_tree.h"

namespace venus {

bool is_plan(const Area &area, const std::vector<FileIdentity> &plans);
// `areas`: of the process.
void find_plan_remains(StoppedProcess &process, const std::vector<Area> &areas,
                       const std::vector<FileIdentity> &plans);
// Takes the thread out of the plan, where that can be said.
void leave_plan(StoppedProcess &process, ThreadImage &image);
// Nothing of it is needed any more in an address space: no thread stands in it, or may come back.
// pre: leave_plan() of all threads.
bool is_plan_left_behind(const StoppedTree &tree, const TreeImage &image, uint32_t holder);

}  // namespace venus
