/* TCP connections over loopback: data on its way in both directions, also more than fits into the
 * receiver's buffer; half closed, closed and ended ones; options; connections that wait to be
 * accepted; IPv4, IPv6 and IPv4 through an IPv6 listener. */
#include "fidelity.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

union address {
  struct sockaddr any;
  struct sockaddr_in four;
  struct sockaddr_in6 six;
};

struct pair {
  int client, served;
  union address names[4]; /* local and peer of each */
};

static void names_of(struct pair *pair, union address names[4]) {
  memset(names, 0, 4 * sizeof names[0]);
  for (int i = 0; i < 4; i++) {
    socklen_t size = sizeof names[i];
    int fd = i < 2 ? pair->client : pair->served;
    if ((i % 2 ? getpeername : getsockname)(fd, &names[i].any, &size) < 0)
      problem(__FILE_NAME__, __LINE__, "name");
  }
}

static int listen_at(int family, const char *text, int port, union address *name) {
  socklen_t size = sizeof *name;
  int listener = socket(family, SOCK_STREAM, 0), on = 1;
  memset(name, 0, sizeof *name);
  name->any.sa_family = (sa_family_t)family;
  inet_pton(family, text, family == AF_INET ? (void *)&name->four.sin_addr : (void *)&name->six.sin6_addr);
  name->four.sin_port = htons((uint16_t)port);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  MUST(bind(listener, &name->any, size) == 0 && listen(listener, 8) == 0);
  MUST(getsockname(listener, &name->any, &size) == 0);
  return listener;
}

static int connect_to(const union address *name) {
  int fd = socket(name->any.sa_family, SOCK_STREAM, 0);
  MUST(connect(fd, &name->any, name->any.sa_family == AF_INET ? sizeof name->four : sizeof name->six) == 0);
  return fd;
}

static struct pair connect_pair(int listener, const union address *name) {
  struct pair pair = {.client = connect_to(name)};
  pair.served = accept(listener, NULL, NULL);
  MUST(pair.served >= 0);
  names_of(&pair, pair.names);
  return pair;
}

static int same_names(struct pair *pair) {
  union address now[4];
  names_of(pair, now);
  return memcmp(now, pair->names, sizeof now) == 0;
}

static int send_text(int fd, const char *text) {
  return send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text);
}

/* Exactly this text, waiting for it at most a moment; "" is the end of the stream. */
static int receive(int fd, const char *text) {
  char bytes[256];
  size_t got = 0, wanted = strlen(text);
  struct pollfd asked = {fd, POLLIN, 0};
  do {
    if (poll(&asked, 1, 2000) != 1)
      return 0;
    ssize_t size = recv(fd, bytes + got, wanted ? wanted - got : sizeof bytes, MSG_DONTWAIT);
    if (size <= 0)
      return size == 0 && wanted == 0;
    got += (size_t)size;
  } while (got < wanted);
  return got == wanted && memcmp(bytes, text, wanted) == 0;
}

