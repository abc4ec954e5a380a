/* kernel-probe: which kernel features are usable here and now, as one JSON object on stdout.
 *
 * Each is found by using it, in a child that ends afterwards, never by the kernel's version: builds,
 * sysctls, capabilities and seccomp filters all decide too. Exit code 0 whenever the object is
 * complete; what is usable is for the reader to judge.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probe.h"

/* A probe answers 0 or an errno. A child that dies or hangs is EFAULT or ETIMEDOUT: old kernels may
 * answer an unknown call by a signal, and none may hold up a daemon's start. */
#define TIME_LIMIT_S 10

static int run_in_child(const struct probe *probe) {
  pid_t pid = fork();
  if (pid < 0)
    return errno;
  if (pid == 0) {
    alarm(TIME_LIMIT_S);
    int error = probe->run();
    _exit(error >= 0 && error < 255 ? error : 255);
  }
  int status;
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR)
      return errno;
  if (WIFSIGNALED(status))
    return WTERMSIG(status) == SIGALRM ? ETIMEDOUT : EFAULT;
  return WEXITSTATUS(status);
}

static void print_line_of(const char *name, const char *path) {
  char text[128] = "";
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0)
    close(fd);
  text[size > 0 ? size : 0] = 0;
  text[strcspn(text, "\n\"\\")] = 0;
  if (size < 0)
    printf("    \"%s\": null", name);
  else
    printf("    \"%s\": \"%s\"", name, text);
}

int main(void) {
  struct utsname name;
  if (uname(&name) < 0)
    return 1;
  printf("{\n  \"kernel\": \"%s\",\n  \"machine\": \"%s\",\n  \"features\": {\n", name.release,
         name.machine);
  for (unsigned i = 0; i < probe_count; i++) {
    const struct probe *probe = &probes[i];
    fflush(stdout); /* a child must not inherit, and print, what is buffered */
    int error = run_in_child(probe);
    printf("    \"%s\": {\"usable\": %s, \"error\": ", probe->name, error ? "false" : "true");
    printf(error ? "\"%s\"" : "null", strerror(error));
    printf("}%s\n", i + 1 < probe_count ? "," : "");
  }
  printf("  },\n  \"settings\": {\n");
  static const struct {
    const char *name;
    const char *path;
  } settings[] = {
      {"transparent_hugepage", "/sys/kernel/mm/transparent_hugepage/enabled"},
      {"shmem_hugepage", "/sys/kernel/mm/transparent_hugepage/shmem_enabled"},
      {"max_user_namespaces", "/proc/sys/user/max_user_namespaces"},
      {"max_map_count", "/proc/sys/vm/max_map_count"},
      {"yama_ptrace_scope", "/proc/sys/kernel/yama/ptrace_scope"},
      {"unprivileged_userfaultfd", "/proc/sys/vm/unprivileged_userfaultfd"},
  };
  const unsigned count = sizeof settings / sizeof *settings;
  for (unsigned i = 0; i < count; i++) {
    print_line_of(settings[i].name, settings[i].path);
    printf("%s\n", i + 1 < count ? "," : "");
  }
  printf("  }\n}\n");
  return 0;
}
