#include "os/fd.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "os/error.h"

namespace venus::os {

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) fail("pipe2", "pipe");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

SocketPair make_socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
    fail("socketpair", "AF_UNIX");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void send_with_fds(int socket, std::string_view bytes, const int* fds, std::size_t count,
                   const std::string& object) {
  iovec vector{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFdsAtOnce * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds, count * sizeof(int));
  }
  ssize_t sent;
  do sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  if (sent < 0) fail("send", object);
}

std::size_t receive_with_fds(int socket, void* bytes, std::size_t size,
                             std::vector<UniqueFd>& fds, const std::string& object) {
  iovec vector{bytes, size};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFdsAtOnce * sizeof(int))];
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got;
  do got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got < 0) fail("receive", object);
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; at < each->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(each) + at, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  if (message.msg_flags & MSG_CTRUNC) throw Error("receive descriptors from", object, EMFILE);
  return static_cast<std::size_t>(got);
}

UniqueFd open_path(const std::string& path, int flags) {
  return open_at(AT_FDCWD, path.c_str(), flags);
}

UniqueFd open_at(int directory, const char* name, int flags) {
  int fd = ::openat(directory, name, flags | O_CLOEXEC);
  if (fd < 0) fail("open", name);
  return UniqueFd(fd);
}

std::size_t read_some(int fd, void* bytes, std::size_t size) {
  for (;;) {
    ssize_t got = ::read(fd, bytes, size);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) fail("read", "descriptor " + std::to_string(fd));
  }
}

void write_whole(int fd, std::string_view bytes, const std::string& object) {
  // One write: the kernel files written here take their text whole or not at all.
  ssize_t written = ::write(fd, bytes.data(), bytes.size());
  if (written < 0) fail("write", object);
  if (static_cast<size_t>(written) != bytes.size()) throw Error("write", object, EIO);
}

}  // namespace venus::os