static int nothing_waits(int fd) {
  char byte;
  return recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

static int option(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  getsockopt(fd, level, name, &value, &size);
  return value;
}
static void set_option(int fd, int level, int name, int value) {
  MUST(setsockopt(fd, level, name, &value, sizeof value) == 0);
}

static unsigned char pattern(size_t at) { return (unsigned char)(at * 2654435761u >> 13); }

/* Sends until nothing more fits. */
static size_t stuff(int fd) {
  static unsigned char block[65536];
  size_t sent = 0;
  for (;;) {
    for (size_t i = 0; i < sizeof block; i++)
      block[i] = pattern(sent + i);
    ssize_t size = send(fd, block, sizeof block, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size < 0)
      return sent;
    sent += (size_t)size;
  }
}

/* Reads `wanted` bytes and the end of the stream. */
static int drain(int fd, size_t wanted) {
  static unsigned char block[65536];
  size_t got = 0;
  struct pollfd asked = {fd, POLLIN, 0};
  while (poll(&asked, 1, 2000) == 1) {
    ssize_t size = recv(fd, block, sizeof block, MSG_DONTWAIT);
    if (size <= 0)
      return size == 0 && got == wanted;
    for (ssize_t i = 0; i < size; i++)
      if (block[i] != pattern(got + (size_t)i))
        return 0;
    got += (size_t)size;
  }
  return 0;
}

int main(void) {
  union address name, name6, dual_name, queue_name;
  int listener = listen_at(AF_INET, "127.0.0.1", 7001, &name), listener6 = listen_at(AF_INET6, "::1", 7002, &name6);
  int dual = listen_at(AF_INET6, "::", 7003, &dual_name), queue = listen_at(AF_INET, "0.0.0.0", 7004, &queue_name);
  union address dual4 = {.four = {AF_INET, htons(7003), {htonl(INADDR_LOOPBACK)}, {0}}};

  struct pair plain = connect_pair(listener, &name), plain6 = connect_pair(listener6, &name6), mixed = connect_pair(dual, &dual4);
  struct pair *three[] = {&plain, &plain6, &mixed};
  for (int i = 0; i < 3; i++) {
    MUST(send_text(three[i]->client, "re") && send_text(three[i]->client, "quest") && send_text(three[i]->served, "answer"));
    MUST(receive(three[i]->served, "req"));
  }

  struct pair full = connect_pair(listener, &name), narrow = connect_pair(listener6, &name6);
  set_option(narrow.served, SOL_SOCKET, SO_RCVBUF, 100000);
  set_option(narrow.client, SOL_SOCKET, SO_SNDBUF, 20000);
  size_t in_full = stuff(full.client), in_narrow = stuff(narrow.client);
  MUST(in_full > 100000 && in_narrow > 5000 && shutdown(narrow.client, SHUT_WR) == 0);

  struct pair half = connect_pair(listener, &name), half6 = connect_pair(listener6, &name6);
  MUST(send_text(half.client, "last words") && shutdown(half.client, SHUT_WR) == 0);
  MUST(send_text(half6.served, "all") && shutdown(half6.served, SHUT_WR) == 0);
  struct pair left = connect_pair(listener, &name), over = connect_pair(listener, &name), deaf = connect_pair(listener, &name);
  MUST(send_text(left.client, "from the grave") && close(left.client) == 0);
  MUST(send_text(over.client, "it is over") && shutdown(over.client, SHUT_WR) == 0);
  MUST(send_text(over.served, "yes") && shutdown(over.served, SHUT_WR) == 0 && close(over.client) == 0);
  MUST(shutdown(deaf.served, SHUT_RD) == 0);

  struct pair tuned = connect_pair(listener, &name);
  struct linger linger = {1, 7};
  struct timeval patience = {3, 0};
  set_option(tuned.client, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(tuned.client, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(tuned.client, IPPROTO_TCP, TCP_KEEPIDLE, 123);
  set_option(tuned.client, IPPROTO_TCP, TCP_USER_TIMEOUT, 45678);
  set_option(tuned.client, IPPROTO_IP, IP_TOS, 0x10);
  set_option(tuned.client, SOL_SOCKET, SO_RCVBUF, 30000);
  set_option(tuned.client, SOL_SOCKET, SO_RCVLOWAT, 3);
  MUST(setsockopt(tuned.client, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
  MUST(setsockopt(tuned.client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
  MUST(fcntl(tuned.client, F_SETFL, O_NONBLOCK) == 0);
  set_option(queue, IPPROTO_TCP, TCP_DEFER_ACCEPT, 3);

  struct pair watched = connect_pair(listener, &name);
  int epoll = epoll_create1(0);
  struct epoll_event event = {EPOLLIN | EPOLLRDHUP, {.u64 = 99}};
  MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, watched.served, &event) == 0);

  set_option(queue, IPPROTO_TCP, TCP_DEFER_ACCEPT, 0);
  union address here = {.four = {AF_INET, htons(7004), {htonl(INADDR_LOOPBACK)}, {0}}};
  int first = connect_to(&here), gone = connect_to(&here);
  close(gone);
  int blocked[2];
  MUST(pipe(blocked) == 0);
  if (fork() == 0) { /* blocked in recv() on a connection that it shares */
    char text[8] = "";
    MUST(dup2(deaf.client, 200) == 200 && dup2(blocked[1], 201) == 201 && close_range(3, 199, 0) == 0);
    ssize_t size = recv(200, text, sizeof text, 0);
    if (write(201, size == 4 && memcmp(text, "wake", 4) == 0 ? "y" : "n", 1) != 1)
      _exit(1);
    _exit(0);
  }
  pause_ms(50); /* acknowledgements */

  ready_and_wait();

  for (int i = 0; i < 3; i++) {
    CHECK(same_names(three[i]));
    CHECK(receive(three[i]->served, "uest") && receive(three[i]->client, "answer"));
    CHECK(send_text(three[i]->client, "more") && receive(three[i]->served, "more"));
    CHECK(send_text(three[i]->served, "again") && receive(three[i]->client, "again"));
    CHECK(nothing_waits(three[i]->client) && nothing_waits(three[i]->served));
    close(three[i]->client);
    CHECK(receive(three[i]->served, ""));
  }
  CHECK(shutdown(full.client, SHUT_WR) == 0 && drain(full.served, in_full));
  CHECK(option(narrow.served, SOL_SOCKET, SO_RCVBUF) == 200000 && option(narrow.client, SOL_SOCKET, SO_SNDBUF) == 40000);
  CHECK(drain(narrow.served, in_narrow) && send_text(narrow.served, "done") && receive(narrow.client, "done"));
  CHECK(receive(half.served, "last words") && receive(half.served, ""));
  CHECK(send_text(half.served, "reply") && receive(half.client, "reply"));
  CHECK(!send_text(half.client, "x") && errno == EPIPE);
  CHECK(receive(half6.client, "all") && receive(half6.client, "") && send_text(half6.client, "x") && receive(half6.served, "x"));
  CHECK(receive(left.served, "from the grave") && receive(left.served, ""));
  send_text(left.served, "anybody?");
  pause_ms(20);
  CHECK(!send_text(left.served, "no") && errno == EPIPE);
  CHECK(receive(over.served, "it is over") && receive(over.served, "") && !send_text(over.served, "x") && errno == EPIPE);
  CHECK(receive(deaf.served, "") && send_text(deaf.served, "wake"));
  char answer = 0;
  CHECK(read(blocked[0], &answer, 1) == 1 && answer == 'y');

  CHECK(option(tuned.client, IPPROTO_TCP, TCP_NODELAY) == 1 && option(tuned.served, IPPROTO_TCP, TCP_NODELAY) == 0);
  CHECK(option(tuned.client, SOL_SOCKET, SO_KEEPALIVE) == 1 && option(tuned.client, IPPROTO_TCP, TCP_KEEPIDLE) == 123);
  CHECK(option(tuned.client, IPPROTO_TCP, TCP_USER_TIMEOUT) == 45678 && option(tuned.client, IPPROTO_IP, IP_TOS) == 0x10);
  CHECK(option(tuned.client, SOL_SOCKET, SO_RCVBUF) == 60000 && option(tuned.client, SOL_SOCKET, SO_RCVLOWAT) == 3);
  CHECK(option(tuned.served, SOL_SOCKET, SO_REUSEADDR) == 1 && option(tuned.client, SOL_SOCKET, SO_REUSEADDR) == 0);
  CHECK(option(tuned.client, IPPROTO_TCP, TCP_MAXSEG) > 30000);
  struct linger linger_now = {0};
  socklen_t size = sizeof linger_now;
  CHECK(getsockopt(tuned.client, SOL_SOCKET, SO_LINGER, &linger_now, &size) == 0 && linger_now.l_onoff == 1 && linger_now.l_linger == 7);
  struct timeval patience_now = {0};
  size = sizeof patience_now;
  CHECK(getsockopt(tuned.client, SOL_SOCKET, SO_RCVTIMEO, &patience_now, &size) == 0 && patience_now.tv_sec == 3);
  CHECK(fcntl(tuned.client, F_GETFL) & O_NONBLOCK);

  struct epoll_event found;
  CHECK(epoll_wait(epoll, &found, 1, 0) == 0 && send_text(watched.client, "event"));
  CHECK(epoll_wait(epoll, &found, 1, 2000) == 1 && found.data.u64 == 99 && receive(watched.served, "event"));

  int ends = 0, lives = 0;
  for (int i = 0; i < 2; i++) {
    struct pollfd asked = {queue, POLLIN, 0};
    int served = poll(&asked, 1, 2000) == 1 ? accept(queue, NULL, NULL) : -1;
    CHECK(served >= 0);
    if (nothing_waits(served)) {
      lives++;
      CHECK(send_text(first, "accepted") && receive(served, "accepted") && send_text(served, "hello") && receive(first, "hello"));
    } else {
      ends++;
      CHECK(receive(served, ""));
    }
  }
  CHECK(ends == 1 && lives == 1);
  struct pair fresh = connect_pair(listener, &name);
  CHECK(send_text(fresh.client, "new") && receive(fresh.served, "new"));
  finish();
}
