/* What the fuzz programs share. libFuzzer gives each input as a heap block of exactly its size, so
 * that the address sanitizer sees a step beyond it. */
#ifndef VENUS_FUZZ_H
#define VENUS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C"
#endif
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* Not assert: these hold in every build. */
#define REQUIRE(condition)                                                                         \
  do {                                                                                             \
    if (!(condition))                                                                              \
      __builtin_trap();                                                                            \
  } while (0)

#endif
