#include "capture/socket_options.h"

#include <linux/in.h>
#include <linux/in6.h>
#include <linux/udp.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <algorithm>

namespace venus {
namespace {

constexpr int kBufferLocks = 72, kPassPidfd = 76, kPassRights = 83;  // SO_BUF_LOCK, ...
constexpr int kTcpInfoQueue = 36, kTcpDelay = 37;                     // TCP_INQ, TCP_TX_DELAY
constexpr size_t kLargestOption = 16;
constexpr int kBuffers[] = {SO_SNDBUF, SO_RCVBUF, kBufferLocks};

struct KnownOptions {
    int level;
    std::vector<int> names;
};

// Buffers first: the lock of their sizes is what setting them sets.
const KnownOptions kGeneral = {
    SOL_SOCKET,
    {SO_SNDBUF,     SO_RCVBUF,    kBufferLocks,   SO_REUSEADDR,    SO_REUSEPORT,   SO_KEEPALIVE,
     SO_BROADCAST,  SO_OOBINLINE, SO_LINGER,      SO_PRIORITY,     SO_MARK,        SO_RCVTIMEO,
     SO_SNDTIMEO,   SO_RCVLOWAT,  SO_TIMESTAMP,   SO_TIMESTAMPNS,  SO_TIMESTAMPING, SO_DONTROUTE,
     SO_NO_CHECK,   SO_RXQ_OVFL,  SO_ZEROCOPY,    SO_BINDTODEVICE, SO_PASSCRED,    SO_PASSSEC,
     kPassPidfd,    kPassRights,  SO_PEEK_OFF}};
const KnownOptions kInternet = {
    IPPROTO_IP,
    {IP_TOS, IP_TTL, IP_RECVOPTS, IP_RETOPTS, IP_PKTINFO, IP_MTU_DISCOVER, IP_RECVERR, IP_RECVTTL,
     IP_RECVTOS, IP_FREEBIND, IP_TRANSPARENT, IP_RECVORIGDSTADDR, IP_MINTTL, IP_NODEFRAG,
     IP_CHECKSUM, IP_BIND_ADDRESS_NO_PORT, IP_RECVFRAGSIZE, IP_LOCAL_PORT_RANGE}};
// Those of datagrams alone: connections refuse them.
const KnownOptions kMulticast = {
    IPPROTO_IP, {IP_MULTICAST_TTL, IP_MULTICAST_LOOP, IP_MULTICAST_IF, IP_MULTICAST_ALL}};
const KnownOptions kInternet6 = {
    IPPROTO_IPV6,
    {IPV6_V6ONLY, IPV6_FREEBIND, IPV6_TRANSPARENT, IPV6_UNICAST_HOPS, IPV6_MTU_DISCOVER, IPV6_RECVERR,
     IPV6_RECVPKTINFO, IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS, IPV6_TCLASS, IPV6_DONTFRAG,
     IPV6_RECVORIGDSTADDR, IPV6_MINHOPCOUNT, IPV6_ADDR_PREFERENCES, IPV6_AUTOFLOWLABEL}};
const KnownOptions kMulticast6 = {
    IPPROTO_IPV6,
    {IPV6_MULTICAST_IF, IPV6_MULTICAST_HOPS, IPV6_MULTICAST_LOOP, IPV6_MULTICAST_ALL}};
const KnownOptions kTcp = {
    IPPROTO_TCP,
    {TCP_NODELAY, TCP_CORK, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_SYNCNT, TCP_LINGER2,
     TCP_DEFER_ACCEPT, TCP_CONGESTION, TCP_THIN_LINEAR_TIMEOUTS, TCP_THIN_DUPACK, TCP_USER_TIMEOUT,
     TCP_FASTOPEN, TCP_NOTSENT_LOWAT, TCP_SAVE_SYN, TCP_FASTOPEN_CONNECT, kTcpInfoQueue,
     kTcpDelay}};
const KnownOptions kUdp = {IPPROTO_UDP, {UDP_CORK, UDP_SEGMENT, UDP_GRO}};

// Empty when sockets of this kind do not have the option.
Bytes value_of(int file, int level, int name)
{
    Bytes value(kLargestOption);
    auto size = static_cast<socklen_t>(value.size());
    if (getsockopt(file, level, name, value.data(), &size) < 0)
        return {};
    value.resize(size);
    return value;
}

bool is_for_unconnected(int level, int name)
{
    if (level == IPPROTO_TCP)
        return name == TCP_FASTOPEN_CONNECT || name == TCP_FASTOPEN;
    if (level == IPPROTO_IPV6)
        return name == IPV6_V6ONLY;  // follows from the address
    return level == SOL_SOCKET &&
           std::find(std::begin(kBuffers), std::end(kBuffers), name) != std::end(kBuffers);
}

}  // namespace

void refuse_packet_filter(const SeenFile &seen)
{
    socklen_t instructions = 0;
    if (getsockopt(seen.file, SOL_SOCKET, SO_GET_FILTER, nullptr, &instructions) < 0 ||
        instructions != 0)
        seen.refuse("a packet filter is attached to it");
}

std::vector<SocketOption> differing_options(const SeenFile &seen, int family, int type,
                                            int protocol, bool connected)
{
    refuse_packet_filter(seen);
    os::UniqueFd fresh(checked(socket(family, type | SOCK_CLOEXEC, protocol), "create",
                               "a socket like " + seen.describe()));
    std::vector<const KnownOptions *> known = {&kGeneral};
    if (family != AF_UNIX)
        known.push_back(&kInternet);
    if (family == AF_INET6)
        known.push_back(&kInternet6);
    if (family != AF_UNIX && type == SOCK_STREAM)
        known.push_back(&kTcp);
    if (family != AF_UNIX && type == SOCK_DGRAM)
        known.insert(known.end(), {&kUdp, &kMulticast});
    if (family == AF_INET6 && type == SOCK_DGRAM)
        known.push_back(&kMulticast6);
    std::vector<SocketOption> found;
    for (const KnownOptions *options : known)
        for (int name : options->names) {
            if (connected && is_for_unconnected(options->level, name))
                continue;
            Bytes value = value_of(seen.file, options->level, name);
            if (!value.empty() && value != value_of(fresh.get(), options->level, name))
                found.push_back({options->level, name, std::move(value)});
        }
    return found;
}

PeekFromStart::PeekFromStart(const SeenFile &seen)
    : file_(seen.file), previous_(socket_option<int>(seen, SOL_SOCKET, SO_PEEK_OFF))
{
    int start = 0;
    checked(setsockopt(file_, SOL_SOCKET, SO_PEEK_OFF, &start, sizeof start), "peek at",
            seen.describe());
}

PeekFromStart::~PeekFromStart()
{
    setsockopt(file_, SOL_SOCKET, SO_PEEK_OFF, &previous_, sizeof previous_);
}

}  // namespace venus
