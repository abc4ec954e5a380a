/* Servers that accept slowly and clients that do not wait, so that there is always a connection with
 * a request in it, or one that its client has closed, which nobody has accepted yet; and closed
 * connections whose last data the other end has had no room for. */
#include "../fidelity.h"

#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

struct counts {
  long right, wrong;
} *counts;

struct name {
  union {
    struct sockaddr any;
    struct sockaddr_in internet;
    struct sockaddr_un local;
  } address;
  socklen_t size;
};

static int listen_at(struct name *name) {
  int listener = socket(name->address.any.sa_family, SOCK_STREAM, 0);
  MUST(bind(listener, &name->address.any, name->size) == 0 && listen(listener, 16) == 0);
  MUST(getsockname(listener, &name->address.any, &name->size) == 0);
  return listener;
}

static int connect_to(const struct name *name) {
  int fd = socket(name->address.any.sa_family, SOCK_STREAM, 0);
  return connect(fd, &name->address.any, name->size) == 0 ? fd : -1;
}

static void serve(int listener) {
  if (fork() > 0)
    return;
  for (;;) {
    long request;
    pause_ms(3);
    int fd = accept(listener, NULL, NULL);
    if (read(fd, &request, sizeof request) == sizeof request) {
      request = -request;
      if (write(fd, &request, sizeof request) < 0 && errno != EPIPE && errno != ECONNRESET)
        counts->wrong++;
    }
    close(fd);
  }
}

static void call(const struct name *name, int listener, int patient) {
  if (fork() > 0)
    return;
  close(listener);
  for (long request = 1;; request++) {
    long answer = 0;
    int fd = connect_to(name), asked = write(fd, &request, sizeof request) == sizeof request;
    if (!patient)
      pause_ms(4);
    else if (asked && read(fd, &answer, sizeof answer) == sizeof answer && answer == -request)
      __atomic_add_fetch(&counts->right, 1, __ATOMIC_SEQ_CST);
    else
      __atomic_add_fetch(&counts->wrong, 1, __ATOMIC_SEQ_CST);
    close(fd);
  }
}

static unsigned char content(long at) { return (unsigned char)(at * 7 + at / 251); }

/* All that the connection takes, and then its end. Returns how much that is. */
static long fill_and_close(int fd) {
  static unsigned char block[10000];
  long total = 0;
  ssize_t taken;
  do {
    for (size_t i = 0; i < sizeof block; i++)
      block[i] = content(total + (long)i);
    taken = send(fd, block, sizeof block, MSG_DONTWAIT | MSG_NOSIGNAL);
    total += taken > 0 ? taken : 0;
  } while (taken > 0);
  close(fd);
  return total;
}

static int drains(int fd, long total) {
  static unsigned char block[70000];
  long at = 0;
  ssize_t size;
  while ((size = read(fd, block, sizeof block)) > 0)
    for (ssize_t i = 0; i < size; i++, at++)
      if (block[i] != content(at))
        return 0;
  return size == 0 && at == total;
}

int main(void) {
  counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  signal(SIGPIPE, SIG_IGN);
  struct name names[] = {
      {.address.internet = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {0}}, .size = sizeof(struct sockaddr_in)},
      {.address.local = {AF_UNIX, "/var/tmp/service"}, .size = sizeof(struct sockaddr_un)}};
  for (int i = 0; i < 2; i++) {
    int service = listen_at(&names[i]);
    serve(service);
    for (int client = 0; client < 4; client++)
      call(&names[i], service, client != 0);
    close(service);
  }

  struct name quiet = {.address.internet = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {0}}, .size = sizeof(struct sockaddr_in)};
  int listener = listen_at(&quiet), locked = 1 << 16, found;
  socklen_t size = sizeof found;
  int open_client = connect_to(&quiet), open_served = accept(listener, NULL, NULL);
  int half_client = connect_to(&quiet), half_served = accept(listener, NULL, NULL);
  MUST(open_client >= 0 && open_served >= 0 && half_client >= 0 && half_served >= 0);
  MUST(setsockopt(half_client, SOL_SOCKET, SO_RCVBUF, &locked, sizeof locked) == 0);
  MUST(getsockopt(half_client, SOL_SOCKET, SO_RCVBUF, &locked, &size) == 0 && shutdown(half_client, SHUT_WR) == 0);
  long open_total = fill_and_close(open_served), half_total = fill_and_close(half_served);
  MUST(open_total > 1 << 17 && half_total > 1 << 17);

  ready_and_wait();

  CHECK(getsockopt(half_client, SOL_SOCKET, SO_RCVBUF, &found, &size) == 0 && found == locked);
  CHECK(drains(open_client, open_total) && drains(half_client, half_total));
  struct counts before = *counts;
  for (int tries = 0; counts->right < before.right + 20 && tries < 2000; tries++)
    pause_ms(5);
  CHECK(counts->right >= before.right + 20 && counts->wrong == 0);
  finish();
}
