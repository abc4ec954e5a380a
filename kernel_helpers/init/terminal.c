#include "terminal.h"

#include <sys/ioctl.h>

#include "sys.h"

#ifndef TIOCGPTPEER
#define TIOCGPTPEER 0x5441
#endif

/* Not with O_CLOEXEC: unlike open(), this call would leave it among the flags of the open file, where
 * it looks as if every descriptor of it were to be closed. */
int terminal_slave(int master) {
  int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY);
  if (slave >= 0)
    fcntl(slave, F_SETFD, FD_CLOEXEC);
  return slave;
}

int terminal_open(int devpts, uint16_t rows, uint16_t columns, struct terminal *terminal) {
  struct winsize size = {.ws_row = rows, .ws_col = columns};
  int locked = 0;
  terminal->slave = -1;
  /* A sandbox without devpts has -1 here, which is an error like any other. */
  terminal->master = openat(devpts, "ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (terminal->master < 0)
    return errno;
  if (ioctl(terminal->master, TIOCSWINSZ, &size) < 0 ||
      ioctl(terminal->master, TIOCSPTLCK, &locked) < 0 ||
      (terminal->slave = terminal_slave(terminal->master)) < 0) {
    int error = errno;
    close_fd(&terminal->master);
    return error;
  }
  return 0;
}

/* Between the unlocking and this somebody in the sandbox may have opened the slave by its name and
 * taken it for a session of his own. It is not taken back: the command does not start. */
int terminal_take(void) { return ioctl(STDIN_FILENO, TIOCSCTTY, 0) < 0 ? errno : 0; }
