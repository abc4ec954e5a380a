/* For programs that make real files and processes: a place where they meet nobody else's. */
#ifndef VENUS_FUZZ_CONFINED_H
#define VENUS_FUZZ_CONFINED_H

#include <stddef.h>
#include <stdint.h>

/* To be called before anything else, from LLVMFuzzerInitialize. Goes on in a child that is PID 1 of a
 * namespace of its own, and whose working directory is a small, empty filesystem that ends with it. */
void confine(void);

/* These bytes are what comes on stdin, to its end. */
void set_stdin(const uint8_t *bytes, size_t size);

/* How many descriptors this process has open. */
unsigned open_descriptors(void);

#endif
