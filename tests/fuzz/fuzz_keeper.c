/* Conversations with pool-keeper, over a real socket and with real files. Each step of the input is a
 * byte that says which descriptors go along, a byte for the size of the packet, and a request. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "keeper/serve.h"
#include "packets.h"

enum { FILES = 4, MAX_STEPS = 64 };

static int sealed[FILES];
static int unsealed;

static void make_files(void) {
  for (int i = 0; i < FILES; i++) {
    sealed[i] = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(fcntl(sealed[i], F_ADD_SEALS,
                  F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  }
  unsealed = memfd_create("fuzz", MFD_CLOEXEC);
}

static void send_request(int peer, const void *bytes, size_t size, uint8_t what) {
  int fds[2 * FILES];
  unsigned count = what % (2 * FILES);
  for (unsigned i = 0; i < count; i++)
    fds[i] = what & 0x80 && i == 1 ? unsealed : sealed[(i + (what >> 4)) % FILES];
  send_with_descriptors(peer, bytes, size, fds, count);
}

/* Answers are read, as a client would, and their descriptors closed. */
static void drain(int peer) {
  char bytes[8192];
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(VK_BATCH * sizeof(int))];
  } ancillary;
  struct iovec vector = {bytes, sizeof bytes};
  struct msghdr message = {.msg_iov = &vector,
                           .msg_iovlen = 1,
                           .msg_control = &ancillary,
                           .msg_controllen = sizeof ancillary};
  while (recvmsg(peer, &message, MSG_DONTWAIT) > 0) {
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_type == SCM_RIGHTS)
      for (unsigned i = 0; i < (head->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
        close(fd);
      }
    message.msg_controllen = sizeof ancillary;
  }
}

static void forget_everything(void) {
  uint32_t cursor = 0;
  const struct entry *entry;
  while ((entry = table_next(&cursor))) {
    char name[VK_MAX_NAME];
    uint32_t size = entry->name_size;
    memcpy(name, entry->name, size);
    REQUIRE(table_remove(name, size) == 0);
    cursor = 0;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  if (!sealed[0]) {
    make_files();
    table_init();
  }
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  struct connection connection = {.fd = ends[0]};
  enum served served = SERVED;
  for (int step = 0; step < MAX_STEPS && size > 2 && served == SERVED; step++) {
    size_t packet = bytes[1] ? bytes[1] : sizeof(struct vk_request);
    if (packet > size - 2)
      packet = size - 2;
    send_request(ends[1], bytes + 2, packet, bytes[0]);
    bytes += 2 + packet;
    size -= 2 + packet;
    served = serve_one(&connection);
    drain(ends[1]);
  }
  serve_drop(&connection);
  close(ends[1]);
  forget_everything();
  struct vk_state state = table_state();
  REQUIRE(state.entries == 0 && state.references == 0 && state.files == 0);
  return 0;
}
