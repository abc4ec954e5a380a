/* What the fuzz programs send over a socket. */
#ifndef VENUS_FUZZ_PACKETS_H
#define VENUS_FUZZ_PACKETS_H

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

enum { PACKET_MAX_FDS = 64 };

/* A packet with these descriptors; nothing is sent where there is no room for it. */
static inline void send_with_descriptors(int peer, const void *bytes, size_t size, const int *fds,
                                         unsigned count) {
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(PACKET_MAX_FDS * sizeof(int))];
  } ancillary = {0};
  struct iovec vector = {(void *)bytes, size};
  struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
  if (count) {
    message.msg_control = &ancillary;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(head), fds, count * sizeof(int));
  }
  sendmsg(peer, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

#endif
