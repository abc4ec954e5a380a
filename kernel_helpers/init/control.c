#include "control.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "sys.h"

/* Requests handled per wake-up, so that a flood cannot keep init from reaping and timing out. */
#define MAX_REQUESTS_PER_TURN 32
#define RECEIVE_KEEP_SIZE 16384u

static uint8_t receive_buffer[VENUS_MAX_PACKET_SIZE] __attribute__((aligned(4096)));

enum send_result { SENT, WOULD_BLOCK, BROKEN };

static void settle_all(struct control *control) {
  for (unsigned i = 0; i < control->table->used; i++) {
    struct exec *exec = &control->table->slots[i];
    exec->pending = 0;
    exec->request_id = 0; /* numbers of a former connection mean nothing to the next */
    execs_settle(control->table, exec);
  }
}

/* The next daemon learns everything by LIST. */
static void drop(struct control *control) {
  close_fd(&control->fd);
  close_fd(&control->answer_fd);
  control->listing = false;
  control->answer_size = 0;
  settle_all(control);
}

void control_accept(struct control *control) {
  int fd = accept4(control->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0)
    return;
  drop(control);
  control->fd = fd;
}

static enum send_result send_packet(struct control *control, const void *bytes, size_t size,
                                    const int *fds, unsigned fd_count) {
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(3 * sizeof(int))];
  } ancillary;
  struct iovec vector = {.iov_base = (void *)bytes, .iov_len = size};
  struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
  if (fd_count) {
    memset(&ancillary, 0, sizeof ancillary);
    message.msg_control = &ancillary;
    message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
  }
  for (;;) {
    if (sendmsg(control->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
      return SENT;
    if (errno == EINTR)
      continue;
    /* No event tells when there is memory again, or when a reader has taken descriptors of ours
     * that are in flight: poll would say "writable" at once, for ever. */
    control->stalled = errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM;
    return errno == EAGAIN || control->stalled ? WOULD_BLOCK : BROKEN;
  }
}

static size_t build(uint8_t *out, uint16_t type, uint64_t request_id, const void *payload,
                    size_t size) {
  struct venus_header header = {.version = VENUS_PROTOCOL_VERSION,
                                .type = type,
                                .payload_size = (uint32_t)size,
                                .request_id = request_id};
  memcpy(out, &header, sizeof header);
  memcpy(out + sizeof header, payload, size);
  return sizeof header + size;
}

/* Answers a request; stores the answer if the socket is full. At most one is stored, because no
 * request is read while there is one. */
static void answer(struct control *control, uint16_t type, uint64_t request_id, const void *payload,
                   size_t size) {
  control->answer_size = (uint32_t)build(control->answer, type, request_id, payload, size);
  control_flush(control);
}

static bool send_pending(struct control *control, struct exec *exec, unsigned bit, uint16_t type,
                         uint64_t request_id, const void *payload, size_t size) {
  uint8_t bytes[CONTROL_MAX_ANSWER];
  if (!(exec->pending & bit))
    return true;
  size_t total = build(bytes, type, request_id, payload, size);
  unsigned fd_count = type == VENUS_STARTED && exec->has_terminal;
  switch (send_packet(control, bytes, total, &exec->keep_fd[1], fd_count)) {
  case SENT:
    exec->pending &= (uint8_t)~bit;
    return true;
  case WOULD_BLOCK:
    return false;
  case BROKEN:
    drop(control);
    return false;
  }
  return false;
}

static bool flush_exec(struct control *control, struct exec *exec) {
  struct venus_started started = {.exec_id = exec->id, .pid = exec->pid};
  struct venus_failed failed = {
      .exec_id = exec->id, .step = exec->failed_step, .error = exec->failed_error};
  if (!send_pending(control, exec, PENDING_STARTED, VENUS_STARTED, exec->request_id, &started,
                    sizeof started) ||
      !send_pending(control, exec, PENDING_EXITED, VENUS_EXITED, 0, &exec->exit,
                    sizeof exec->exit) ||
      !send_pending(control, exec, PENDING_FAILED, VENUS_FAILED, exec->request_id, &failed,
                    sizeof failed))
    return false;
  execs_settle(control->table, exec);
  return true;
}

static bool send_info(struct control *control, const struct exec *exec) {
  struct venus_exec_info info = {.exit = exec->exit,
                                 .pid = exec->pid,
                                 .state = exec->state,
                                 .kind = exec->kind,
                                 .timeout_ms = exec->timeout_ms};
  uint64_t now = monotonic_us();
  if (exec->deadline_us > now)
    info.remaining_ms = (uint32_t)((exec->deadline_us - now + 999) / 1000);
  int fds[3];
  unsigned count = 0;
  for (int k = 0; k < 3; k++) {
    if (exec->keep_fd[k] < 0)
      continue;
    info.fd_mask |= (uint32_t)VENUS_HAS_KEEP_STDIN << k;
    fds[count++] = exec->keep_fd[k];
  }
  uint8_t bytes[CONTROL_MAX_ANSWER];
  size_t size = build(bytes, VENUS_EXEC_INFO, control->list_request_id, &info, sizeof info);
  enum send_result sent = send_packet(control, bytes, size, fds, count);
  if (sent == BROKEN)
    drop(control);
  return sent == SENT;
}

static bool flush_list(struct control *control) {
  while (control->listing) {
    struct exec_table *table = control->table;
    while (control->list_next < table->used) {
      struct exec *exec = &table->slots[control->list_next];
      if (exec->state != EXEC_FREE && exec->state != EXEC_FAILED && !send_info(control, exec))
        return false;
      control->list_next++;
    }
    control->listing = false;
    answer(control, VENUS_LIST_END, control->list_request_id, "", 0);
  }
  return true;
}

void control_flush(struct control *control) {
  control->stalled = false;
  if (control->fd < 0) {
    settle_all(control);
    return;
  }
  if (control->answer_size) {
    switch (send_packet(control, control->answer, control->answer_size, &control->answer_fd,
                        control->answer_fd >= 0)) {
    case SENT:
      close_fd(&control->answer_fd);
      control->answer_size = 0;
      break;
    case WOULD_BLOCK:
      return;
    case BROKEN:
      drop(control);
      return;
    }
  }
  for (unsigned i = 0; i < control->table->used; i++) {
    struct exec *exec = &control->table->slots[i];
    if (exec->pending && !flush_exec(control, exec))
      return;
  }
  flush_list(control);
}

static bool blocked(const struct control *control) {
  return control->answer_size || control->listing;
}

short control_events(const struct control *control) {
  if (control->stalled)
    return 0;
  if (blocked(control))
    return POLLOUT;
  for (unsigned i = 0; i < control->table->used; i++)
    if (control->table->slots[i].pending)
      return POLLIN | POLLOUT;
  return POLLIN;
}

static void acknowledge(struct control *control, const struct packet *packet, uint64_t exec_id,
                        int error) {
  struct venus_ack ack = {.exec_id = exec_id, .error = error};
  answer(control, VENUS_ACK, packet->header.request_id, &ack, sizeof ack);
}

static void open_socket(struct control *control, const struct packet *packet) {
  int type = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
  int fd = socket((int)packet->socket.family, type, 0);
  int error = fd < 0 ? errno : 0;
  control->answer_fd = fd;
  acknowledge(control, packet, 0, error);
}

static void hello(struct control *control, const struct packet *packet) {
  const struct policy *policy = control->table->policy;
  struct {
    struct venus_hello_reply head;
    char sandbox_id[VENUS_MAX_SANDBOX_ID];
  } reply = {.head = {.protocol_version = VENUS_PROTOCOL_VERSION,
                      .exec_count = execs_count(control->table),
                      .uptime_ms = (monotonic_us() - control->started_us) / 1000u,
                      .sandbox_id_size = policy->sandbox_id_size}};
  memcpy(reply.sandbox_id, policy->sandbox_id, policy->sandbox_id_size);
  answer(control, VENUS_HELLO_REPLY, packet->header.request_id, &reply,
         sizeof reply.head + policy->sandbox_id_size);
}

static int with_exec(struct control *control, const struct packet *packet, int fd) {
  bool is_kill = packet->header.type == VENUS_KILL;
  struct exec *exec =
      execs_find(control->table, is_kill ? packet->kill.exec_id : packet->ref.exec_id);
  if (!exec)
    return ENOENT;
  if (is_kill)
    return execs_kill(exec, (int)packet->kill.signal, packet->kill.flags & VENUS_KILL_WHOLE_TREE);
  if (packet->header.type == VENUS_RELEASE)
    return execs_release(control->table, exec);
  if (packet->header.type == VENUS_KEEP_TERMINAL)
    return execs_keep_terminal(exec, fd);
  close_fd(&exec->keep_fd[0]);
  return 0;
}

/* Descriptors are consumed. False: SHUTDOWN. */
static bool handle(struct control *control, const struct packet *packet, const int *fds) {
  uint64_t request_id = packet->header.request_id;
  struct venus_failed failed;
  switch (packet->header.type) {
  case VENUS_HELLO:
    hello(control, packet);
    break;
  case VENUS_EXEC:
    if (!execs_start(control->table, packet, fds, &failed))
      answer(control, VENUS_FAILED, request_id, &failed, sizeof failed);
    break;
  case VENUS_KILL:
    acknowledge(control, packet, packet->kill.exec_id, with_exec(control, packet, -1));
    break;
  case VENUS_STDIN_CLOSED:
  case VENUS_RELEASE:
    acknowledge(control, packet, packet->ref.exec_id, with_exec(control, packet, -1));
    break;
  case VENUS_KEEP_TERMINAL: {
    int error = with_exec(control, packet, fds[0]);
    if (error)
      close(fds[0]);
    acknowledge(control, packet, packet->ref.exec_id, error);
    break;
  }
  case VENUS_SOCKET:
    open_socket(control, packet);
    break;
  case VENUS_LIST:
    control->listing = true;
    control->list_next = 0;
    control->list_request_id = request_id;
    control_flush(control);
    break;
  case VENUS_SHUTDOWN:
    return false;
  default:
    break;
  }
  return true;
}

/* Collects the descriptors of a packet, of which the kernel delivers at most VENUS_MAX_PACKET_FDS:
 * the control buffer is no bigger. */
static unsigned take_fds(struct msghdr *message, int *fds) {
  unsigned count = 0;
  for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each; each = CMSG_NXTHDR(message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS)
      continue;
    unsigned here = (unsigned)((each->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    for (unsigned i = 0; i < here; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(each) + i * sizeof fd, sizeof fd);
      if (count < VENUS_MAX_PACKET_FDS)
        fds[count++] = fd;
      else
        close(fd);
    }
  }
  return count;
}

static void close_all(const int *fds, unsigned count) {
  for (unsigned i = 0; i < count; i++)
    close(fds[i]);
}

enum receive_result { RECEIVED, NOTHING, SHUT_DOWN };

static enum receive_result receive_one(struct control *control) {
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(VENUS_MAX_PACKET_FDS * sizeof(int))];
  } ancillary;
  struct iovec vector = {.iov_base = receive_buffer, .iov_len = sizeof receive_buffer};
  struct msghdr message = {.msg_iov = &vector,
                           .msg_iovlen = 1,
                           .msg_control = &ancillary,
                           .msg_controllen = sizeof ancillary};
  ssize_t size = recvmsg(control->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR))
    return NOTHING;
  /* Also a packet without a byte brings descriptors. */
  int fds[VENUS_MAX_PACKET_FDS];
  unsigned fd_count = size < 0 ? 0 : take_fds(&message, fds);
  if (size <= 0) {
    close_all(fds, fd_count);
    drop(control);
    return NOTHING;
  }

  struct packet packet;
  int error = packet_parse(&packet, receive_buffer, (size_t)size, fd_count);
  if (message.msg_flags & MSG_CTRUNC)
    error = EMFILE; /* too many descriptors, for the protocol or for init's limit */
  if (message.msg_flags & MSG_TRUNC)
    error = EMSGSIZE;
  bool go_on = true;
  if (error) {
    close_all(fds, fd_count);
    struct venus_ack ack = {.error = error};
    answer(control, VENUS_ERROR, packet.header.request_id, &ack, sizeof ack);
  } else {
    go_on = handle(control, &packet, fds);
  }
  /* A big packet must not stay resident in a process that stands in every sandbox. */
  if ((size_t)size > RECEIVE_KEEP_SIZE)
    madvise(receive_buffer, sizeof receive_buffer, MADV_DONTNEED);
  return go_on ? RECEIVED : SHUT_DOWN;
}

bool control_receive(struct control *control) {
  for (int i = 0; i < MAX_REQUESTS_PER_TURN && control->fd >= 0 && !blocked(control); i++) {
    switch (receive_one(control)) {
    case RECEIVED:
      continue;
    case NOTHING:
      return true;
    case SHUT_DOWN:
      return false;
    }
  }
  return true;
}
