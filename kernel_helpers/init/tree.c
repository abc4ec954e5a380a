#include "tree.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "stat_line.h"
#include "sys.h"

#define MAX_PASSES 10
#define MAX_DEPTH 256

struct linux_dirent64 {
  uint64_t inode;
  int64_t offset;
  unsigned short size;
  unsigned char type;
  char name[];
};

/* stat of an open /proc/PID. False when the process is gone. */
static bool read_process(int proc_dir, struct stat_line *process) {
  char text[512];
  int fd = openat(proc_dir, "stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return false;
  ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  if (size <= 0)
    return false;
  text[size] = 0;
  return stat_parse(text, process);
}

static int open_process(int proc, pid_t pid) {
  char name[16];
  unsigned at = sizeof name - 1;
  name[at] = 0;
  for (pid_t left = pid; left; left /= 10)
    name[--at] = (char)('0' + left % 10);
  return openat(proc, name + at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static bool descends_from(int proc, pid_t pid, pid_t ancestor) {
  for (int depth = 0; pid > 1 && depth < MAX_DEPTH; depth++) {
    if (pid == ancestor)
      return true;
    struct stat_line process;
    int fd = open_process(proc, pid);
    bool alive = fd >= 0 && read_process(fd, &process);
    close_fd(&fd);
    if (!alive)
      return false;
    pid = process.parent;
  }
  return false;
}

/* Signals every member but the leader; returns how many there were. */
static unsigned signal_members(int proc, pid_t leader, int signal_number) {
  unsigned count = 0;
  char entries[2048];
  long size;
  lseek(proc, 0, SEEK_SET);
  while ((size = syscall(SYS_getdents64, proc, entries, sizeof entries)) > 0) {
    for (long at = 0; at < size;) {
      const struct linux_dirent64 *entry = (const void *)(entries + at);
      at += entry->size;
      const char *text = entry->name;
      pid_t pid = stat_parse_pid(&text);
      if (pid <= 1 || *text || pid == leader)
        continue;
      int fd = open_process(proc, pid);
      struct stat_line process;
      if (fd >= 0 && read_process(fd, &process) && process.state != 'Z' && process.state != 'X' &&
          (process.session == leader || descends_from(proc, process.parent, leader))) {
        sys_pidfd_send_signal(fd, signal_number);
        count++;
      }
      close_fd(&fd);
    }
  }
  return count;
}

int tree_signal(pid_t leader, int signal_number) {
  int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (proc >= 0) {
    /* Stopped, the leader cannot fork while its children are looked for. */
    if (signal_number == SIGKILL)
      kill(leader, SIGSTOP);
    int passes = signal_number == SIGKILL ? MAX_PASSES : 1;
    while (passes-- && signal_members(proc, leader, signal_number))
      ;
    close(proc);
  } else if (signal_number == SIGKILL) {
    kill(-leader, SIGKILL); /* no /proc in this sandbox: at least the process group */
  }
  return kill(leader, signal_number) < 0 ? errno : 0;
}
