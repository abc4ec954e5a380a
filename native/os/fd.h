// Descriptors that own themselves, and the plain operations on them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace venus::os {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

struct SocketPair {
  UniqueFd first;
  UniqueFd second;
};

Pipe make_pipe();
SocketPair make_socket_pair();  // AF_UNIX SOCK_SEQPACKET
void send_with_fd(int socket, char byte, int fd, const std::string& object);
UniqueFd open_path(const std::string& path, int flags);
UniqueFd open_at(int directory, const char* name, int flags);
// One read; the number of bytes, 0 at the end.
std::size_t read_some(int fd, void* bytes, std::size_t size);
void write_whole(int fd, std::string_view bytes, const std::string& object);

}  // namespace venus::os
