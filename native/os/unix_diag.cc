#include "os/unix_diag.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>

#include <vector>

#include "os/checked.h"
#include "os/fd.h"
#include "os/proc.h"

namespace venus {
namespace {

constexpr int kShutdownAttribute = 6;  // UNIX_DIAG_SHUTDOWN
constexpr uint32_t kAllStates = ~0u;

UnixSocketState parse(const unix_diag_msg *message, size_t bytes)
{
    UnixSocketState found{};
    found.state = message->udiag_state;
    auto *attribute = reinterpret_cast<const nlattr *>(message + 1);
    size_t left = bytes - sizeof *message;
    while (left >= sizeof *attribute && attribute->nla_len >= sizeof *attribute &&
           attribute->nla_len <= left) {
        const void *value = attribute + 1;
        if (attribute->nla_type == UNIX_DIAG_PEER) {
            uint32_t inode;
            memcpy(&inode, value, sizeof inode);
            found.peer = inode;
        } else if (attribute->nla_type == UNIX_DIAG_RQLEN) {
            unix_diag_rqlen lengths;
            memcpy(&lengths, value, sizeof lengths);
            found.read_queue = lengths.udiag_rqueue;
            (found.state == TCP_LISTEN ? found.backlog : found.unread) = lengths.udiag_wqueue;
        } else if (attribute->nla_type == UNIX_DIAG_ICONS) {
            std::vector<uint32_t> inodes((attribute->nla_len - sizeof *attribute) /
                                         sizeof(uint32_t));
            memcpy(inodes.data(), value, inodes.size() * sizeof inodes[0]);
            found.waiting.assign(inodes.begin(), inodes.end());
        } else if (attribute->nla_type == kShutdownAttribute) {
            found.shutdown = *static_cast<const uint8_t *>(value);
        }
        size_t step = (attribute->nla_len + 3u) & ~size_t{3};
        if (step >= left)
            break;
        left -= step;
        attribute = reinterpret_cast<const nlattr *>(reinterpret_cast<const char *>(attribute) + step);
    }
    return found;
}

}  // namespace

void enter_network_namespace(int pid)
{
    std::string path = proc::path(pid, "ns/net");
    os::UniqueFd fd(checked(open(path.c_str(), O_RDONLY | O_CLOEXEC), "open", path));
    checked(setns(fd.get(), CLONE_NEWNET), "enter", path);
}

std::map<uint64_t, UnixSocketState> list_unix_sockets()
{
    os::UniqueFd fd(checked(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG),
                            "create", "diagnosis socket"));
    struct {
        nlmsghdr header;
        unix_diag_req request;
    } query{};
    query.header.nlmsg_len = sizeof query;
    query.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    query.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    query.request.sdiag_family = AF_UNIX;
    query.request.udiag_states = kAllStates;
    query.request.udiag_show = UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN | UDIAG_SHOW_ICONS;
    checked(send(fd.get(), &query, sizeof query, 0), "query", "Unix sockets");
    std::map<uint64_t, UnixSocketState> found;
    std::vector<char> buffer(65536);
    for (;;) {
        auto size = static_cast<size_t>(
            checked(recv(fd.get(), buffer.data(), buffer.size(), 0), "list", "Unix sockets"));
        auto *header = reinterpret_cast<nlmsghdr *>(buffer.data());
        for (; NLMSG_OK(header, size); header = NLMSG_NEXT(header, size)) {
            if (header->nlmsg_type == NLMSG_DONE)
                return found;
            if (header->nlmsg_type == NLMSG_ERROR)
                throw os::Error("list", "Unix sockets", EIO);
            auto *message = static_cast<const unix_diag_msg *>(NLMSG_DATA(header));
            found[message->udiag_ino] =
                parse(message, header->nlmsg_len - NLMSG_LENGTH(0));
        }
    }
}

}  // namespace venus
