// Files of memory file systems, made again in every fork.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

// pre: no descriptor below the objects is open, umask is 0.
void add_file_ops(const ProcessPlanContext &context, OpList &ops);
// Gives the file at descriptor 0 its size and content.
void add_content_ops(const ProcessPlanContext &context, const std::string &object, uint64_t size,
                     const std::vector<ExtentPiece> &content, OpList &ops);

}  // namespace venus
