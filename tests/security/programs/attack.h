/* A program that is forked, and in one of the forks tries every way to write that Linux has. */
#ifndef ATTACK_H
#define ATTACK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
/* Each attempt has pages of its own, so that none hides what another did. */
#define ATTEMPTS 96
#define EACH 4ul

/* Private memory of the template: of the first three every page holds a pattern. */
extern char *writable, *read_only, *program_data;
extern size_t writable_bytes;
extern char *large;
extern size_t large_bytes;

/* The pages of the next attempt. */
char *next_pages(void);
char *next_read_only(void);

/* Says how an attempt ended: its result, and errno where that is negative. */
void report(const char *name, long result);

void attack_memory(void);
void attack_memory_from_outside(void);
void attack_by_the_kernel(void);
void attack_files(void);

/* Files of the template's layer, below PLACE. */
#define PLACE "/root/fortress"
#define LOWER_FILES 24
#define FILE_BYTES (16 * PAGE)
const char *lower_file(unsigned number); /* a static buffer */
unsigned next_file(void);

#endif
