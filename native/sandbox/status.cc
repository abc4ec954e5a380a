#include "sandbox/status.h"

#include <string>

#include "os/error.h"
#include "os/process.h"
#include "venus_init_protocol.h"

namespace venus::sandbox {

void wait_ready(int status_fd, int pidfd, std::chrono::steady_clock::time_point deadline) {
  switch (os::wait_readable(status_fd, pidfd, deadline)) {
    case os::WaitOutcome::timed_out:
      throw os::Error("wait for", "READY of sandbox-init", ETIMEDOUT);
    case os::WaitOutcome::exited:
      throw os::Error("wait for", "READY of sandbox-init, which died", ECHILD);
    case os::WaitOutcome::readable:
      break;
  }
  venus_status status{};
  if (os::read_some(status_fd, &status, sizeof status) != sizeof status ||
      status.magic != VENUS_STATUS_MAGIC)
    throw os::Error("read", "status of sandbox-init, which died", ECHILD);
  if (status.kind == VENUS_STATUS_READY) return;

  unsigned op_index = status.op_index;
  std::string index = std::to_string(op_index);
  switch (status.kind) {
    case VENUS_STATUS_OP_FAILED: {
      os::Error error("run", "operation " + index + " of the setup plan", status.error);
      error.op_index = op_index;
      throw error;
    }
    case VENUS_STATUS_PLAN_INVALID:
      throw os::Error("read", "setup plan at operation " + index, status.error);
    default:
      throw os::Error("start", "sandbox-init", status.error);
  }
}

}  // namespace venus::sandbox
