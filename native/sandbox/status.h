// What sandbox-init reports once, through its status pipe.
#pragma once

#include <chrono>

namespace venus::sandbox {

// Returns when init has said READY; throws os::Error otherwise, with op_index set if an operation of
// the plan failed.
void wait_ready(int status_fd, int pidfd, std::chrono::steady_clock::time_point deadline);

}  // namespace venus::sandbox
