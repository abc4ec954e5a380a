#include "os/write_protection.h"

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include "os/error.h"

namespace venus::os {
namespace {

constexpr std::uint64_t kAsynchronous = 1 << 15;  // UFFD_FEATURE_WP_ASYNC, since 6.7

}  // namespace

WriteProtection::WriteProtection(UniqueFd fd) : fd_(std::move(fd)) {
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kAsynchronous;
  if (ioctl(fd_.get(), UFFDIO_API, &api) < 0) fail("set up", "userfaultfd");
}

bool WriteProtection::cover(PageRun area) const {
  uffdio_register request{};
  request.range = {area.start, area.size()};
  request.mode = UFFDIO_REGISTER_MODE_WP;
  return ioctl(fd_.get(), UFFDIO_REGISTER, &request) == 0;
}

}  // namespace venus::os
