#include "stat_line.h"

#include <string.h>

#define PID_BOUND 100000000

pid_t stat_parse_pid(const char **text) {
  pid_t value = 0;
  while (**text == ' ')
    (*text)++;
  if (**text < '0' || **text > '9')
    return -1;
  while (**text >= '0' && **text <= '9' && value < PID_BOUND)
    value = value * 10 + *(*text)++ - '0';
  return value;
}

bool stat_parse(const char *text, struct stat_line *line) {
  /* The name in parentheses may hold anything, also parentheses: fields count from the last. */
  const char *at = strrchr(text, ')');
  if (!at || at[1] != ' ' || !at[2])
    return false;
  line->state = at[2];
  at += 3;
  line->parent = stat_parse_pid(&at);
  stat_parse_pid(&at); /* process group */
  line->session = stat_parse_pid(&at);
  return line->parent >= 0;
}
