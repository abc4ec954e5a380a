/* UDP: connected sockets, waiting datagrams with their senders, options. */
#include "fidelity.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static struct sockaddr_in at(int port) { return (struct sockaddr_in){AF_INET, htons((uint16_t)port), {htonl(INADDR_LOOPBACK)}, {0}}; }
static struct sockaddr_in6 at6(int port) { return (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_loopback}; }

static int bound(int port) {
  struct sockaddr_in name = at(port);
  int fd = socket(AF_INET, SOCK_DGRAM, 0);
  MUST(bind(fd, (struct sockaddr *)&name, sizeof name) == 0);
  return fd;
}
static int bound6(int port) {
  struct sockaddr_in6 name = at6(port);
  int fd = socket(AF_INET6, SOCK_DGRAM, 0);
  MUST(bind(fd, (struct sockaddr *)&name, sizeof name) == 0);
  return fd;
}

static int send_to(int fd, int port, const char *text) {
  struct sockaddr_in name = at(port);
  return sendto(fd, text, strlen(text), 0, (struct sockaddr *)&name, sizeof name) == (ssize_t)strlen(text);
}

static int receive_from(int fd, int port, const char *text) {
  char bytes[256];
  struct sockaddr_in6 sender;
  socklen_t size = sizeof sender;
  ssize_t count = recvfrom(fd, bytes, sizeof bytes, MSG_DONTWAIT, (struct sockaddr *)&sender, &size);
  return count == (ssize_t)strlen(text) && memcmp(bytes, text, (size_t)count) == 0 && sender.sin6_port == htons((uint16_t)port);
}

int main(void) {
  int server = bound(6001), peer = bound(6002), wild = socket(AF_INET, SOCK_DGRAM, 0), six = bound6(6004), six_peer = bound6(6005);
  struct sockaddr_in any = {AF_INET, htons(6003), {INADDR_ANY}, {0}}, name = at(6001);
  MUST(bind(wild, (struct sockaddr *)&any, sizeof any) == 0);
  int gone = bound(6009), connected = socket(AF_INET, SOCK_DGRAM, 0), value = 3;
  MUST(send_to(gone, 6001, "from the grave") && close(gone) == 0);
  MUST(send_to(peer, 6001, "one") && send_to(peer, 6001, "") && send_to(wild, 6001, "two") && send_to(peer, 6003, "to any"));
  MUST(send_to(server, 6002, "back"));
  MUST(connect(connected, (struct sockaddr *)&name, sizeof name) == 0 && send(connected, "connected", 9, 0) == 9);
  struct sockaddr_in own;
  socklen_t size = sizeof own;
  MUST(getsockname(connected, (struct sockaddr *)&own, &size) == 0);
  int port = ntohs(own.sin_port);
  MUST(send_to(server, port, "reply"));
  struct sockaddr_in6 six_name = at6(6004);
  MUST(sendto(six_peer, "six", 3, 0, (struct sockaddr *)&six_name, sizeof six_name) == 3);
  MUST(setsockopt(wild, IPPROTO_IP, IP_TTL, &value, sizeof value) == 0 && setsockopt(wild, SOL_SOCKET, SO_BROADCAST, &value, sizeof value) == 0);
  value = 20000;
  MUST(setsockopt(wild, SOL_SOCKET, SO_RCVBUF, &value, sizeof value) == 0);

  ready_and_wait();

  CHECK(receive_from(server, 6009, "from the grave") && receive_from(server, 6002, "one") && receive_from(server, 6002, ""));
  CHECK(receive_from(server, 6003, "two") && receive_from(server, port, "connected") && !receive_from(server, 0, ""));
  CHECK(receive_from(wild, 6002, "to any") && receive_from(peer, 6001, "back") && receive_from(connected, 6001, "reply"));
  CHECK(receive_from(six, 6005, "six"));
  CHECK(send(connected, "again", 5, 0) == 5 && receive_from(server, port, "again"));
  CHECK(send_to(peer, port, "stranger") && !receive_from(connected, 6002, "stranger"));
  size = sizeof value;
  CHECK(getsockopt(wild, IPPROTO_IP, IP_TTL, &value, &size) == 0 && value == 3);
  CHECK(getsockopt(wild, SOL_SOCKET, SO_BROADCAST, &value, &size) == 0 && value == 1);
  CHECK(getsockopt(wild, SOL_SOCKET, SO_RCVBUF, &value, &size) == 0 && value == 40000);
  finish();
}
