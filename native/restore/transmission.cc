#include "restore/transmission.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "os/error.h"
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

bool release_tree(int shared_page)
{
    void *page = mmap(nullptr, sizeof(vr_shared), PROT_READ | PROT_WRITE, MAP_SHARED, shared_page, 0);
    if (page == MAP_FAILED)
        throw os::Error("map", "shared page", errno);
    auto *shared = static_cast<vr_shared *>(page);
    bool complete = __atomic_load_n(&shared->complete, __ATOMIC_SEQ_CST) != 0;
    uint32_t *barrier = &shared->barrier[VR_RELEASE_BARRIER];
    __atomic_add_fetch(barrier, 1, __ATOMIC_SEQ_CST);
    long woken = syscall(SYS_futex, barrier, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    int error = errno;
    munmap(page, sizeof(vr_shared));
    if (woken < 0)
        throw os::Error("release", "restored tree", error);
    return complete;
}

}  // namespace venus
