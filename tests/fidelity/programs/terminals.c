/* A pty with settings, size, a session of its own, and a foreground group. */
#include "fidelity.h"

#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>

int main(void) {
  int spare_master, spare_slave, master, slave;
  struct winsize size = {40, 133, 0, 0};
  MUST(openpty(&spare_master, &spare_slave, NULL, NULL, NULL) == 0);
  MUST(openpty(&master, &slave, NULL, NULL, &size) == 0);
  close(spare_master);
  close(spare_slave); /* ours has index 1, index 0 is free again */
  struct termios settings;
  tcgetattr(slave, &settings);
  settings.c_lflag &= ~(tcflag_t)(ECHO | ICANON);
  settings.c_cc[VMIN] = 3;
  cfsetspeed(&settings, B9600);
  MUST(tcsetattr(slave, TCSANOW, &settings) == 0);
  int sync_pipe[2], answers[2];
  char line[32];
  MUST(pipe(sync_pipe) == 0 && pipe(answers) == 0);
  pid_t leader = fork();
  if (leader == 0) {
    setsid();
    ioctl(slave, TIOCSCTTY, 0);
    pid_t job = fork();
    if (job == 0) {
      setpgid(0, 0);
      signal(SIGINT, SIG_DFL);
      for (;;)
        pause();
    }
    setpgid(job, job);
    signal(SIGTTOU, SIG_IGN);
    tcsetpgrp(slave, job);
    int own = open("/dev/tty", O_RDWR | O_NONBLOCK);
    if (write(sync_pipe[1], "x", 1) != 1)
      _exit(1);
    wait_for_go();
    int tty = open("/dev/tty", O_RDWR), status = 0;
    char ok = tty >= 0 && tcgetpgrp(tty) == job && getsid(0) == getpid() ? 'y' : 'n', where[16] = "";
    struct winsize seen = {0};
    if (tcgetpgrp(own) != job || ioctl(own, TIOCGWINSZ, &seen) < 0 || seen.ws_col != 133 || !(fcntl(own, F_GETFL) & O_NONBLOCK))
      ok = 'n';
    snprintf(line, sizeof line, "/proc/self/fd/%d", own);
    if (readlink(line, where, sizeof where - 1) != 8 || strcmp(where, "/dev/tty") != 0)
      ok = 'n';
    if (write(answers[1], &ok, 1) != 1)
      _exit(1);
    /* ^C of the terminal reaches the foreground group, and only that. */
    ok = waitpid(job, &status, 0) == job && WIFSIGNALED(status) && WTERMSIG(status) == SIGINT ? 'y' : 'n';
    if (write(answers[1], &ok, 1) != 1)
      _exit(1);
    _exit(0);
  }
  char byte;
  MUST(read(sync_pipe[0], &byte, 1) == 1);

  ready_and_wait();

  char name[64];
  CHECK(ttyname_r(slave, name, sizeof name) == 0 && strcmp(name, "/dev/pts/1") == 0);
  struct termios now;
  CHECK(tcgetattr(slave, &now) == 0 && !(now.c_lflag & (ECHO | ICANON)) && now.c_cc[VMIN] == 3 &&
        cfgetospeed(&now) == B9600);
  struct winsize size_now = {0};
  CHECK(ioctl(master, TIOCGWINSZ, &size_now) == 0 && size_now.ws_row == 40 && size_now.ws_col == 133);
  CHECK(write(master, "abc", 3) == 3);
  char text[16] = "";
  CHECK(read(slave, text, sizeof text) == 3 && memcmp(text, "abc", 3) == 0);
  CHECK(write(slave, "out\n", 4) == 4 && read(master, text, sizeof text) == 5 && memcmp(text, "out\r\n", 5) == 0);
  CHECK(read(answers[0], &byte, 1) == 1 && byte == 'y');
  CHECK(write(master, "\003", 1) == 1);
  CHECK(read(answers[0], &byte, 1) == 1 && byte == 'y');
  int fresh_master, fresh_slave;
  CHECK(openpty(&fresh_master, &fresh_slave, name, NULL, NULL) == 0 && strcmp(name, "/dev/pts/0") == 0);
  finish();
}
