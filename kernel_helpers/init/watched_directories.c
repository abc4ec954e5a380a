#include "watched_directories.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct watched {
  int number;
  char *path;
};

/* By number: the kernel counts up, so a new one is nearly always the last. */
static struct watched table[MAX_WATCHED_DIRECTORIES]; /* touched in children only */
static size_t count;

/* Where the number is, or would be. */
static size_t place(int number) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (table[middle].number < number)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static struct watched *find(int number) {
  size_t at = place(number);
  return at < count && table[at].number == number ? &table[at] : NULL;
}

const char *watched_path(int number) {
  struct watched *found = find(number);
  return found ? found->path : NULL;
}

int watched_enter(int number, const char *path) {
  struct watched *found = find(number);
  if (!found && count == MAX_WATCHED_DIRECTORIES)
    return EMFILE;
  char *copy = strdup(path);
  if (!copy)
    return ENOMEM;
  if (found) {
    free(found->path);
    found->path = copy;
    return 0;
  }
  size_t at = place(number);
  memmove(&table[at + 1], &table[at], (count - at) * sizeof table[0]);
  table[at] = (struct watched){number, copy};
  count++;
  return 0;
}

void watched_drop(int number) {
  struct watched *found = find(number);
  if (!found)
    return;
  free(found->path);
  count--;
  memmove(found, found + 1, (size_t)(&table[count] - found) * sizeof table[0]);
}

static bool lies_below(const char *path, const char *above) {
  size_t size = strlen(above);
  return !strncmp(path, above, size) && (path[size] == '/' || !path[size]);
}

int watched_move(const char *path, const char *target) {
  size_t size = strlen(path), target_size = strlen(target);
  for (size_t i = 0; i < count; i++) {
    if (!lies_below(table[i].path, path))
      continue;
    const char *rest = table[i].path + size;
    char *moved = malloc(target_size + strlen(rest) + 1);
    if (!moved)
      return ENOMEM;
    memcpy(moved, target, target_size);
    strcpy(moved + target_size, rest);
    free(table[i].path);
    table[i].path = moved;
  }
  return 0;
}

int watched_below(const char *path) {
  for (size_t i = 0; i < count; i++)
    if (lies_below(table[i].path, path))
      return table[i].number;
  return -1;
}
