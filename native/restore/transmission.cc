#include "restore/transmission.h"

#include <algorithm>
#include <string_view>

#include "os/fd.h"
#include "venus_restore_format.h"

namespace venus {
namespace {

constexpr const char *kPlan = "restore plan";

template <typename Packet>
std::string_view bytes_of(const Packet &packet)
{
    return {reinterpret_cast<const char *>(&packet), sizeof packet};
}

}  // namespace

void send_plan(const RestorePlan &plan, int socket, const std::vector<int> &descriptors)
{
    vr_start start{};
    start.magic = VR_MAGIC;
    start.version = VR_VERSION;
    start.base = plan.base;
    start.plan_bytes = plan.bytes.size();
    start.entry = plan.entry;
    start.first_fd = static_cast<uint32_t>(plan.first_descriptor);
    start.fd_count = static_cast<uint32_t>(descriptors.size());
    os::send_with_fds(socket, bytes_of(start), nullptr, 0, kPlan);
    for (size_t at = 0; at < descriptors.size(); at += VR_START_BATCH) {
        auto index = static_cast<uint32_t>(at);
        size_t count = std::min<size_t>(VR_START_BATCH, descriptors.size() - at);
        os::send_with_fds(socket, bytes_of(index), descriptors.data() + at, count, kPlan);
    }
}

}  // namespace venus
