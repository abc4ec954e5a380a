/* Which directory an inotify watch belongs to: numbers to paths below the watched one. */
#ifndef VENUS_INIT_WATCHED_DIRECTORIES_H
#define VENUS_INIT_WATCHED_DIRECTORIES_H

#include <stddef.h>

#define MAX_WATCHED_DIRECTORIES 8192u

/* NULL if there is none. */
const char *watched_path(int number);

/* Enters or renames one. 0, ENOMEM, or EMFILE when there are too many. */
int watched_enter(int number, const char *path);

void watched_drop(int number);

/* What lies at or below `path` lies at or below `target` from here on. 0 or ENOMEM. */
int watched_move(const char *path, const char *target);

/* The number of one at or below `path`, -1 if there is none. */
int watched_below(const char *path);

#endif
