/* Unix sockets: pairs of every type with queued data, a listener and a connection through it, shut
 * down and half closed ends; listening TCP, bound UDP. */
#include "fidelity.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

static int receive(int fd, const char *text) {
  char bytes[256] = "";
  ssize_t size = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
  return size == (ssize_t)strlen(text) && memcmp(bytes, text, (size_t)size) == 0;
}
static int send_text(int fd, const char *text) {
  return send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text);
}

int main(void) {
  int stream[2], datagram[2], packet[2], half[2], closed[2];
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, stream) == 0);
  MUST(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, datagram) == 0);
  MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packet) == 0);
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, half) == 0);
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, closed) == 0);
  MUST(send_text(stream[0], "one") && send_text(stream[0], "two") && send_text(stream[1], "back"));
  MUST(send_text(datagram[0], "first") && send_text(datagram[0], "second"));
  MUST(send_text(packet[1], "packet a") && send_text(packet[1], "packet b"));
  MUST(send_text(half[0], "last words") && shutdown(half[0], SHUT_WR) == 0);
  MUST(send_text(closed[0], "from the grave"));
  close(closed[0]);
  struct sockaddr_un address = {AF_UNIX, "/var/tmp/socket"}, abstract = {AF_UNIX, "\0hidden"};
  int listener = socket(AF_UNIX, SOCK_STREAM, 0), hidden = socket(AF_UNIX, SOCK_DGRAM, 0);
  MUST(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && chmod(address.sun_path, 0666) == 0);
  MUST(listen(listener, 7) == 0 && bind(hidden, (struct sockaddr *)&abstract, sizeof(sa_family_t) + 7) == 0);
  int client = socket(AF_UNIX, SOCK_STREAM, 0);
  MUST(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
  int served = accept(listener, NULL, NULL);
  MUST(served >= 0 && send_text(client, "request"));
  int tcp = socket(AF_INET, SOCK_STREAM, 0), udp = socket(AF_INET6, SOCK_DGRAM, 0), on = 1;
  struct sockaddr_in name = {AF_INET, htons(8080), {htonl(INADDR_LOOPBACK)}, {0}};
  setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  MUST(bind(tcp, (struct sockaddr *)&name, sizeof name) == 0 && listen(tcp, 11) == 0);
  struct sockaddr_in6 name6 = {.sin6_family = AF_INET6, .sin6_port = htons(5353), .sin6_addr = in6addr_loopback};
  MUST(bind(udp, (struct sockaddr *)&name6, sizeof name6) == 0);

  ready_and_wait();

  CHECK(receive(stream[1], "onetwo") && receive(stream[0], "back"));
  CHECK(send_text(stream[0], "more") && receive(stream[1], "more"));
  CHECK(receive(datagram[1], "first") && receive(datagram[1], "second") && !receive(datagram[1], ""));
  CHECK(receive(packet[0], "packet a") && receive(packet[0], "packet b"));
  CHECK(send_text(packet[0], "reply") && receive(packet[1], "reply"));
  CHECK(receive(half[1], "last words") && receive(half[1], "") && send_text(half[1], "answer") && receive(half[0], "answer"));
  CHECK(receive(closed[1], "from the grave") && receive(closed[1], "") && !send_text(closed[1], "x") && errno == EPIPE);
  struct sockaddr_un seen = {0};
  socklen_t size = sizeof seen;
  CHECK(receive(served, "request") && send_text(served, "response") && receive(client, "response"));
  CHECK(getsockname(served, (struct sockaddr *)&seen, &size) == 0 && strcmp(seen.sun_path, address.sun_path) == 0);
  size = sizeof seen;
  CHECK(getpeername(client, (struct sockaddr *)&seen, &size) == 0 && strcmp(seen.sun_path, address.sun_path) == 0);
  int another = socket(AF_UNIX, SOCK_STREAM, 0);
  CHECK(connect(another, (struct sockaddr *)&address, sizeof address) == 0 && accept(listener, NULL, NULL) >= 0);
  int sender = socket(AF_UNIX, SOCK_DGRAM, 0);
  CHECK(sendto(sender, "x", 1, 0, (struct sockaddr *)&abstract, sizeof(sa_family_t) + 7) == 1 && receive(hidden, "x"));
  struct stat status;
  CHECK(stat(address.sun_path, &status) == 0 && S_ISSOCK(status.st_mode) && (status.st_mode & 0777) == 0666);
  int caller = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(connect(caller, (struct sockaddr *)&name, sizeof name) == 0 && accept(tcp, NULL, NULL) >= 0);
  int caller6 = socket(AF_INET6, SOCK_DGRAM, 0);
  CHECK(sendto(caller6, "y", 1, 0, (struct sockaddr *)&name6, sizeof name6) == 1);
  pause_ms(20);
  CHECK(receive(udp, "y"));
  finish();
}
