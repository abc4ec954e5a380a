/* /proc/PID/stat, whose second field is a name that its process chose. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "init/stat_line.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  char *text = malloc(size + 1);
  memcpy(text, bytes, size);
  text[size] = 0;
  struct stat_line line;
  if (stat_parse(text, &line))
    REQUIRE(line.parent >= 0);
  free(text);
  return 0;
}
