/* A stack that has not grown yet grows in the fork; arguments and environment are still shown. */
#include "fidelity.h"

static int descend(int depth) {
  volatile char frame[16384];
  frame[0] = (char)depth;
  frame[sizeof frame - 1] = (char)depth;
  if (depth == 0)
    return 0;
  int below = descend(depth - 1);
  return below + (frame[0] == (char)depth && frame[sizeof frame - 1] == (char)depth);
}

static int holds(const char *path, const char *text) {
  char bytes[65536];
  int fd = open(path, O_RDONLY);
  ssize_t size = read(fd, bytes, sizeof bytes);
  close(fd);
  return size > 0 && memmem(bytes, (size_t)size, text, strlen(text)) != NULL;
}

int main(int argc, char **argv) {
  (void)argc;
  MUST(descend(3) == 3);
  ready_and_wait();
  CHECK(descend(300) == 300); /* 4.7 MiB */
  CHECK(strstr(argv[0], "stack") != NULL);
  CHECK(holds("/proc/self/cmdline", "stack"));
  CHECK(holds("/proc/self/environ", "PATH="));
  char target[256] = "";
  CHECK(readlink("/proc/self/exe", target, sizeof target - 1) > 0 && strstr(target, "/stack"));
  CHECK(holds("/proc/self/comm", "stack"));
  finish();
}
