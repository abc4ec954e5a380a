// Descriptors that own themselves, and the plain operations on them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// Descriptors travel with bytes of a Unix socket, so many at once at most.
inline constexpr std::size_t kMaxFdsAtOnce = 64;
void send_with_fds(int socket, std::string_view bytes, const int* fds, std::size_t count,
                   const std::string& object);
// One recvmsg; the number of bytes, 0 at the end. Adds what comes to `fds`.
std::size_t receive_with_fds(int socket, void* bytes, std::size_t size,
                             std::vector<UniqueFd>& fds, const std::string& object);

UniqueFd open_path(const std::string& path, int flags);
UniqueFd open_at(int directory, const char* name, int flags);
// One read; the number of bytes, 0 at the end.
std::size_t read_some(int fd, void* bytes, std::size_t size);
void write_whole(int fd, std::string_view bytes, const std::string& object);

}  // namespace venus::os
