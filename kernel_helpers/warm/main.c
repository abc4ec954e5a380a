/* warm-python: stands in for python3 inside a sandbox. What it is asked to run runs in a fork of the
 * interpreter that stands warm (sandboxd/client/warm_python_program.py), with this process's
 * arguments, environment, directory and standard streams; signals are passed on, and this process
 * ends as the program does. Whatever a warm interpreter cannot do as python3 does it (options, a
 * prompt, another user), and everything when none stands there, is left to the next python3 in PATH.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAME "\0venus-warm-python"
#define MAX_REQUEST_BYTES (4u << 20)
#define PASSED_FDS 4

extern char **environ;

struct header { /* as REQUEST in warm_python_program.py */
  uint32_t argument_count, variable_count, umask, string_bytes;
};

static const int forwarded[] = {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM, SIGALRM, SIGWINCH};

/* The next program of this name in PATH that is not this one. */
static _Noreturn void leave_to_python(char **argv) {
  struct stat own, other;
  const char *slash = strrchr(argv[0], '/');
  const char *name = slash ? slash + 1 : argv[0];
  const char *path = getenv("PATH");
  char full[PATH_MAX];
  if (stat("/proc/self/exe", &own) < 0)
    own.st_ino = 0;
  for (const char *at = path ? path : "/usr/local/bin:/usr/bin:/bin"; at; at = strchr(at, ':')) {
    if (*at == ':')
      at++;
    size_t length = strcspn(at, ":");
    if (snprintf(full, sizeof full, "%.*s/%s", (int)length, at, name) >= (int)sizeof full)
      continue;
    if (stat(full, &other) == 0 && (other.st_ino != own.st_ino || other.st_dev != own.st_dev))
      execv(full, argv);
  }
  fprintf(stderr, "warm-python: %s: no other program of this name in PATH\n", name);
  _exit(127);
}

static int is_for_warm(int argc, char **argv) {
  if (argc < 2)
    return !isatty(0);
  if (strcmp(argv[1], "-c") == 0 || strcmp(argv[1], "-m") == 0)
    return argc > 2;
  return argv[1][0] != '-' || !argv[1][1];
}

/* No variable that an interpreter reads at its start, but for those that the program knows of. */
static int environment_fits(void) {
  static const char *const known[] = {"PYTHONPATH=", "PYTHONUNBUFFERED=", "PYTHONDONTWRITEBYTECODE="};
  for (char **each = environ; *each; each++) {
    if (strncmp(*each, "PYTHON", 6) != 0)
      continue;
    size_t i = 0;
    while (i < sizeof known / sizeof *known && strncmp(*each, known[i], strlen(known[i])) != 0)
      i++;
    if (i == sizeof known / sizeof *known)
      return 0;
  }
  return 1;
}

/* -1: none stands there, or one that belongs to another user. */
static int connect_to_warm(void) {
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  memcpy(name.sun_path, NAME, sizeof NAME - 1);
  socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + sizeof NAME - 1);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct ucred peer;
  socklen_t peer_size = sizeof peer;
  if (fd >= 0 && connect(fd, (struct sockaddr *)&name, size) == 0 &&
      getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) == 0 && peer.uid == geteuid() &&
      peer.gid == getegid())
    return fd;
  if (fd >= 0)
    close(fd);
  return -1;
}

/* The strings after the header; NULL: too many. */
static char *pack(char **argv, struct header *header) {
  size_t size = 0;
  for (char **each = argv; *each; each++, header->argument_count++)
    size += strlen(*each) + 1;
  for (char **each = environ; *each; each++, header->variable_count++)
    size += strlen(*each) + 1;
  char *strings = size <= MAX_REQUEST_BYTES ? malloc(size) : NULL;
  if (!strings)
    return NULL;
  char *at = strings;
  for (char **each = argv; *each; each++)
    at = stpcpy(at, *each) + 1;
  for (char **each = environ; *each; each++)
    at = stpcpy(at, *each) + 1;
  header->string_bytes = (uint32_t)size;
  header->umask = umask(0);
  umask((mode_t)header->umask);
  return strings;
}

static int send_request(int fd, char **argv) {
  struct header header = {0};
  char *strings = pack(argv, &header);
  int fds[PASSED_FDS] = {0, 1, 2, open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)};
  for (int i = 0; i < 3; i++)
    if (fcntl(i, F_GETFD) < 0)
      return -1;
  if (!strings || fds[3] < 0)
    return -1;
  union {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof fds)];
  } control = {.head = {.cmsg_len = CMSG_LEN(sizeof fds), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
  memcpy(CMSG_DATA(&control.head), fds, sizeof fds);
  struct iovec piece = {&header, sizeof header};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  if (sendmsg(fd, &message, MSG_NOSIGNAL) != (ssize_t)sizeof header)
    return -1;
  for (size_t sent = 0; sent < header.string_bytes;) {
    ssize_t size = send(fd, strings + sent, header.string_bytes - sent, MSG_NOSIGNAL);
    if (size < 0)
      return -1;
    sent += (size_t)size;
  }
  close(fds[3]);
  return 0;
}

static _Noreturn void end_as(int status) {
  if (WIFSIGNALED(status)) {
    struct rlimit none = {0, 0};
    sigset_t all;
    setrlimit(RLIMIT_CORE, &none);
    signal(WTERMSIG(status), SIG_DFL);
    sigfillset(&all);
    raise(WTERMSIG(status));
    sigprocmask(SIG_UNBLOCK, &all, NULL);
    _exit(128 + WTERMSIG(status));
  }
  _exit(WEXITSTATUS(status));
}

static _Noreturn void accompany(int fd, int signals) {
  struct pollfd waiting[2] = {{.fd = fd, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
  for (;;) {
    if (poll(waiting, 2, -1) < 0 && errno != EINTR)
      _exit(1);
    struct signalfd_siginfo info;
    if (waiting[1].revents && read(signals, &info, sizeof info) == (ssize_t)sizeof info) {
      unsigned char number = (unsigned char)info.ssi_signo;
      send(fd, &number, 1, MSG_NOSIGNAL);
    }
    if (!waiting[0].revents)
      continue;
    int32_t status;
    ssize_t size = recv(fd, &status, sizeof status, MSG_WAITALL);
    if (size < 0 && errno == EINTR)
      continue;
    if (size == (ssize_t)sizeof status)
      end_as(status);
    fprintf(stderr, "warm-python: the process that ran the program was killed\n");
    _exit(1);
  }
}

int main(int argc, char **argv) {
  if (argc < 1 || !is_for_warm(argc, argv) || !environment_fits())
    leave_to_python(argv);
  int fd = connect_to_warm();
  if (fd < 0)
    leave_to_python(argv);
  sigset_t old, caught;
  sigemptyset(&caught);
  for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++) {
    struct sigaction action;
    if (sigaction(forwarded[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
      sigaddset(&caught, forwarded[i]); /* what is ignored, as by nohup, stays so */
  }
  sigprocmask(SIG_BLOCK, &caught, &old);
  int signals = signalfd(-1, &caught, SFD_CLOEXEC);
  if (signals < 0 || send_request(fd, argv) < 0) {
    close(fd);
    sigprocmask(SIG_SETMASK, &old, NULL);
    leave_to_python(argv);
  }
  accompany(fd, signals);
}
