/* Open files and directories of /proc: of the process itself, of others, of threads, of the kernel; and
 * of namespaces. */
#include "fidelity.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/prctl.h>

static volatile int mark = 7;
static int thread_id;

static void *stay(void *unused) {
  prctl(PR_SET_NAME, "another");
  __atomic_store_n(&thread_id, (int)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
  for (;;)
    pause();
  return unused;
}

static int holds(int fd, const char *text) {
  char bytes[4096];
  ssize_t size = pread(fd, bytes, sizeof bytes - 1, 0);
  bytes[size < 0 ? 0 : size] = 0;
  return strstr(bytes, text) != NULL;
}

static int lists(DIR *directory, const char *name) {
  rewinddir(directory);
  for (struct dirent *entry; (entry = readdir(directory));)
    if (strcmp(entry->d_name, name) == 0)
      return 1;
  return 0;
}

int main(void) {
  char path[64], line[64], start[16];
  pthread_t thread;
  MUST(pthread_create(&thread, NULL, stay, NULL) == 0);
  while (!__atomic_load_n(&thread_id, __ATOMIC_SEQ_CST))
    pause_ms(1);
  pid_t child = fork();
  if (child == 0)
    for (;;)
      pause();
  int status = open("/proc/self/status", O_RDONLY), memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
  int meminfo = open("/proc/meminfo", O_RDONLY), network = open("/proc/self/ns/net", O_RDONLY);
  DIR *descriptors = opendir("/proc/self/fd"), *all = opendir("/proc");
  snprintf(path, sizeof path, "/proc/self/task/%d/comm", thread_id);
  int name = open(path, O_RDWR);
  snprintf(path, sizeof path, "/proc/%d/cmdline", child);
  int command = open(path, O_RDONLY), shared = dup(command);
  snprintf(path, sizeof path, "/proc/%d", child);
  int directory = open(path, O_PATH | O_DIRECTORY);
  MUST(status >= 0 && memory >= 0 && meminfo >= 0 && network >= 0 && descriptors && all && name >= 0 && command >= 0);
  MUST(read(status, start, 6) == 6 && memcmp(start, "Name:\t", 6) == 0);
  MUST(readdir(descriptors) && readdir(descriptors));
  struct stat before, after;
  fstat(network, &before);

  ready_and_wait();

  CHECK(lseek(status, 0, SEEK_CUR) == 6);
  CHECK(read(status, start, 10) == 10 && memcmp(start, "proc_files", 10) == 0);
  snprintf(line, sizeof line, "\nPid:\t%d\n", getpid());
  CHECK(holds(status, line));
  int value = 8;
  CHECK(pwrite(memory, &value, sizeof value, (off_t)(intptr_t)&mark) == sizeof value && mark == 8);
  CHECK(fcntl(memory, F_GETFD) == FD_CLOEXEC);
  CHECK(holds(meminfo, "MemTotal:") && holds(name, "another\n"));
  CHECK(write(name, "renamed", 7) == 7 && holds(name, "renamed\n"));
  CHECK(holds(command, "/t/proc_files") && lseek(command, 3, SEEK_SET) == 3 && lseek(shared, 0, SEEK_CUR) == 3);
  snprintf(line, sizeof line, "%d", network);
  CHECK(lists(descriptors, line));
  snprintf(line, sizeof line, "%d", child);
  CHECK(lists(all, line) && fstatat(directory, "stat", &after, 0) == 0);
  int now = open("/proc/self/ns/net", O_RDONLY);
  fstat(now, &after);
  CHECK(fstat(network, &before) == 0 && before.st_ino == after.st_ino);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  CHECK(fstatat(directory, "stat", &after, 0) < 0);
  finish();
}
