/* What the programs of the benchmarks share: one clock, and one way to give up. */
#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline _Noreturn void die(const char *operation)
{
    fprintf(stderr, "%s: %s\n", operation, strerror(errno));
    exit(1);
}

static inline _Noreturn void give_up(const char *what, const char *object)
{
    fprintf(stderr, "%s: %s\n", object, what);
    exit(1);
}

static inline long long now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

#endif
