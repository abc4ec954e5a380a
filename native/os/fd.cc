#include "os/fd.h"

#include <fcntl.h>
#include <unistd.h>

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
