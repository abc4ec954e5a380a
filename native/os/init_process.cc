// The child here is like one of vfork(2): it shares the parent's memory, so it is made in constant
// time, but unlike vfork the parent goes on, because it has to write the child's id map first.
//
// Rules for the code that the child runs: raw system calls only. It shares the parent thread's
// thread-local storage, so that errno, and all of libc that touches it, belongs to the parent.
//
// Lore: set*id in such a child, as setfsuid in a thread, clears the "dumpable" flag of the shared
// memory (commit_creds in kernel/cred.c). The daemon is root, which may look at it nonetheless.
#include "os/init_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "os/error.h"
#include "venus_init_protocol.h"

namespace venus::os {

namespace {

constexpr std::size_t kStackSize = 64 * 1024;
constexpr char kGo = 'g';

// Descriptors of the child, and their final numbers.
enum Place { kNull, kPlan, kStatus, kListen, kInit, kGoSocket, kPlaces };
constexpr int kInitNumber = VENUS_FD_FIRST_FREE;
constexpr int kGoNumber = VENUS_FD_FIRST_FREE + 1;

struct ChildArguments {
  int fds[kPlaces];
  int above_all;  // no descriptor in `fds` is this high
};

long raw(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0) {
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
               : "rcx", "r11", "memory");
  return result;
}

[[noreturn]] void child_fail(int status_fd, long result) {
  venus_status status{VENUS_STATUS_MAGIC, VENUS_STATUS_START_FAILED, 0, static_cast<int>(-result)};
  raw(SYS_write, status_fd, reinterpret_cast<long>(&status), sizeof status);
  for (;;) raw(SYS_exit_group, 127);
}

// First everything moves above the highest number in use, then down to its place: so no step can
// overwrite a descriptor that a later one needs.
long arrange(const ChildArguments& arguments, int (&high)[kPlaces]) {
  for (int i = 0; i < kPlaces; i++) {
    long fd = raw(SYS_fcntl, arguments.fds[i], F_DUPFD, arguments.above_all);
    if (fd < 0) return fd;
    high[i] = static_cast<int>(fd);
  }
  long result = raw(SYS_close_range, 0, arguments.above_all - 1, 0);
  if (result < 0) return result;
  const struct {
    Place place;
    int number;
    int flags;
  } moves[] = {{kNull, 0, 0},
               {kNull, 1, 0},
               {kNull, 2, 0},
               {kPlan, VENUS_FD_PLAN, 0},
               {kStatus, VENUS_FD_STATUS, 0},
               {kListen, VENUS_FD_LISTEN, 0},
               {kInit, kInitNumber, O_CLOEXEC},
               {kGoSocket, kGoNumber, O_CLOEXEC}};
  for (const auto& move : moves) {
    result = raw(SYS_dup3, high[move.place], move.number, move.flags);
    if (result < 0) return result;
  }
  return raw(SYS_close_range, kGoNumber + 1, ~0u, 0);
}

// Waits for the word to go, which brings the root mount. False: the parent gave up or died.
bool receive_go(int* root_fd) {
  char go = 0;
  iovec vector{&go, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  long result;
  while ((result = raw(SYS_recvmsg, kGoNumber, reinterpret_cast<long>(&message), 0)) == -EINTR) {
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (result != 1 || go != kGo || header == nullptr) return false;
  *root_fd = *reinterpret_cast<const int*>(CMSG_DATA(header));
  return true;
}

int child_main(void* argument) {
  const auto& arguments = *static_cast<const ChildArguments*>(argument);
  int high[kPlaces];
  long result = arrange(arguments, high);
  if (result < 0) child_fail(arguments.fds[kStatus], result);

  int root_fd = -1;
  if (!receive_go(&root_fd)) raw(SYS_exit_group, 0);

  // VENUS_FD_ROOT is free: the descriptor that comes with the word is the only one up there.
  if (root_fd != VENUS_FD_ROOT && (result = raw(SYS_dup3, root_fd, VENUS_FD_ROOT, 0)) < 0)
    child_fail(VENUS_FD_STATUS, result);
  raw(SYS_close_range, kGoNumber, ~0u, 0);
  if ((result = raw(SYS_setgroups, 0, 0)) < 0 || (result = raw(SYS_setresgid, 0, 0, 0)) < 0 ||
      (result = raw(SYS_setresuid, 0, 0, 0)) < 0 || (result = raw(SYS_setsid)) < 0 ||
      (result = raw(SYS_chdir, reinterpret_cast<long>("/"))) < 0)
    child_fail(VENUS_FD_STATUS, result);
  raw(SYS_umask, 022);
  const char* argv[] = {"sandbox-init", nullptr};
  const char* env[] = {nullptr};
  result = raw(SYS_execveat, kInitNumber, reinterpret_cast<long>(""),
               reinterpret_cast<long>(argv), reinterpret_cast<long>(env), AT_EMPTY_PATH);
  child_fail(VENUS_FD_STATUS, result);
}

}  // namespace

// Memory that the child runs on and reads from until it execs.
struct WaitingInit::Stack {
  ChildArguments arguments;
  alignas(16) char bytes[kStackSize];
};

WaitingInit::WaitingInit(const InitDescriptors& descriptors) {
  UniqueFd null = open_path("/dev/null", O_RDWR);
  SocketPair go = make_socket_pair();
  Pipe status = make_pipe();
  void* memory = ::mmap(nullptr, sizeof(Stack), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) fail("mmap", "stack of sandbox-init");
  stack_ = static_cast<Stack*>(memory);
  ChildArguments& arguments = stack_->arguments;
  arguments.fds[kNull] = null.get();
  arguments.fds[kPlan] = descriptors.plan_fd;
  arguments.fds[kStatus] = status.write_end.get();
  arguments.fds[kListen] = descriptors.listen_fd;
  arguments.fds[kInit] = descriptors.init_fd;
  arguments.fds[kGoSocket] = go.second.get();
  arguments.above_all = std::max(*std::max_element(arguments.fds, arguments.fds + kPlaces),
                                 kGoNumber) + 1;

  int pidfd = -1;
  constexpr int kFlags = CLONE_VM | CLONE_PIDFD | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS |
                         CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | SIGCHLD;
  pid_t pid = ::clone(child_main, stack_->bytes + kStackSize, kFlags, &arguments, &pidfd);
  if (pid < 0) {
    int error_number = errno;
    ::munmap(stack_, sizeof(Stack));
    throw Error("clone", "namespaces of the sandbox", error_number);
  }
  child_ = new ChildProcess(pid, UniqueFd(pidfd));
  go_ = std::move(go.first);
  status_ = std::move(status.read_end);
}

WaitingInit::~WaitingInit() {
  delete child_;  // reaps it: nobody stands on the stack any more
  ::munmap(stack_, sizeof(Stack));
}

void WaitingInit::go(int root_fd) {
  send_with_fds(go_.get(), {&kGo, 1}, &root_fd, 1, "sandbox-init");
}

UniqueFd WaitingInit::take() { return child_->release(); }

}  // namespace venus::os
