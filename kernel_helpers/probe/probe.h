#ifndef VENUS_PROBE_H
#define VENUS_PROBE_H

struct probe {
  const char *name;
  int (*run)(void); /* 0 or errno; runs in a child, may leave anything behind in it */
};

extern const struct probe probes[];
extern const unsigned probe_count;

#endif
