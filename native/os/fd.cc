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

void send_with_fd(int socket, char byte, int fd, const std::string& object) {
  iovec vector{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0) fail("sendmsg", object);
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
