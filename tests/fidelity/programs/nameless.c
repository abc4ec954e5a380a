/* Files that no name leads to: deleted (open, shared by two open files, mapped shared and private),
 * replaced, never named, in memory; a directory tree that is gone; a program that was deleted. */
#include "fidelity.h"

#include <dirent.h>
#include <sys/mman.h>

static int link_is(int fd, const char *wanted) {
  char path[64], target[256] = "";
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return readlink(path, target, sizeof target - 1) > 0 && strcmp(target, wanted) == 0;
}

static int holds(int fd, off_t at, const char *text) {
  char bytes[64] = "";
  return pread(fd, bytes, strlen(text), at) == (ssize_t)strlen(text) && memcmp(bytes, text, strlen(text)) == 0;
}

static int write_new(const char *path, const char *text) {
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0640);
  MUST(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
  return fd;
}

static void copy_program(const char *to) {
  char block[65536];
  ssize_t size;
  int from = open("/proc/self/exe", O_RDONLY), out = open(to, O_WRONLY | O_CREAT, 0755);
  while ((size = read(from, block, sizeof block)) > 0)
    MUST(write(out, block, (size_t)size) == size);
  close(from);
  close(out);
}

int main(int argc, char **argv) {
  if (argc > 1) { /* the deleted program */
    MUST(unlink(argv[1]) == 0 && write(1, "r", 1) == 1);
    wait_for_go();
    char target[256] = "";
    MUST(readlink("/proc/self/exe", target, sizeof target - 1) > 0);
    _exit(strstr(target, "/deleted-program (deleted)") ? 0 : 1);
  }
  MUST(mkdir("/var/tmp/work", 0755) == 0 && chdir("/var/tmp/work") == 0);
  int deleted = write_new("deleted", "0123456789"), again = open("deleted", O_RDONLY), appends = open("deleted", O_WRONLY | O_APPEND);
  MUST(pwrite(deleted, "far", 3, 5000000) == 3 && lseek(deleted, 4, SEEK_SET) == 4 && unlink("deleted") == 0);
  int replaced = write_new("config", "old");
  close(write_new("config.new", "new"));
  MUST(rename("config.new", "config") == 0);
  int unnamed = open("/var/tmp/work", O_TMPFILE | O_RDWR, 0600);
  MUST(unnamed >= 0 && write(unnamed, "unnamed", 7) == 7);
  int backing = write_new("backing", "");
  MUST(ftruncate(backing, 3 * 4096) == 0);
  char *shared = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, backing, 0);
  char *own = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, backing, 0);
  strcpy(shared + 4096, "shared page");
  strcpy(own, "own page");
  MUST(unlink("backing") == 0);
  int memory = open("/dev/shm/segment", O_RDWR | O_CREAT, 0600);
  MUST(ftruncate(memory, 8192) == 0);
  char *segment = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  strcpy(segment, "posix");
  MUST(close(memory) == 0 && unlink("/dev/shm/segment") == 0);
  MUST(mkdir("gone", 0700) == 0);
  int lost = write_new("gone/file", "lost");
  MUST(unlink("gone/file") == 0 && rmdir("gone") == 0);
  struct stat before, status;
  MUST(stat(".", &before) == 0);
  int ends[2];
  MUST(pipe(ends) == 0);
  copy_program("/var/tmp/deleted-program");
  pid_t program = fork();
  if (program == 0) {
    dup2(ends[1], 1);
    execl("/var/tmp/deleted-program", "deleted-program", "/var/tmp/deleted-program", NULL);
    _exit(1);
  }
  pid_t child = fork();
  if (child == 0) { /* shares a mapping and an open file */
    wait_for_go();
    pause_ms(300);
    _exit(strcmp(segment, "changed") == 0 && lseek(deleted, 0, SEEK_CUR) == 6 ? 0 : 1);
  }
  char byte;
  MUST(read(ends[0], &byte, 1) == 1);

  ready_and_wait();

  char text[16] = "";
  int result;
  CHECK(read(deleted, text, 2) == 2 && memcmp(text, "45", 2) == 0);
  CHECK(fstat(deleted, &status) == 0 && status.st_nlink == 0 && status.st_size == 5000003 && (status.st_mode & 0777) == 0640);
  CHECK(status.st_blocks < 1000 && holds(again, 5000000, "far") && link_is(again, "/var/tmp/work/deleted (deleted)"));
  CHECK(write(appends, "!", 1) == 1 && holds(again, 5000003, "!") && access("deleted", F_OK) < 0);
  CHECK(stat(".", &status) == 0 && status.st_mtim.tv_sec == before.st_mtim.tv_sec && status.st_mtim.tv_nsec == before.st_mtim.tv_nsec);
  CHECK(holds(replaced, 0, "old") && pwrite(replaced, "mine", 4, 0) == 4);
  int config = open("config", O_RDONLY);
  CHECK(holds(config, 0, "new"));
  CHECK(holds(unnamed, 0, "unnamed"));
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", unnamed);
  CHECK(linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW) == 0 && access("named", R_OK) == 0);
  CHECK(strcmp(shared + 4096, "shared page") == 0 && strcmp(own, "own page") == 0 && strcmp(own + 4096, "shared page") == 0);
  strcpy(shared, "through the map");
  CHECK(holds(backing, 0, "through the map") && strcmp(own, "own page") == 0);
  CHECK(strcmp(segment, "posix") == 0);
  strcpy(segment, "changed");
  CHECK(holds(lost, 0, "lost"));
  CHECK(waitpid(child, &result, 0) == child && result == 0);
  CHECK(waitpid(program, &result, 0) == program && result == 0);
  finish();
}
