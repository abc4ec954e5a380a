// userfaultfd in its asynchronous write-protect mode: the kernel itself lifts the protection of a page
// when it is written, and PAGEMAP_SCAN tells which pages that happened to.  Nobody serves faults; when
// the descriptor is closed, everything is as if it had never been there.
#pragma once

#include "memory/page_runs.h"
#include "os/fd.h"

namespace venus::os {

class WriteProtection {
 public:
  WriteProtection() = default;
  // `fd`: a userfaultfd that was made inside the process.
  explicit WriteProtection(UniqueFd fd);

  explicit operator bool() const { return static_cast<bool>(fd_); }
  // Lets the area, which is one mapping, be protected. False: it is of a kind that cannot, belongs to
  // another userfaultfd, or the process has another address space since it called execve.
  bool cover(PageRun area) const;

 private:
  UniqueFd fd_;
};

}  // namespace venus::os
