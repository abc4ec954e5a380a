/* Sleeps a long time, until a signal comes, whose handler waits as well. */
#include "../fidelity.h"

#include <poll.h>

static void on_signal(int number) {
  (void)number;
  write_file("/var/tmp/in-handler", "yes");
  while (access(GO_FILE, F_OK) < 0)
    poll(NULL, 0, 2); /* another call than the one that it has interrupted */
}

int main(void) {
  struct sigaction action = {.sa_handler = on_signal};
  struct timespec long_time = {1000, 0}, rest = {0, 0};
  MUST(sigaction(SIGUSR1, &action, NULL) == 0);
  write_file(READY_FILE, "ready");
  int result = nanosleep(&long_time, &rest);
  int error = errno;
  CHECK(result == -1 && error == EINTR && long_time.tv_sec == 1000 && rest.tv_sec > 900 && rest.tv_sec < 1000);
  finish();
}
