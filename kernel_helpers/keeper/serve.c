#include "serve.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define OUT_OF_FILES_PAUSE_MS 20

/* The descriptors that come with one packet; the kernel delivers no more than there is room for. */
union batch {
  struct cmsghdr align;
  char bytes[CMSG_SPACE(VK_BATCH * sizeof(int))];
};

bool serve_accept(struct connection *connection, int listen_fd) {
  struct ucred peer = {.uid = (uid_t)-1};
  socklen_t size = sizeof peer;
  int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    /* The next poll would say at once that somebody waits, as long as the machine has no files. */
    if (errno != EAGAIN)
      poll(NULL, 0, OUT_OF_FILES_PAUSE_MS);
    return false;
  }
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.uid != 0) {
    close(fd);
    return false;
  }
  memset(connection, 0, sizeof *connection);
  connection->fd = fd;
  return true;
}

void serve_drop(struct connection *connection) {
  table_abandon(&connection->being);
  close(connection->fd);
  connection->fd = -1;
}

static bool answer(const struct connection *connection, const struct vk_answer *head,
                   const void *more, size_t more_size, const int *fds, unsigned fd_count) {
  union batch ancillary;
  struct iovec parts[] = {{(void *)head, sizeof *head}, {(void *)more, more_size}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
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
  return sendmsg(connection->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

static bool answer_plain(const struct connection *connection, uint32_t type, int error) {
  struct vk_answer head = {.version = VK_VERSION, .type = type, .error = error};
  return answer(connection, &head, NULL, 0, NULL, 0);
}

static bool answer_state(const struct connection *connection) {
  struct vk_answer head = {.version = VK_VERSION, .type = VK_HELLO};
  struct vk_state state = table_state();
  return answer(connection, &head, &state, sizeof state, NULL, 0);
}

static bool answer_files(const struct connection *connection, const struct vk_request *request) {
  const struct entry *entry = table_find(request->name, request->name_size);
  if (!entry)
    return answer_plain(connection, VK_GET, ENOENT);
  if (request->number >= entry->have)
    return answer_plain(connection, VK_GET, EINVAL);
  unsigned count = entry->have - request->number;
  struct vk_answer head = {.version = VK_VERSION,
                           .type = VK_GET,
                           .count = entry->have,
                           .value = entry->number};
  return answer(connection, &head, NULL, 0, entry->files + request->number,
                count < VK_BATCH ? count : VK_BATCH);
}

static bool answer_list(const struct connection *connection, uint32_t cursor) {
  struct vk_listed page[VK_LIST_PAGE];
  struct vk_answer head = {.version = VK_VERSION, .type = VK_LIST};
  const struct entry *entry = NULL;
  memset(page, 0, sizeof page);
  while (head.count < VK_LIST_PAGE && (entry = table_next(&cursor))) {
    struct vk_listed *listed = &page[head.count++];
    listed->entry = entry->number;
    listed->files = entry->have;
    listed->name_size = entry->name_size;
    memcpy(listed->name, entry->name, entry->name_size);
  }
  head.value = entry ? cursor : 0;
  return answer(connection, &head, page, head.count * sizeof *page, NULL, 0);
}

/* Whatever fails ends the PUT that it belongs to. */
static int put(struct connection *connection, const struct vk_request *request, const int *fds,
               unsigned fd_count) {
  struct entry *being = &connection->being;
  int error = request->type == VK_PUT
                  ? table_begin(being, request->name, request->name_size, request->number)
              : request->type == VK_PART ? table_add(being, fds, fd_count)
                                         : table_commit(being);
  if (error)
    table_abandon(being);
  return error;
}

static unsigned take_fds(struct msghdr *message, int *fds) {
  unsigned count = 0;
  for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each; each = CMSG_NXTHDR(message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS)
      continue;
    unsigned here = (unsigned)((each->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    for (unsigned i = 0; i < here && count < VK_BATCH; i++)
      memcpy(&fds[count++], CMSG_DATA(each) + i * sizeof(int), sizeof(int));
  }
  return count;
}

static int judge(const struct vk_request *request, ssize_t size, int flags, unsigned fd_count) {
  if (size != sizeof *request || flags & MSG_TRUNC)
    return EBADMSG;
  if (flags & MSG_CTRUNC)
    return EMFILE; /* too many for the protocol or for the limit on open files */
  if (request->version != VK_VERSION && request->type != VK_HELLO && request->type != VK_END)
    return EPROTONOSUPPORT;
  if (fd_count && request->type != VK_PART)
    return EBADF;
  return 0;
}

enum served serve_one(struct connection *connection) {
  struct vk_request request = {0};
  union batch ancillary;
  struct iovec vector = {&request, sizeof request};
  struct msghdr message = {.msg_iov = &vector,
                           .msg_iovlen = 1,
                           .msg_control = &ancillary,
                           .msg_controllen = sizeof ancillary};
  ssize_t size = recvmsg(connection->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR))
    return SERVED;
  int fds[VK_BATCH];
  unsigned fd_count = size < 0 ? 0 : take_fds(&message, fds);
  int error = judge(&request, size, message.msg_flags, fd_count);
  if (error)
    for (unsigned i = 0; i < fd_count; i++)
      close(fds[i]);
  if (size <= 0)
    return SERVED_LAST;
  bool sent;
  if (error) {
    table_abandon(&connection->being);
    sent = answer_plain(connection, request.type, error);
  } else {
    switch (request.type) {
    case VK_HELLO:
      sent = answer_state(connection);
      break;
    case VK_PUT:
    case VK_PART:
    case VK_COMMIT:
      sent = answer_plain(connection, request.type, put(connection, &request, fds, fd_count));
      break;
    case VK_GET:
      sent = answer_files(connection, &request);
      break;
    case VK_REMOVE:
      sent = answer_plain(connection, VK_REMOVE, table_remove(request.name, request.name_size));
      break;
    case VK_LIST:
      sent = answer_list(connection, request.number);
      break;
    case VK_END:
      return SERVED_END;
    default:
      sent = answer_plain(connection, request.type, EOPNOTSUPP);
    }
  }
  return sent ? SERVED : SERVED_LAST;
}

void serve_answer_end(const struct connection *connection) {
  answer_plain(connection, VK_END, 0);
}
