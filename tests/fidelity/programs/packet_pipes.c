/* Pipes in packet mode: several packets, one, none; a mode that was turned on and off later. */
#include "fidelity.h"

static int put(int fd, const char *text) {
  return write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

static int get(int fd, size_t room, const char *wanted) {
  char bytes[5000];
  return read(fd, bytes, room) == (ssize_t)strlen(wanted) && memcmp(bytes, wanted, strlen(wanted)) == 0;
}

static int is_packet(int fd) {
  return (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
}

int main(void) {
  int several[2], one[2], none[2], late[2], off[2];
  MUST(pipe2(several, O_DIRECT) == 0 && pipe2(one, O_DIRECT | O_NONBLOCK) == 0 && pipe2(none, O_DIRECT) == 0);
  MUST(put(several[1], "first") && put(several[1], "2") && put(several[1], "the third"));
  MUST(put(one[1], "only"));
  MUST(pipe(late) == 0 && fcntl(late[1], F_SETFL, O_DIRECT) == 0 && put(late[1], "a") && put(late[1], "b"));
  MUST(pipe2(off, O_DIRECT) == 0 && put(off[1], "c") && put(off[1], "d") && fcntl(off[1], F_SETFL, 0) == 0);

  ready_and_wait();

  CHECK(!is_packet(several[0]) && is_packet(several[1]) && is_packet(one[1]) && is_packet(none[1]));
  CHECK(is_packet(late[1]) && !is_packet(late[0]) && !is_packet(off[1]) && !is_packet(off[0]));
  /* What does not fit is lost with its packet. */
  CHECK(get(several[0], 3, "fir") && get(several[0], 100, "2") && get(several[0], 100, "the third"));
  CHECK(put(one[1], "more") && get(one[0], 100, "only") && get(one[0], 100, "more"));
  CHECK(put(none[1], "x") && put(none[1], "y") && get(none[0], 100, "x") && get(none[0], 100, "y"));
  CHECK(get(late[0], 100, "a") && get(late[0], 100, "b"));
  CHECK(put(off[1], "e") && put(off[1], "f") && get(off[0], 100, "c") && get(off[0], 100, "d") && get(off[0], 100, "ef"));
  finish();
}
