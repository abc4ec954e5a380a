/* The kernel writes to memory on a program's behalf. */
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <linux/rseq.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

#include "attack.h"

static void on_signal(int number) { (void)number; }

static void on_alternate_stack(char *at) {
  stack_t stack = {.ss_sp = at, .ss_size = EACH * PAGE}, before;
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK}, old;
  sigaction(SIGUSR1, &action, &old);
  report("sigaltstack", sigaltstack(&stack, &before));
  raise(SIGUSR1);
  sigaltstack(&before, NULL);
  sigaction(SIGUSR1, &old, NULL);
}

static int ends_at_once(void *argument) {
  struct robust_list_head *head = argument;
  if (head)
    syscall(SYS_set_robust_list, head, sizeof *head);
  syscall(SYS_exit, 0);
  return 0;
}

/* A thread that ends has its tid cleared, and the locks that it held marked. */
static void by_the_end_of_a_thread(char *at) {
  static char stack[65536];
  struct robust_list_head *head = (void *)at;
  struct robust_list *lock = (void *)(at + PAGE);
  int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
              CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
  uint32_t *tid = (uint32_t *)(at + 2 * PAGE), *futex = (uint32_t *)(at + PAGE + 64);
  head->list.next = lock;
  head->futex_offset = 64;
  head->list_op_pending = NULL;
  lock->next = &head->list;
  *futex = 0;
  *tid = 1;
  int made = clone(ends_at_once, stack + sizeof stack, flags, head, tid + 1, NULL, tid);
  report("clone_tids", made);
  while (made > 0 && __atomic_load_n(tid, __ATOMIC_ACQUIRE) != 0)
    sched_yield();
}

static void into_pages_of_files(void) {
  int fd = open(lower_file(next_file()), O_RDONLY | O_DIRECT);
  report("direct_read", pread(fd, next_pages(), PAGE, 0));
  report("direct_read_read_only", pread(fd, next_read_only(), PAGE, 0));
  close(fd);
  fd = open("/root/direct", O_RDWR | O_CREAT | O_DIRECT, 0600);
  char *at = next_pages();
  report("direct_write", pwrite(fd, at, PAGE, 0));
  report("direct_read_back", pread(fd, next_pages(), PAGE, 0));
  close(fd);
  fd = open("/dev/urandom", O_RDONLY);
  report("read", read(fd, next_pages(), 2 * PAGE));
  report("read_read_only", read(fd, next_read_only(), PAGE));
  struct iovec vector[2] = {{next_pages(), PAGE}, {next_pages(), PAGE}};
  report("readv", readv(fd, vector, 2));
  close(fd);
}

static void through_sockets_and_pipes(void) {
  int pair[2], pipes[2], other[2];
  char bytes[2 * PAGE];
  memset(bytes, 0x21, sizeof bytes);
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 || pipe(pipes) < 0 || pipe(other) < 0)
    return;
  report("send", send(pair[0], bytes, sizeof bytes, 0));
  report("recv", recv(pair[1], next_pages(), PAGE, 0));
  struct iovec vector = {next_pages(), PAGE};
  struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
  report("recvmsg", recvmsg(pair[1], &message, 0));
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  int udp = socket(AF_INET, SOCK_DGRAM, 0);
  bind(udp, (struct sockaddr *)&address, sizeof address);
  getsockname(udp, (struct sockaddr *)&address, &size);
  sendto(udp, bytes, PAGE, 0, (struct sockaddr *)&address, sizeof address);
  report("recvfrom", recvfrom(udp, next_pages(), PAGE, 0, NULL, NULL));
  int on = 1;
  setsockopt(udp, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on);
  char *at = next_pages();
  report("send_zerocopy",
         sendto(udp, at, PAGE, MSG_ZEROCOPY, (struct sockaddr *)&address, sizeof address));
  memset(at, 0x22, PAGE);
  close(udp);
  /* A page of a lower file lies in the pipe while the pipe is written to. */
  int lower = open(lower_file(next_file()), O_RDONLY);
  off_t offset = 1;
  report("splice_file", splice(lower, &offset, pipes[1], NULL, 100, 0));
  report("write_behind", write(pipes[1], bytes, 50));
  report("tee", tee(pipes[0], other[1], 4096, SPLICE_F_NONBLOCK));
  report("sendfile", sendfile(other[1], lower, NULL, 100));
  report("read_pipe", read(pipes[0], next_pages(), PAGE));
  close(lower);
  vector = (struct iovec){next_pages(), PAGE};
  report("vmsplice", syscall(SYS_vmsplice, pipes[1], &vector, 1, SPLICE_F_GIFT));
  for (int i = 0; i < 2; i++) {
    close(pair[i]);
    close(pipes[i]);
    close(other[i]);
  }
}

void attack_by_the_kernel(void) {
  struct timespec *time = (struct timespec *)next_pages();
  report("getrandom", getrandom(next_pages(), PAGE, 0));
  report("clock_gettime", syscall(SYS_clock_gettime, CLOCK_REALTIME, time));
  report("stat", fstat(0, (struct stat *)next_pages()));
  report("ioctl", ioctl(0, FIONREAD, next_pages()));
  report("getcwd", syscall(SYS_getcwd, next_pages(), PAGE));
  into_pages_of_files();
  through_sockets_and_pipes();
  uint32_t *word = (uint32_t *)next_pages();
  word[1] = 7;
  report("futex_wake_op", syscall(SYS_futex, word, FUTEX_WAKE_OP, 1, 1, word + 1,
                                  FUTEX_OP(FUTEX_OP_ADD, 5, FUTEX_OP_CMP_EQ, 7)));
  word = (uint32_t *)next_pages();
  *word = 0;
  report("futex_lock_pi", syscall(SYS_futex, word, FUTEX_LOCK_PI, 0, NULL, NULL, 0));
  report("futex_unlock_pi", syscall(SYS_futex, word, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0));
  on_alternate_stack(next_pages());
  by_the_end_of_a_thread(next_pages());
  aio_context_t context = 0;
  report("io_setup", syscall(SYS_io_setup, 1, &context));
  char ring[256] = "";
  report("io_uring_setup", syscall(SYS_io_uring_setup, 1, ring));
  report("userfaultfd", syscall(SYS_userfaultfd, O_CLOEXEC));
  report("process_madvise", syscall(SYS_process_madvise, -1, NULL, 0, MADV_PAGEOUT, 0));
  report("bpf", syscall(SYS_bpf, 0, ring, sizeof ring));
  report("memfd_secret", syscall(SYS_memfd_secret, 0));
}
