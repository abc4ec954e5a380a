/* Regular files with offset and flags, shared open files, append, locks, directories, FIFOs, cwd. */
#include "fidelity.h"

#include <dirent.h>
#include <sys/file.h>

int main(void) {
  mkdir("/var/tmp/work", 0755);
  MUST(chdir("/var/tmp/work") == 0);
  umask(027);
  int file = open("data", O_RDWR | O_CREAT | O_TRUNC, 0640);
  MUST(write(file, "0123456789", 10) == 10 && lseek(file, 4, SEEK_SET) == 4);
  int again = dup2(file, 77), separate = open("data", O_RDONLY | O_CLOEXEC);
  MUST(again == 77 && lseek(separate, 8, SEEK_SET) == 8);
  int log = open("log", O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK, 0644);
  MUST(write(log, "first\n", 6) == 6);
  int renamed = open("old-name", O_RDWR | O_CREAT, 0600);
  MUST(write(renamed, "renamed", 7) == 7 && rename("old-name", "new-name") == 0);
  int directory = open("/etc", O_RDONLY | O_DIRECTORY), path_only = open("data", O_PATH);
  int flocked = open("flocked", O_RDWR | O_CREAT, 0600);
  MUST(flock(flocked, LOCK_EX) == 0);
  int locked = open("locked", O_RDWR | O_CREAT, 0600);
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 20};
  MUST(fcntl(locked, F_SETLK, &lock) == 0);
  int null = open("/dev/null", O_RDWR), random = open("/dev/urandom", O_RDONLY);
  int memory = (int)syscall(SYS_memfd_create, "scratch", 1);
  MUST(ftruncate(memory, 1 << 20) == 0 && pwrite(memory, "in memory", 9, 500000) == 9);
  MUST(mkfifo("fifo", 0600) == 0);
  int fifo = open("fifo", O_RDWR | O_NONBLOCK);
  MUST(write(fifo, "through the fifo", 16) == 16);
  int ends[2], packed[2];
  MUST(pipe(ends) == 0 && pipe2(packed, O_NONBLOCK) == 0);
  MUST(fcntl(ends[1], F_SETPIPE_SZ, 1 << 18) == 1 << 18);
  char block[100000];
  memset(block, 'p', sizeof block);
  MUST(write(ends[1], block, sizeof block) == sizeof block);
  close(packed[0]); /* a pipe without readers */
  signal(SIGPIPE, SIG_IGN);
  pid_t child = fork();
  if (child == 0) { /* shares every open file */
    wait_for_go();
    pause_ms(200);
    char text[4] = "";
    _exit(read(file, text, 2) == 2 && memcmp(text, "67", 2) == 0 ? 0 : 1);
  }

  ready_and_wait();

  char text[64] = "", here[256];
  CHECK(getcwd(here, sizeof here) && strcmp(here, "/var/tmp/work") == 0);
  CHECK(umask(0) == 027);
  CHECK(read(again, text, 2) == 2 && memcmp(text, "45", 2) == 0);
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(lseek(file, 0, SEEK_CUR) == 8);
  CHECK(read(separate, text, 2) == 2 && memcmp(text, "89", 2) == 0);
  CHECK(fcntl(separate, F_GETFD) == FD_CLOEXEC && fcntl(file, F_GETFD) == 0);
  CHECK((fcntl(log, F_GETFL) & (O_APPEND | O_NONBLOCK | O_ACCMODE)) == (O_APPEND | O_NONBLOCK | O_WRONLY));
  CHECK(write(log, "second\n", 7) == 7);
  int check = open("log", O_RDONLY);
  CHECK(read(check, text, sizeof text) == 13 && memcmp(text, "first\nsecond\n", 13) == 0);
  CHECK(pread(renamed, text, 7, 0) == 7 && memcmp(text, "renamed", 7) == 0);
  CHECK(access("old-name", F_OK) < 0);
  DIR *listing = fdopendir(directory);
  int entries = 0;
  while (readdir(listing))
    entries++;
  CHECK(entries > 10);
  CHECK(read(path_only, text, 1) < 0 && errno == EBADF);
  int rival = open("flocked", O_RDWR);
  CHECK(flock(rival, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK);
  if (fork() == 0) {
    struct flock probe = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 15, .l_len = 1};
    int other = open("locked", O_RDWR);
    _exit(fcntl(other, F_SETLK, &probe) < 0 ? 0 : 1);
  }
  CHECK(wait(&status) > 0 && WEXITSTATUS(status) == 0);
  CHECK(write(null, "x", 1) == 1 && read(null, text, 1) == 0 && read(random, text, 8) == 8);
  memset(text, 0, sizeof text);
  CHECK(lseek(memory, 0, SEEK_END) == 1 << 20 && pread(memory, text, 9, 500000) == 9 && strcmp(text, "in memory") == 0);
  CHECK(pwrite(memory, "mine", 4, 0) == 4);
  CHECK(read(fifo, text, sizeof text) == 16 && memcmp(text, "through the fifo", 16) == 0);
  CHECK(fcntl(ends[0], F_GETPIPE_SZ) == 1 << 18);
  char *received = calloc(1, sizeof block);
  size_t got = 0;
  while (got < sizeof block) {
    ssize_t count = read(ends[0], received + got, sizeof block - got);
    if (count <= 0)
      break;
    got += (size_t)count;
  }
  CHECK(got == sizeof block && memcmp(block, received, sizeof block) == 0);
  CHECK(write(ends[1], "more", 4) == 4 && read(ends[0], text, 10) == 4);
  CHECK(write(packed[1], "x", 1) < 0 && errno == EPIPE);
  finish();
}
