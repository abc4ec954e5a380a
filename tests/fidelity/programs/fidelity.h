/* What every program of this folder shares: it sets its state up, says that it is ready, is captured
 * and forked while it waits, and then checks itself, in the fork and in the original. */
#ifndef FIDELITY_H
#define FIDELITY_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READY_FILE "/var/tmp/ready"
#define GO_FILE "/var/tmp/go"
#define RESULT_FILE "/var/tmp/result"

static char problems[4096];

static inline void problem(const char *file, int line, const char *text) {
  size_t used = strlen(problems);
  snprintf(problems + used, sizeof problems - used, "%s:%d: %s (errno %d); ", file, line, text, errno);
}

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    errno = 0;                                                                                     \
    if (!(condition))                                                                              \
      problem(__FILE_NAME__, __LINE__, #condition);                                                \
  } while (0)

/* Set-up that cannot fail in a healthy sandbox. */
#define MUST(condition)                                                                            \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      problem(__FILE_NAME__, __LINE__, "set-up: " #condition);                                     \
      finish();                                                                                    \
    }                                                                                              \
  } while (0)

static inline void write_file(const char *path, const char *text) {
  char temporary[256];
  snprintf(temporary, sizeof temporary, "%s.new", path);
  int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (write(fd, text, strlen(text)) < 0)
    _exit(99);
  close(fd);
  rename(temporary, path);
}

static inline void finish(void) {
  write_file(RESULT_FILE, *problems ? problems : "ok");
  for (;;)
    pause();
}

/* Without a remainder: the kernel writes it at every stop, and it is never twice the same. */
static inline void pause_ms(long ms) {
  struct timespec rest = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&rest, NULL) < 0)
    if (errno != EINTR) { /* a stop must never show */
      problem(__FILE_NAME__, __LINE__, "nanosleep");
      break;
    }
}

static inline void wait_for_go(void) {
  while (access(GO_FILE, F_OK) < 0)
    pause_ms(2);
}

static inline void ready_and_wait(void) {
  write_file(READY_FILE, "ready");
  wait_for_go();
}

static inline double now_s(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

#endif
