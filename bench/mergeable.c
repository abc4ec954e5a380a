/*
 * Lets the kernel merge equal pages of a program, in all memory that it will ever have.
 *
 *   mergeable PROGRAM [ARG]...
 */
#define _GNU_SOURCE
#include <sys/prctl.h>
#include <unistd.h>

#include "clock.h"

#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: mergeable PROGRAM [ARG]...\n");
        return 2;
    }
    if (prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) < 0)
        die("prctl(PR_SET_MEMORY_MERGE)");
    execvp(argv[1], argv + 1);
    die(argv[1]);
}
