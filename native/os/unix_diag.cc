#include "os/unix_diag.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "os/checked.h"
#include "os/fd.h"
#include "os/proc.h"

namespace venus {
namespace {

constexpr int kShutdownAttribute = 6;  // UNIX_DIAG_SHUTDOWN
constexpr uint32_t kAllStates = ~0u;

// What follows the head of an attribute, as far as it is there.
template <typename Value>
Value value_of(const nlattr &head, const uint8_t *value)
{
    Value found{};
    memcpy(&found, value, std::min(sizeof found, head.nla_len - sizeof head));
    return found;
}

}  // namespace

UnixSocketState parse_unix_socket(const uint8_t *bytes, size_t size)
{
    UnixSocketState found{};
    unix_diag_msg message{};
    memcpy(&message, bytes, std::min(sizeof message, size));
    found.state = message.udiag_state;
    found.inode = message.udiag_ino;
    for (size_t at = sizeof message; at + sizeof(nlattr) <= size;) {
        nlattr head;
        memcpy(&head, bytes + at, sizeof head);
        if (head.nla_len < sizeof head || head.nla_len > size - at)
            break;
        const uint8_t *value = bytes + at + sizeof head;
        if (head.nla_type == UNIX_DIAG_PEER) {
            found.peer = value_of<uint32_t>(head, value);
        } else if (head.nla_type == UNIX_DIAG_RQLEN) {
            auto lengths = value_of<unix_diag_rqlen>(head, value);
            found.read_queue = lengths.udiag_rqueue;
            (found.state == TCP_LISTEN ? found.backlog : found.unread) = lengths.udiag_wqueue;
        } else if (head.nla_type == UNIX_DIAG_ICONS) {
            for (size_t i = sizeof head; i + sizeof(uint32_t) <= head.nla_len; i += sizeof(uint32_t)) {
                uint32_t inode;
                memcpy(&inode, bytes + at + i, sizeof inode);
                found.waiting.push_back(inode);
            }
        } else if (head.nla_type == kShutdownAttribute) {
            found.shutdown = value_of<uint8_t>(head, value);
        }
        at += NLA_ALIGN(head.nla_len);
    }
    return found;
}

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
            UnixSocketState state = parse_unix_socket(
                static_cast<const uint8_t *>(NLMSG_DATA(header)), header->nlmsg_len - NLMSG_LENGTH(0));
            uint64_t inode = state.inode;
            found[inode] = std::move(state);
        }
    }
}

}  // namespace venus
