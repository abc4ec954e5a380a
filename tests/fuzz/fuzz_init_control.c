/* Conversations with sandbox-init, over a real socket, with real descriptors and real children, which do
 * nothing but what a number of the request says. Each step of the input is a byte that says what happens,
 * one that says which descriptors go along, two for the size of the packet, and the packet. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "confined.h"
#include "fuzz.h"
#include "init/child.h"
#include "init/control.h"
#include "init/sys.h"
#include "packets.h"

enum { MAX_STEPS = 32, KINDS = 4, STEP_HEAD = 4 };

static struct policy policy = {.sandbox_id = "sb-1", .sandbox_id_size = 5};
static struct exec_table table = {.policy = &policy};
static struct control control = {.table = &table, .fd = -1, .answer_fd = -1};
static struct sockaddr_un address_of_init;
static socklen_t address_size;
static int passed[KINDS];

_Noreturn void child_run(const struct policy *of, const struct exec_request *request,
                         struct child_fds *fds) {
  (void)of;
  struct child_failure failure = {.step = VENUS_STEP_EXEC, .error = ENOENT};
  unsigned how = request->head.number[1] % 4;
  if (how == 0 && write(fds->status, &failure, sizeof failure) < 0)
    _exit(1);
  if (how > 1)
    _exit(0);
  sys_close_range(0, ~0u);
  for (;;)
    pause();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  confine();
  policy.devpts_fd = open("/dev/pts", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int pipe_ends[2];
  REQUIRE(pipe2(pipe_ends, O_CLOEXEC) == 0);
  passed[0] = memfd_create("passed", MFD_CLOEXEC);
  passed[1] = pipe_ends[0];
  passed[2] = pipe_ends[1];
  passed[3] = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (passed[3] < 0)
    passed[3] = passed[0];
  /* A name that the kernel chooses. */
  address_of_init.sun_family = AF_UNIX;
  control.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  REQUIRE(bind(control.listen_fd, (struct sockaddr *)&address_of_init,
               sizeof address_of_init.sun_family) == 0);
  REQUIRE(listen(control.listen_fd, 8) == 0);
  address_size = sizeof address_of_init;
  REQUIRE(getsockname(control.listen_fd, (struct sockaddr *)&address_of_init, &address_size) == 0);
  return 0;
}

static int connect_to_init(void) {
  int peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  REQUIRE(peer >= 0 && connect(peer, (struct sockaddr *)&address_of_init, address_size) == 0);
  control_accept(&control);
  int small = 4096; /* so that answers find no room */
  REQUIRE(control.fd >= 0);
  setsockopt(control.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  return peer;
}

static void send_packet(int peer, const void *bytes, size_t size, uint8_t what) {
  int fds[VENUS_MAX_PACKET_FDS + 1];
  unsigned count = what % (VENUS_MAX_PACKET_FDS + 2);
  for (unsigned i = 0; i < count; i++)
    fds[i] = passed[(i + (what >> 5)) % KINDS];
  send_with_descriptors(peer, bytes, size, fds, count);
}

/* As the daemon does; answers have the form that the protocol gives them. */
static void drain(int peer) {
  uint8_t bytes[CONTROL_MAX_ANSWER + 1];
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(3 * sizeof(int))];
  } ancillary;
  struct iovec vector = {bytes, sizeof bytes};
  struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &ancillary};
  ssize_t size;
  while (message.msg_controllen = sizeof ancillary,
         (size = recvmsg(peer, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) > 0) {
    struct venus_header header;
    REQUIRE(size >= (ssize_t)sizeof header && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)));
    memcpy(&header, bytes, sizeof header);
    REQUIRE(header.version == VENUS_PROTOCOL_VERSION && header.type >= VENUS_HELLO_REPLY);
    REQUIRE(header.payload_size == (size_t)size - sizeof header);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    for (size_t i = 0; head && i < (head->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
      close(fd);
    }
  }
}

/* What the main loop does between packets. */
static void take_turn(void) {
  for (unsigned i = 0; i < table.used; i++) {
    struct pollfd status = {.fd = table.slots[i].status_fd, .events = POLLIN};
    if (table.slots[i].state == EXEC_STARTING && poll(&status, 1, 0) > 0)
      execs_read_status(&table.slots[i]);
  }
  execs_reap(&table);
  execs_expire(&table);
  control_flush(&control);
}

static void end_children(void) {
  siginfo_t info;
  kill(-1, SIGKILL);
  while (waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) == 0)
    execs_reap(&table);
}

static void end_everything(int peer) {
  close(peer);
  end_children(); /* which have a copy of it until they run */
  for (int i = 0; control.fd >= 0 && i < MAX_STEPS; i++) {
    REQUIRE(control_events(&control) || control.stalled);
    control_flush(&control);
    control_receive(&control);
  }
  REQUIRE(control.fd < 0);
  end_children(); /* those of packets that waited */
  control_flush(&control);
  while (table.used) {
    struct exec *last = &table.slots[table.used - 1];
    REQUIRE(last->state == EXEC_EXITED || last->state == EXEC_RUNNING);
    /* A restored one whose number was nobody's here. */
    last->state = EXEC_EXITED;
    REQUIRE(execs_release(&table, last) == 0);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  unsigned before = open_descriptors();
  int peer = connect_to_init();
  for (int step = 0; step < MAX_STEPS && size >= STEP_HEAD && control.fd >= 0; step++) {
    uint8_t what = bytes[0], fds = bytes[1];
    size_t packet = bytes[2] | (size_t)bytes[3] << 8;
    bytes += STEP_HEAD, size -= STEP_HEAD;
    if (what % 8 < 4) {
      packet = packet < size ? packet : size;
      send_packet(peer, bytes, packet, fds);
      bytes += packet, size -= packet;
      if (!control_receive(&control))
        break; /* SHUTDOWN */
    } else if (what % 8 == 4) {
      close(peer);
      peer = connect_to_init();
    } else if (what % 8 == 5) {
      drain(peer);
    } else {
      take_turn();
    }
  }
  end_everything(peer);
  REQUIRE(open_descriptors() == before);
  return 0;
}
