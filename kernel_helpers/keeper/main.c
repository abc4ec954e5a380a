/* pool-keeper: holds the memory of templates while no daemon does.
 *
 *   pool-keeper DIRECTORY LOCK_FD LISTEN_FD IDLE_MS [CGROUP_PROCS…]
 *
 * The daemon makes DIRECTORY, locks it (flock on LOCK_FD, which then is the keeper's: the lock says
 * that a keeper lives) and binds DIRECTORY/socket (LISTEN_FD). The keeper leaves the daemon's session
 * and, where the files CGROUP_PROCS can be written, its groups, so that what ends the daemon does not
 * end the pool. It ends when it is told to, when it has held nothing and nobody has been connected
 * for IDLE_MS, and when its socket was taken away, so that no daemon could ever come back.
 *
 * One thread, one poll, and it waits for nobody. It trusts root, which may end it anyway, with
 * nothing but its own bounds.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "serve.h"

#define SOCKET_NAME "socket"
#define SOCKET_CHECK_MS 10000

static const char *directory;
static int lock_fd, listen_fd;
static struct connection connections[VK_MAX_CONNECTIONS];

static bool write_text(const char *path, const char *text, size_t size) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0)
    return false;
  ssize_t written = write(fd, text, size);
  close(fd);
  return written == (ssize_t)size;
}

static int64_t monotonic_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Whoever sees the answer to END, or gets the lock, finds nothing of this keeper in its way. */
static _Noreturn void end(const struct connection *teller) {
  unlinkat(lock_fd, SOCKET_NAME, 0);
  rmdir(directory);
  close(lock_fd);
  if (teller)
    serve_answer_end(teller);
  _exit(0);
}

static bool socket_is_there(void) {
  struct stat status;
  return fstatat(lock_fd, SOCKET_NAME, &status, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

static void accept_one(void) {
  struct connection refused;
  for (unsigned i = 0; i < VK_MAX_CONNECTIONS; i++)
    if (connections[i].fd < 0) {
      if (!serve_accept(&connections[i], listen_fd))
        connections[i].fd = -1;
      return;
    }
  if (serve_accept(&refused, listen_fd))
    serve_drop(&refused);
}

/* How long to wait while nobody is connected; ends the keeper when it is time. */
static int alone_timeout(int64_t alone_since, int64_t idle_ms) {
  if (!socket_is_there())
    end(NULL);
  if (table_state().entries > 0)
    return SOCKET_CHECK_MS;
  int64_t left = alone_since + idle_ms - monotonic_ms();
  if (left <= 0)
    end(NULL);
  return left < SOCKET_CHECK_MS ? (int)left : SOCKET_CHECK_MS;
}

static _Noreturn void serve(int64_t idle_ms) {
  int64_t alone_since = monotonic_ms();
  for (;;) {
    struct pollfd polled[1 + VK_MAX_CONNECTIONS] = {{.fd = listen_fd, .events = POLLIN}};
    bool alone = true;
    for (unsigned i = 0; i < VK_MAX_CONNECTIONS; i++) {
      polled[1 + i] = (struct pollfd){.fd = connections[i].fd, .events = POLLIN};
      alone = alone && connections[i].fd < 0;
    }
    if (!alone)
      alone_since = monotonic_ms();
    if (poll(polled, 1 + VK_MAX_CONNECTIONS, alone ? alone_timeout(alone_since, idle_ms) : -1) < 0)
      continue;
    for (unsigned i = 0; i < VK_MAX_CONNECTIONS; i++) {
      if (!polled[1 + i].revents)
        continue;
      enum served served = serve_one(&connections[i]);
      if (served == SERVED_END)
        end(&connections[i]);
      if (served == SERVED_LAST)
        serve_drop(&connections[i]);
      alone_since = monotonic_ms();
    }
    if (polled[0].revents)
      accept_one();
  }
}

/* Its own session, its own groups, the last to be killed: each as far as this process may. */
static void leave_the_daemon(char **cgroup_procs) {
  setsid();
  for (; *cgroup_procs; cgroup_procs++)
    write_text(*cgroup_procs, "0", 1);
  write_text("/proc/self/oom_score_adj", "-1000", 5);
  int null_fd = open("/dev/null", O_RDWR);
  for (int i = 0; null_fd >= 0 && i < 3; i++)
    dup2(null_fd, i);
  if (null_fd > 2)
    close(null_fd);
  for (int number = 1; number < NSIG; number++)
    if (number != SIGTERM)
      signal(number, number == SIGCHLD ? SIG_DFL : SIG_IGN);
}

int main(int argc, char **argv) {
  if (argc < 5)
    return 2;
  directory = argv[1];
  lock_fd = atoi(argv[2]);
  listen_fd = atoi(argv[3]);
  long idle_ms = atol(argv[4]);
  if (lock_fd < 3 || listen_fd < 3 || idle_ms < 0 || fcntl(lock_fd, F_SETFD, FD_CLOEXEC) < 0 ||
      fcntl(listen_fd, F_SETFD, FD_CLOEXEC) < 0 || fcntl(listen_fd, F_SETFL, O_NONBLOCK) < 0 ||
      chdir("/") < 0)
    return 2;
  leave_the_daemon(argv + 5);
  /* The daemon waits for this process and not for the keeper. */
  pid_t pid = fork();
  if (pid != 0)
    _exit(pid < 0);
  prctl(PR_SET_NAME, "pool-keeper");
  table_init();
  for (unsigned i = 0; i < VK_MAX_CONNECTIONS; i++)
    connections[i].fd = -1;
  serve(idle_ms);
}
