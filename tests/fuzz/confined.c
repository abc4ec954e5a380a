#include "confined.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fuzz.h"

static void write_map(const char *path, const char *format, unsigned id) {
  char text[64];
  int size = snprintf(text, sizeof text, format, id);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  REQUIRE(fd >= 0 && write(fd, text, (size_t)size) == size);
  close(fd);
}

static void enter_namespaces(void) {
  unsigned uid = geteuid(), gid = getegid();
  REQUIRE(unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID) == 0);
  write_map("/proc/self/setgroups", "deny", 0);
  write_map("/proc/self/uid_map", "0 %u 1", uid);
  write_map("/proc/self/gid_map", "0 %u 1", gid);
}

/* Its exit is this one's. */
static void go_on_in_child(void) {
  pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    REQUIRE(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    return;
  }
  int status;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static void enter_filesystem(void) {
  char place[] = "/tmp/venus-fuzz-XXXXXX";
  REQUIRE(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
  REQUIRE(mount("proc", "/proc", "proc", 0, NULL) == 0);
  REQUIRE(mkdtemp(place));
  REQUIRE(mount("fuzz", place, "tmpfs", 0, "size=8m,nr_inodes=4096,mode=700") == 0);
  REQUIRE(chdir(place) == 0);
  /* The working directory keeps it. */
  REQUIRE(umount2(place, MNT_DETACH) == 0 && rmdir(place) == 0);
}

void confine(void) {
  enter_namespaces();
  go_on_in_child();
  enter_filesystem();
}

void set_stdin(const uint8_t *bytes, size_t size) {
  static int file = -1;
  if (file < 0) {
    file = memfd_create("stdin", MFD_CLOEXEC);
    REQUIRE(file >= 0 && dup2(file, STDIN_FILENO) == STDIN_FILENO);
  }
  REQUIRE(ftruncate(file, 0) == 0 && pwrite(file, bytes, size, 0) == (ssize_t)size);
  REQUIRE(lseek(file, 0, SEEK_SET) == 0);
}

unsigned open_descriptors(void) {
  DIR *directory = opendir("/proc/self/fd");
  REQUIRE(directory);
  unsigned count = 0;
  while (readdir(directory))
    count++;
  closedir(directory);
  return count;
}
