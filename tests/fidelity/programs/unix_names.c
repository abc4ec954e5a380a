/* Unix sockets: datagrams with and without a sender's name, several senders to one socket,
 * connections that wait to be accepted, connected sockets with names of their own, accepted ones
 * whose listener is gone. */
#include "fidelity.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

struct name {
  struct sockaddr_un address;
  socklen_t size;
};

static struct name hidden(const char *text) {
  struct name name = {{AF_UNIX, ""}, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(text))};
  strcpy(name.address.sun_path + 1, text);
  return name;
}
static struct name at_path(const char *path) {
  struct name name = {{AF_UNIX, ""}, sizeof(struct sockaddr_un)};
  strcpy(name.address.sun_path, path);
  return name;
}
static int make(int type, const struct name *name) {
  int fd = socket(AF_UNIX, type, 0);
  MUST(fd >= 0 && (!name || bind(fd, (const struct sockaddr *)&name->address, name->size) == 0));
  return fd;
}
static void connect_to(int fd, const struct name *name) { MUST(connect(fd, (const struct sockaddr *)&name->address, name->size) == 0); }

static int is_named(int fd, int peer, const struct name *name) {
  struct name found = {.size = sizeof found.address};
  if ((peer ? getpeername : getsockname)(fd, (struct sockaddr *)&found.address, &found.size) < 0)
    return 0;
  const char *own = found.address.sun_path, *wanted = name->address.sun_path;
  return own[0] == wanted[0] && strcmp(own + !own[0], wanted + !wanted[0]) == 0;
}

static int receive_from(int fd, const struct name *sender, const char *text) {
  char bytes[64];
  struct name found = {.size = sizeof found.address};
  ssize_t size = recvfrom(fd, bytes, sizeof bytes, MSG_DONTWAIT, (struct sockaddr *)&found.address, &found.size);
  int same = sender ? strcmp(found.address.sun_path + 1, sender->address.sun_path + 1) == 0 : found.size <= sizeof(sa_family_t);
  return size == (ssize_t)strlen(text) && memcmp(bytes, text, (size_t)size) == 0 && same;
}
static int send_text(int fd, const char *text) { return send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text); }
static int receive(int fd, const char *text) {
  char bytes[64];
  ssize_t size = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
  return size == (ssize_t)strlen(text) && memcmp(bytes, text, (size_t)size) == 0;
}

int main(void) {
  struct name log = at_path("/var/tmp/log"), reply = hidden("reply"), dead = hidden("dead");
  int server = make(SOCK_DGRAM, &log), named = make(SOCK_DGRAM, &reply), plain = make(SOCK_DGRAM, NULL), gone = make(SOCK_DGRAM, &dead);
  connect_to(named, &log);
  connect_to(plain, &log);
  connect_to(gone, &log);
  MUST(send_text(named, "named") && send_text(plain, "plain") && send_text(gone, "dead") && send_text(named, "") && send_text(named, "last"));
  close(gone);

  struct name service = at_path("/var/tmp/service"), packets = hidden("packets"), client_name = hidden("client");
  int listener = make(SOCK_STREAM, &service), packet_listener = make(SOCK_SEQPACKET, &packets);
  MUST(listen(listener, 5) == 0 && listen(packet_listener, 5) == 0 && chmod("/var/tmp/service", 0600) == 0);
  int calling = make(SOCK_STREAM, &client_name), served;
  connect_to(calling, &service);
  MUST((served = accept(listener, NULL, NULL)) >= 0 && send_text(calling, "request"));
  int first = make(SOCK_STREAM, NULL), second = make(SOCK_STREAM, NULL), packet = make(SOCK_SEQPACKET, NULL);
  connect_to(first, &service);
  connect_to(second, &service);
  connect_to(packet, &packets);

  struct name past = hidden("past"), past_path = at_path("/var/tmp/past");
  int old = make(SOCK_STREAM, &past), old_path = make(SOCK_STREAM, &past_path);
  MUST(listen(old, 2) == 0 && listen(old_path, 2) == 0);
  int old_client = make(SOCK_STREAM, NULL), path_client = make(SOCK_STREAM, NULL);
  connect_to(old_client, &past);
  connect_to(path_client, &past_path);
  int old_served = accept(old, NULL, NULL), path_served = accept(old_path, NULL, NULL);
  MUST(old_served >= 0 && path_served >= 0 && close(old) == 0 && close(old_path) == 0 && unlink("/var/tmp/past") == 0);
  MUST(send_text(old_client, "still") && send_text(path_served, "there"));

  ready_and_wait();

  CHECK(receive_from(server, &reply, "named") && receive_from(server, NULL, "plain") && receive_from(server, &dead, "dead"));
  CHECK(receive_from(server, &reply, "") && receive_from(server, &reply, "last") && !receive_from(server, NULL, ""));
  CHECK(is_named(named, 1, &log) && is_named(plain, 1, &log) && send_text(plain, "more") && receive_from(server, NULL, "more"));
  struct stat status;
  CHECK(stat("/var/tmp/service", &status) == 0 && (status.st_mode & 0777) == 0600);
  CHECK(is_named(calling, 0, &client_name) && is_named(served, 1, &client_name) && is_named(served, 0, &service));
  CHECK(receive(served, "request") && send_text(served, "answer") && receive(calling, "answer"));
  CHECK(is_named(first, 1, &service) && send_text(second, "second") && send_text(first, "first") && send_text(packet, "packet"));
  int one = accept(listener, NULL, NULL), two = accept(listener, NULL, NULL), three = accept(packet_listener, NULL, NULL);
  CHECK(receive(one, "first") && receive(two, "second") && receive(three, "packet") && send_text(one, "hello") && receive(first, "hello"));
  CHECK(is_named(old_served, 0, &past) && is_named(old_client, 1, &past) && receive(old_served, "still"));
  CHECK(is_named(path_served, 0, &past_path) && receive(path_client, "there") && access("/var/tmp/past", F_OK) < 0);
  CHECK(send_text(old_served, "back") && receive(old_client, "back"));
  finish();
}
