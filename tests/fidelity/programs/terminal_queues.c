/* What waits in ptys: lines, a line that is being typed, raw input, an end of file, output, also of
 * a terminal that nobody has open any more or that is stopped; packet mode. */
#include "fidelity.h"

#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>

struct terminal {
  int master, slave;
};

static struct terminal open_terminal(void) {
  struct terminal terminal;
  MUST(openpty(&terminal.master, &terminal.slave, NULL, NULL, NULL) == 0);
  fcntl(terminal.slave, F_SETFL, O_NONBLOCK);
  return terminal;
}

static int put(int fd, const char *text) { return write(fd, text, strlen(text)) == (ssize_t)strlen(text); }

/* One read that gives exactly this. */
static int gives(int fd, const char *text, size_t size) {
  char bytes[256];
  struct pollfd asked = {fd, POLLIN, 0};
  return poll(&asked, 1, 1000) == 1 && read(fd, bytes, sizeof bytes) == (ssize_t)size && memcmp(bytes, text, size) == 0;
}
#define GIVES(fd, text) CHECK(gives(fd, text, sizeof text - 1))

static int nothing(int fd) {
  struct pollfd asked = {fd, POLLIN, 0};
  return poll(&asked, 1, 0) == 0;
}

static void set_local(int fd, tcflag_t clear) {
  struct termios settings;
  tcgetattr(fd, &settings);
  settings.c_lflag &= ~clear;
  tcsetattr(fd, TCSANOW, &settings);
}

int main(void) {
  struct terminal lines = open_terminal(), editing = open_terminal(), raw = open_terminal(), end = open_terminal();
  struct terminal packets = open_terminal(), left = open_terminal(), stopped = open_terminal();
  int unopened = posix_openpt(O_RDWR | O_NOCTTY), on = 1;
  MUST(put(lines.master, "line one\nline two\nhalf ty"));
  pause_ms(20); /* its echo comes first */
  MUST(put(lines.slave, "prompt> "));
  MUST(put(editing.master, "abX"));
  set_local(raw.slave, ICANON | ECHO | ISIG);
  MUST(write(raw.master, "raw\003\004\0\r", 7) == 7);
  set_local(end.slave, ECHO);
  MUST(put(end.master, "whole\nno newline\004"));
  MUST(ioctl(packets.master, TIOCPKT, &on) == 0 && put(packets.slave, "packet\n"));
  MUST(put(left.slave, "last words\n") && close(left.slave) == 0);
  MUST(put(stopped.slave, "before ") && put(stopped.master, "\023"));
  pause_ms(20);
  MUST(unopened >= 0 && write(stopped.slave, "x", 1) < 0 && errno == EAGAIN);

  ready_and_wait();

  GIVES(lines.slave, "line one\n");
  GIVES(lines.slave, "line two\n");
  CHECK(nothing(lines.slave));
  GIVES(lines.master, "line one\r\nline two\r\nhalf typrompt> ");
  CHECK(put(lines.master, "ped\n"));
  GIVES(lines.slave, "half typed\n");
  GIVES(lines.master, "ped\r\n");
  CHECK(nothing(editing.slave) && put(editing.master, "\177c\n"));
  GIVES(editing.slave, "abc\n");
  GIVES(raw.slave, "raw\003\004\0\n");
  GIVES(end.slave, "whole\n");
  GIVES(end.slave, "no newline");
  CHECK(nothing(end.slave) && nothing(end.master));
  GIVES(packets.master, "\0packet\r\n");
  CHECK(put(packets.slave, "more"));
  GIVES(packets.master, "\0more");
  GIVES(left.master, "last words\r\n");
  char byte;
  CHECK(read(left.master, &byte, 1) < 0 && errno == EIO);
  CHECK(write(stopped.slave, "x", 1) < 0 && errno == EAGAIN && put(stopped.master, "\021"));
  pause_ms(20);
  CHECK(put(stopped.slave, "after"));
  pause_ms(20);
  GIVES(stopped.master, "before after");
  CHECK(nothing(unopened));
  finish();
}
