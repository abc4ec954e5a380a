#include "packet.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

unsigned packet_fd_count(uint32_t fd_mask, uint32_t cgroup_procs_count) {
  return (unsigned)__builtin_popcount(fd_mask & ~(uint32_t)VENUS_HAS_CGROUP_PROCS) +
         cgroup_procs_count;
}

const char *packet_next_string(const char *text) { return text + strlen(text) + 1; }

static unsigned expected_arguments(uint32_t kind) {
  return kind == VENUS_KIND_RENAME || kind == VENUS_KIND_WRITE || kind == VENUS_KIND_CHOWN ? 2 : 1;
}

#define STREAMS                                                                                    \
  (VENUS_HAS_STDIN | VENUS_HAS_STDOUT | VENUS_HAS_STDERR | VENUS_HAS_KEEP_STDIN |                  \
   VENUS_HAS_KEEP_STDOUT | VENUS_HAS_KEEP_STDERR)

static bool are_flags_valid(const struct venus_exec *head) {
  if (head->flags == 0)
    return true;
  return head->flags == VENUS_EXEC_TERMINAL && head->kind == VENUS_KIND_PROGRAM &&
         !(head->fd_mask & STREAMS) && head->number[0] <= UINT16_MAX &&
         head->number[1] <= UINT16_MAX;
}

/* Signals go there: neither to init itself nor to groups of processes. */
static bool is_pid_valid(const struct venus_exec *head) {
  return head->kind != VENUS_KIND_RESTORED || (head->number[0] != 1 && head->number[0] <= INT32_MAX);
}

static int parse_exec(struct exec_request *exec, const uint8_t *payload, size_t size,
                      unsigned fd_count) {
  struct venus_exec *head = &exec->head;
  if (size < sizeof *head)
    return EBADMSG;
  memcpy(head, payload, sizeof *head);
  bool has_procs = head->fd_mask & VENUS_HAS_CGROUP_PROCS;
  if (head->exec_id == 0 || !are_flags_valid(head) || head->kind > VENUS_KIND_LAST ||
      !is_pid_valid(head) || (head->fd_mask & ~(uint32_t)VENUS_HAS_ALL) ||
      head->cgroup_procs_count > VENUS_MAX_CGROUP_PROCS ||
      has_procs != (head->cgroup_procs_count > 0) || head->rlimit_count > VENUS_MAX_RLIMITS ||
      head->argc == 0 || head->argc > VENUS_MAX_STRINGS || head->envc > VENUS_MAX_STRINGS ||
      head->argc + head->envc > VENUS_MAX_STRINGS)
    return EINVAL;
  if (head->kind != VENUS_KIND_PROGRAM && head->argc != expected_arguments(head->kind))
    return EINVAL;
  if (packet_fd_count(head->fd_mask, head->cgroup_procs_count) != fd_count)
    return EBADF;

  size_t rlimits_size = head->rlimit_count * sizeof(struct venus_rlimit);
  size_t rest = size - sizeof *head;
  if (rlimits_size > rest || head->strings_size != rest - rlimits_size || head->strings_size == 0)
    return EBADMSG;
  exec->rlimits = payload + sizeof *head;
  exec->strings = (const char *)exec->rlimits + rlimits_size;
  if (exec->strings[head->strings_size - 1] != 0)
    return EBADMSG;
  uint32_t count = 0;
  for (uint32_t i = 0; i < head->strings_size; i++)
    count += exec->strings[i] == 0;
  return count == 2 + head->argc + head->envc ? 0 : EBADMSG;
}

int packet_parse(struct packet *packet, const uint8_t *bytes, size_t size, unsigned fd_count) {
  memset(packet, 0, sizeof *packet);
  if (size < sizeof packet->header)
    return EBADMSG;
  memcpy(&packet->header, bytes, sizeof packet->header);
  const uint8_t *payload = bytes + sizeof packet->header;
  size -= sizeof packet->header;
  if (packet->header.version != VENUS_PROTOCOL_VERSION)
    return EPROTONOSUPPORT;
  if (packet->header.payload_size != size)
    return EBADMSG;
  if (packet->header.type == VENUS_EXEC)
    return parse_exec(&packet->exec, payload, size, fd_count);
  if (fd_count != (packet->header.type == VENUS_KEEP_TERMINAL))
    return EBADF;

  switch (packet->header.type) {
  case VENUS_HELLO:
  case VENUS_LIST:
  case VENUS_SHUTDOWN:
    return size == 0 ? 0 : EBADMSG;
  case VENUS_KILL:
    if (size != sizeof packet->kill)
      return EBADMSG;
    memcpy(&packet->kill, payload, sizeof packet->kill);
    if (packet->kill.signal == 0 || packet->kill.signal > 64 ||
        (packet->kill.flags & ~VENUS_KILL_WHOLE_TREE))
      return EINVAL;
    return 0;
  case VENUS_STDIN_CLOSED:
  case VENUS_RELEASE:
  case VENUS_KEEP_TERMINAL:
    if (size != sizeof packet->ref)
      return EBADMSG;
    memcpy(&packet->ref, payload, sizeof packet->ref);
    return 0;
  case VENUS_SOCKET:
    if (size != sizeof packet->socket)
      return EBADMSG;
    memcpy(&packet->socket, payload, sizeof packet->socket);
    return packet->socket.family == AF_INET || packet->socket.family == AF_INET6 ? 0 : EINVAL;
  default:
    return EOPNOTSUPP;
  }
}
