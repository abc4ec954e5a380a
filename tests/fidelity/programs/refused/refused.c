/* State that a snapshot must refuse, by name. */
#include "../fidelity.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/un.h>

static int listen_locally(struct sockaddr_in *name) {
  socklen_t size = sizeof *name;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  *name = (struct sockaddr_in){AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {0}};
  MUST(bind(listener, (struct sockaddr *)name, size) == 0 && listen(listener, 5) == 0);
  MUST(getsockname(listener, (struct sockaddr *)name, &size) == 0);
  return listener;
}

static void pass_descriptor(void) {
  int ends[2];
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
  } ancillary = {0};
  char byte = 'x';
  struct iovec vector = {&byte, 1};
  struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary};
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
  memcpy(CMSG_DATA(header), &ends[0], sizeof(int));
  MUST(sendmsg(ends[0], &message, 0) == 1);
}

int main(int argc, char **argv) {
  struct sockaddr_in name;
  const char *what = argc > 1 ? argv[1] : "";
  if (!strcmp(what, "inotify")) {
    MUST(inotify_init() >= 0);
  } else if (!strcmp(what, "pidfd")) {
    MUST(syscall(SYS_pidfd_open, getpid(), 0) >= 0);
  } else if (!strcmp(what, "deleted-name")) {
    MUST(open("/var/tmp/deleted", O_RDWR | O_CREAT, 0600) >= 0);
    MUST(link("/var/tmp/deleted", "/var/tmp/other") == 0 && unlink("/var/tmp/deleted") == 0);
  } else if (!strcmp(what, "waiting-unix-request")) {
    struct sockaddr_un service = {AF_UNIX, "/var/tmp/service"};
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    MUST(bind(listener, (struct sockaddr *)&service, sizeof service) == 0 && listen(listener, 2) == 0);
    MUST(connect(client, (struct sockaddr *)&service, sizeof service) == 0 && write(client, "GET", 3) == 3);
  } else if (!strcmp(what, "waiting-request")) {
    int client;
    listen_locally(&name);
    client = socket(AF_INET, SOCK_STREAM, 0);
    MUST(connect(client, (struct sockaddr *)&name, sizeof name) == 0 && write(client, "GET", 3) == 3);
  } else if (!strcmp(what, "urgent-data")) {
    int listener = listen_locally(&name), client = socket(AF_INET, SOCK_STREAM, 0);
    MUST(connect(client, (struct sockaddr *)&name, sizeof name) == 0 && accept(listener, NULL, NULL) >= 0);
    MUST(send(client, "!", 1, MSG_OOB) == 1);
  } else if (!strcmp(what, "packet-filter")) {
    struct sock_filter everything = {6 /* BPF_RET */, 0, 0, 65535};
    struct sock_fprog program = {1, &everything};
    int filtered = socket(AF_INET, SOCK_DGRAM, 0);
    MUST(setsockopt(filtered, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
  } else if (!strcmp(what, "descriptor-in-flight")) {
    pass_descriptor();
  } else if (!strcmp(what, "partly-attached")) {
    char *memory = shmat(shmget(IPC_PRIVATE, 8192, 0600), NULL, 0);
    MUST(memory != (void *)-1 && munmap(memory, 4096) == 0);
  } else if (!strcmp(what, "borrowed-memory")) {
    /* The parent waits in vfork() until its child has seen the word to go. */
    if (vfork() == 0) {
      write_file(READY_FILE, "ready");
      wait_for_go();
      _exit(0);
    }
  } else {
    MUST(!"a known name");
  }
  ready_and_wait();
  finish();
}
