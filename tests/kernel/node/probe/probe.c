// Asks the kernel for what a sandbox must not get, with arguments that do nothing if it is granted.
//
//   probe call NUMBER [ARGUMENT...]   prints the errno of the call, 0 on success
//   probe i386                        the same for getpid by int 0x80 of the 32-bit ABI
//   probe trace                       0 if a child of one's own can be traced
//   probe shared KEY [VALUE]          creates System V memory with the value, or prints what is there
//   probe touch MIB                   writes to that much memory
//   probe forks COUNT                 prints how many children could be alive at once, and the errno
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

static int report(long result) {
  printf("%d\n", result == -1 ? errno : 0);
  return 0;
}

static int call(int count, char** arguments) {
  long number[7] = {0};
  for (int i = 0; i < count && i < 7; i++) number[i] = strtol(arguments[i], NULL, 0);
  return report(
      syscall(number[0], number[1], number[2], number[3], number[4], number[5], number[6]));
}

static int call_i386(void) {
  long result;
  __asm__ volatile("int $0x80" : "=a"(result) : "a"(20L) : "r8", "r9", "r10", "r11", "memory");
  printf("%ld\n", result < 0 ? -result : 0);
  return 0;
}

static int trace(void) {
  pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  long result = ptrace(PTRACE_ATTACH, child, NULL, NULL);
  report(result);
  kill(child, SIGKILL);
  return waitpid(child, NULL, 0) < 0;
}

static int shared(const char* key, const char* value) {
  int id = shmget((key_t)strtol(key, NULL, 0), 4096, value ? IPC_CREAT | 0600 : 0);
  if (id < 0) return report(-1);
  char* memory = shmat(id, NULL, 0);
  if (value) strcpy(memory, value);
  return puts(memory) < 0;
}

static int touch(size_t mib) {
  for (size_t i = 0; i < mib; i++) {
    char* block = malloc(1 << 20);
    if (!block) return 3;
    memset(block, 1, 1 << 20);
  }
  puts("touched");
  return 0;
}

static int forks(int wanted) {
  int count = 0, error = 0;
  for (; count < wanted; count++) {
    pid_t child = fork();
    if (child < 0) {
      error = errno;
      break;
    }
    if (child == 0) {
      for (;;) pause();
    }
  }
  printf("%d %d\n", count, error);
  fflush(stdout);
  kill(0, SIGKILL);
  return 0;
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  if (!strcmp(what, "call")) return call(argc - 2, argv + 2);
  if (!strcmp(what, "i386")) return call_i386();
  if (!strcmp(what, "trace")) return trace();
  if (!strcmp(what, "shared") && argc > 2) return shared(argv[2], argv[3]);
  if (!strcmp(what, "touch") && argc > 2) return touch(strtoul(argv[2], NULL, 0));
  if (!strcmp(what, "forks") && argc > 2) return forks(atoi(argv[2]));
  fprintf(stderr, "unknown request\n");
  return 2;
}
