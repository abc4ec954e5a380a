// The raw layer: descriptors that close themselves, errors that say what failed, children that do
// not outlive their owner, and the one report of sandbox-init.
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "check.h"
#include "os/error.h"
#include "os/fd.h"
#include "os/pid_namespace.h"
#include "os/process.h"
#include "sandbox/spawn.h"
#include "sandbox/status.h"
#include "venus_init_protocol.h"

namespace {

using namespace venus;
using std::chrono::milliseconds;

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

void test_unique_fd() {
  int number;
  {
    os::UniqueFd first = os::open_path("/dev/null", O_RDONLY);
    number = first.get();
    CHECK((fcntl(number, F_GETFD) & FD_CLOEXEC) != 0);
    os::UniqueFd second = std::move(first);
    CHECK(!first && second.get() == number && is_open(number));
  }
  CHECK(!is_open(number));
}

void test_error_names_operation_object_and_cause() {
  try {
    os::open_path("/no/such/file", O_RDONLY);
    CHECK(false);
  } catch (const os::Error& error) {
    CHECK(error.operation() == "open" && error.object() == "/no/such/file");
    CHECK(error.error_number() == ENOENT);
    CHECK(std::string(error.what()) == "open /no/such/file: No such file or directory");
  }
}

// A child that waits for ever.
os::ChildProcess start_child() {
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0)
    for (;;) pause();
  return {pid, os::UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)))};
}

void test_child_dies_with_its_owner() {
  pid_t pid;
  {
    os::ChildProcess child = start_child();
    pid = child.pid();
  }
  CHECK(waitpid(pid, nullptr, 0) < 0 && errno == ECHILD);
}

// Init of a pid namespace of its own, and a zombie in it; their pids here.
void test_pid_namespace() {
  int pair[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  int on = 1;
  CHECK(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
  pid_t pid = static_cast<pid_t>(syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0));
  CHECK(pid >= 0);
  if (pid == 0) {
    if (fork() == 0) {
      write(pair[1], "x", 1);
      _exit(0);
    }
    for (;;) pause();
  }
  os::ChildProcess init(pid, os::UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))));
  char byte, control[CMSG_SPACE(sizeof(ucred))];
  iovec place{&byte, 1};
  msghdr message{};
  message.msg_iov = &place;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  CHECK(recvmsg(pair[0], &message, 0) == 1);
  ucred sender;
  memcpy(&sender, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof sender);
  os::PidNamespace inside(pid);
  CHECK(inside.may_hold(pid) && inside.may_hold(sender.pid));
  bool certain = !inside.may_hold(getpid());
  CHECK(certain || errno == ENOTTY);
  os::ChildProcess other = start_child();
  CHECK(inside.may_hold(other.pid()) != certain);
  close(pair[0]);
  close(pair[1]);
}

void test_wait_readable() {
  os::Pipe pipe = os::make_pipe();
  os::ChildProcess child = start_child();
  auto now = std::chrono::steady_clock::now;
  auto wait = [&](milliseconds time) {
    return os::wait_readable(pipe.read_end.get(), child.pidfd(), now() + time);
  };
  CHECK(wait(milliseconds(1)) == os::WaitOutcome::timed_out);
  kill(child.pid(), SIGKILL);
  CHECK(wait(milliseconds(10'000)) == os::WaitOutcome::exited);
  os::write_whole(pipe.write_end.get(), "x", "pipe");
  CHECK(wait(milliseconds(10'000)) == os::WaitOutcome::readable);  // the report counts, though dead
}

std::string report(venus_status status, size_t size) {
  os::Pipe pipe = os::make_pipe();
  os::ChildProcess child = start_child();
  os::write_whole(pipe.write_end.get(), {reinterpret_cast<char*>(&status), size}, "pipe");
  try {
    sandbox::wait_ready(pipe.read_end.get(), child.pidfd(),
                        std::chrono::steady_clock::now() + milliseconds(10'000));
  } catch (const os::Error& error) {
    return std::string(error.what()) + (error.op_index ? " !" + std::to_string(*error.op_index) : "");
  }
  return "ready";
}

void test_status() {
  venus_status status{VENUS_STATUS_MAGIC, VENUS_STATUS_READY, 3, 0};
  CHECK(report(status, sizeof status) == "ready");
  CHECK(report(status, 4).find("died") != std::string::npos);
  status.kind = VENUS_STATUS_OP_FAILED;
  status.error = EPERM;
  CHECK(report(status, sizeof status) ==
        "run operation 3 of the setup plan: Operation not permitted !3");
  status.kind = VENUS_STATUS_START_FAILED;
  CHECK(report(status, sizeof status) == "start sandbox-init: Operation not permitted");
  status.magic = 1;
  CHECK(report(status, sizeof status).find("died") != std::string::npos);
}

void test_spawn_refuses_nonsense() {
  sandbox::SpawnRequest request;
  request.root_mountpoint = "/tmp";
  request.lower_fds = {0};
  for (auto [base, count] : {std::pair{0u, 65536u}, {1u, 0u}, {4294967000u, 65536u}}) {
    request.id_base = base;
    request.id_count = count;
    try {
      sandbox::spawn(request);
      CHECK(false);
    } catch (const os::Error& error) {
      CHECK(error.error_number() == EINVAL);
    }
  }
}

}  // namespace

int main() {
  test_unique_fd();
  test_error_names_operation_object_and_cause();
  test_child_dies_with_its_owner();
  test_pid_namespace();
  test_wait_readable();
  test_status();
  test_spawn_refuses_nonsense();
}
