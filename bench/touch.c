/*
 * Touches memory and says how long that takes, for bench/cow_throughput.py.
 *
 *   touch MIB PASSES
 *
 * It fills so much memory with numbers, writes "ready", and waits for a line of input:
 *   r, w: read or write all of it, from the lowest to the highest address;
 *   R, W: the same, one cache line at a time in an order without pattern, each line once.
 * It does that PASSES times and writes one duration in nanoseconds a line, then waits again.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"

enum { LINE_BYTES = 64, WORDS_OF_LINE = LINE_BYTES / sizeof(uint64_t) };

static uint64_t *memory;
static size_t words;

static uint64_t read_all(void)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < words; at++)
        sum += memory[at];
    return sum;
}

static void write_all(uint64_t value)
{
    for (size_t at = 0; at < words; at++)
        memory[at] = value + at;
}

/* A linear congruence whose period is the number of lines, which is a power of two. */
static size_t next_line(size_t line, size_t lines)
{
    return (line * 6364136223846793005u + 1442695040888963407u) & (lines - 1);
}

static uint64_t read_scattered(void)
{
    size_t lines = words / WORDS_OF_LINE, line = 0;
    uint64_t sum = 0;
    for (size_t left = lines; left > 0; left--, line = next_line(line, lines))
        sum += memory[line * WORDS_OF_LINE];
    return sum;
}

static void write_scattered(uint64_t value)
{
    size_t lines = words / WORDS_OF_LINE, line = 0;
    for (size_t left = lines; left > 0; left--, line = next_line(line, lines))
        memory[line * WORDS_OF_LINE] = value + line;
}

static uint64_t pass(char kind, uint64_t value)
{
    switch (kind) {
    case 'r':
        return read_all();
    case 'R':
        return read_scattered();
    case 'w':
        write_all(value);
        return 0;
    case 'W':
        write_scattered(value);
        return 0;
    default:
        give_up("not r, w, R or W", "a line of input");
    }
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: touch MIB PASSES\n");
        return 2;
    }
    size_t size = (size_t)strtoul(argv[1], NULL, 10) << 20;
    int passes = atoi(argv[2]);
    if (size == 0 || (size & (size - 1)) != 0)
        give_up("not a power of two", argv[1]);
    words = size / sizeof *memory;
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    write_all(1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    char line[16];
    volatile uint64_t seen = 0;
    while (fgets(line, sizeof line, stdin))
        for (int i = 0; i < passes; i++) {
            long long begin = now_ns();
            seen += pass(line[0], (uint64_t)i + 2);
            printf("%lld\n", now_ns() - begin);
        }
    return 0;
}
