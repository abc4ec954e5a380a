#include "restore/transmission.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "os/error.h"
#include "venus_restore_format.h"

namespace venus {
namespace {

void send_packet(int socket, const void *bytes, size_t size, const int *fds, size_t count)
{
    union {
        cmsghdr align;
        char bytes[CMSG_SPACE(VR_START_BATCH * sizeof(int))];
    } ancillary{};
    iovec vector = {const_cast<void *>(bytes), size};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    if (count > 0) {
        message.msg_control = &ancillary;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, count * sizeof(int));
    }
    ssize_t sent;
    do
        sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0)
        throw os::Error("send", "restore plan", errno);
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
    send_packet(socket, &start, sizeof start, nullptr, 0);
    for (size_t at = 0; at < descriptors.size(); at += VR_START_BATCH) {
        auto index = static_cast<uint32_t>(at);
        size_t count = std::min<size_t>(VR_START_BATCH, descriptors.size() - at);
        send_packet(socket, &index, sizeof index, descriptors.data() + at, count);
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
