/* Directories that are deleted: open, the working directory of two processes, one inside another,
 * one whose name is taken again, one in memory. */
#include "fidelity.h"

static int link_is(const char *link, const char *wanted) {
  char target[256] = "";
  return readlink(link, target, sizeof target - 1) > 0 && strcmp(target, wanted) == 0;
}

static int descriptor_is(int fd, const char *wanted) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return link_is(path, wanted);
}

static int is_dead(int fd) {
  return openat(fd, "new", O_CREAT | O_WRONLY, 0600) < 0 && errno == ENOENT && mkdirat(fd, "new", 0700) < 0 && errno == ENOENT;
}

static int open_directory(const char *path, mode_t mode) {
  MUST(mkdir(path, mode) == 0 && chmod(path, mode) == 0);
  int fd = open(path, O_RDONLY | O_DIRECTORY);
  MUST(fd >= 0);
  return fd;
}

int main(void) {
  struct stat before, status;
  char path[256];
  MUST(chdir("/var/tmp") == 0);
  close(open("beside", O_CREAT | O_WRONLY, 0600));
  int outer = open_directory("outer", 0700), inner = open_directory("outer/inner", 0750);
  MUST(rmdir("outer/inner") == 0 && rmdir("outer") == 0);
  int replaced = open_directory("replaced", 0711);
  MUST(rmdir("replaced") == 0 && mkdir("replaced", 0700) == 0);
  close(open("replaced/file", O_CREAT | O_WRONLY, 0600));
  int memory = open_directory("/dev/shm/gone", 01777);
  MUST(rmdir("/dev/shm/gone") == 0);
  int here = open_directory("gone", 0751);
  MUST(chdir("gone") == 0 && rmdir("/var/tmp/gone") == 0 && fstat(here, &before) == 0);
  pid_t child = fork();
  if (child == 0) { /* has nothing of it open */
    close_range(3, ~0U, 0);
    wait_for_go();
    _exit(getcwd(path, sizeof path) == NULL && errno == ENOENT && is_dead(AT_FDCWD) && chdir("..") == 0 && access("beside", F_OK) == 0 ? 0 : 1);
  }

  ready_and_wait();

  int result;
  CHECK(link_is("/proc/self/cwd", "/var/tmp/gone (deleted)") && descriptor_is(here, "/var/tmp/gone (deleted)"));
  CHECK(fstat(here, &status) == 0 && S_ISDIR(status.st_mode) && (status.st_mode & 07777) == 0751);
  CHECK(status.st_mtim.tv_sec == before.st_mtim.tv_sec && status.st_mtim.tv_nsec == before.st_mtim.tv_nsec);
  struct stat current;
  CHECK(stat(".", &current) == 0 && current.st_ino == status.st_ino && current.st_dev == status.st_dev);
  CHECK(is_dead(AT_FDCWD) && is_dead(here) && is_dead(outer) && is_dead(inner) && is_dead(replaced) && is_dead(memory));
  CHECK(access("/var/tmp/gone", F_OK) < 0 && access("/var/tmp/outer", F_OK) < 0 && access("/dev/shm/gone", F_OK) < 0);
  CHECK(access("/var/tmp/replaced/file", F_OK) == 0 && access("/var/tmp/replaced~", F_OK) < 0);
  CHECK(fstat(replaced, &status) == 0 && (status.st_mode & 07777) == 0711);
  CHECK(fstat(memory, &status) == 0 && (status.st_mode & 07777) == 01777);
  CHECK(fstat(inner, &status) == 0 && (status.st_mode & 07777) == 0750);
  CHECK((fcntl(here, F_GETFL) & (O_DIRECTORY | O_ACCMODE)) == (O_DIRECTORY | O_RDONLY));
  CHECK(waitpid(child, &result, 0) == child && result == 0);
  CHECK(mkdir("/var/tmp/gone", 0700) == 0 && is_dead(AT_FDCWD));
  CHECK(chdir("..") == 0 && access("beside", F_OK) == 0);
  finish();
}
