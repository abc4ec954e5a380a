/* Files in memory file systems: content, holes, links, attributes, times; POSIX shared memory. */
#include "fidelity.h"

#include <sys/mman.h>
#include <sys/xattr.h>

int main(void) {
  mkdir("/tmp/deep", 0750);
  MUST(mkdir("/tmp/deep/er", 0700) == 0 && chmod("/tmp/deep/er", 01777) == 0);
  int file = open("/tmp/deep/file", O_RDWR | O_CREAT | O_TRUNC, 0640);
  MUST(write(file, "in memory", 9) == 9 && lseek(file, 3, SEEK_SET) == 3);
  int sparse = open("/tmp/sparse", O_RDWR | O_CREAT | O_TRUNC, 0600);
  MUST(ftruncate(sparse, 64 << 20) == 0 && pwrite(sparse, "far", 3, 33 << 20) == 3);
  MUST(link("/tmp/deep/file", "/tmp/name") == 0 && symlink("deep/file", "/tmp/link") == 0);
  int has_attributes = fsetxattr(file, "user.note", "remember", 8, 0) == 0;
  struct timespec times[2] = {{1000000000, 0}, {1234567890, 500}};
  MUST(futimens(sparse, times) == 0);
  MUST(mkfifo("/tmp/fifo", 0622) == 0 && chmod("/tmp/fifo", 0622) == 0);
  if (getuid() == 0)
    MUST(chown("/tmp/deep", 1000, 1000) == 0);
  int shared = open("/dev/shm/segment", O_RDWR | O_CREAT | O_TRUNC, 0600);
  MUST(ftruncate(shared, 1 << 20) == 0);
  char *segment = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
  strcpy(segment + 5000, "shared segment");
  char *of_tmp = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);

  ready_and_wait();

  char text[64] = "";
  struct stat status, other;
  CHECK(read(file, text, 32) == 6 && strcmp(text, "memory") == 0);
  CHECK(stat("/tmp/deep/file", &status) == 0 && stat("/tmp/name", &other) == 0 &&
        status.st_ino == other.st_ino && status.st_nlink == 2 && (status.st_mode & 07777) == 0640);
  CHECK(fstat(file, &other) == 0 && other.st_ino == status.st_ino);
  CHECK(stat("/tmp/sparse", &status) == 0 && status.st_size == 64 << 20 && status.st_blocks <= 16 &&
        status.st_mtim.tv_sec == 1234567890 && status.st_mtim.tv_nsec == 500);
  CHECK(pread(sparse, text, 3, 33 << 20) == 3 && memcmp(text, "far", 3) == 0);
  memset(text, 0, sizeof text);
  CHECK(readlink("/tmp/link", text, sizeof text) == 9 && strcmp(text, "deep/file") == 0);
  CHECK(stat("/tmp/deep/er", &status) == 0 && (status.st_mode & 07777) == 01777);
  CHECK(stat("/tmp/deep", &status) == 0 && (status.st_mode & 07777) == 0750 &&
        (getuid() != 0 || status.st_uid == 1000));
  CHECK(stat("/tmp/fifo", &status) == 0 && S_ISFIFO(status.st_mode) && (status.st_mode & 0777) == 0622);
  if (has_attributes)
    CHECK(getxattr("/tmp/name", "user.note", text, sizeof text) == 8 && memcmp(text, "remember", 8) == 0);
  CHECK(strcmp(segment + 5000, "shared segment") == 0);
  strcpy(segment + 9000, "written through");
  CHECK(pread(shared, text, 15, 9000) == 15 && memcmp(text, "written through", 15) == 0);
  CHECK(memcmp(of_tmp, "in memory", 9) == 0);
  CHECK(mkdir("/tmp/later", 0700) == 0);
  finish();
}
