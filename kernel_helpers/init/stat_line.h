/* What of /proc/PID/stat says whose child a process is. Pure: no system call. */
#ifndef VENUS_INIT_STAT_LINE_H
#define VENUS_INIT_STAT_LINE_H

#include <stdbool.h>
#include <sys/types.h>

struct stat_line {
  pid_t parent;
  pid_t session;
  char state;
};

/* `text` is NUL terminated; it may end anywhere. */
bool stat_parse(const char *text, struct stat_line *line);

/* The number at `*text`, behind blanks, or -1; moves behind it. */
pid_t stat_parse_pid(const char **text);

#endif
