/* From fork to exec: gives up, step by step, everything that init may do and the sandbox may not.
 *
 * The order is the point:
 *   - groups, oom score and limits need init's rights, so they come first;
 *   - names of users are looked up after the capabilities went down to the sandbox's set, because
 *     /etc/passwd is the sandbox's own file and may be a link to anything;
 *   - the working directory is entered with the user's rights;
 *   - the filter comes last, it may forbid anything that came before.
 */
#include "child.h"

#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "files.h"
#include "restore.h"
#include "sys.h"
#include "terminal.h"
#include "users.h"

#define STATUS_FD 3
#define CAPABILITY_BIT(number) (UINT64_C(1) << (number))

static char *vector[VENUS_MAX_STRINGS + 4]; /* argv and envp; touched in children only */
static char home_variable[USERS_HOME_SIZE + sizeof "HOME="];

static _Noreturn void fail(int status_fd, uint32_t step, int error) {
  struct child_failure failure = {.step = step, .error = error ? error : EIO};
  ssize_t written = write(status_fd, &failure, sizeof failure);
  _exit(written == (ssize_t)sizeof failure ? 127 : 126);
}

static int join_cgroups(const struct child_fds *fds) {
  for (unsigned i = 0; i < fds->cgroup_count; i++)
    if (write(fds->cgroup_procs[i], "0", 1) < 0)
      return errno;
  return 0;
}

static int arrange_descriptors(struct child_fds *fds) {
  /* Received descriptors are never 0, 1 or 2: init holds those. So no dup2 clobbers a source. */
  for (int k = 0; k < 3; k++) {
    int source = fds->terminal >= 0 ? fds->terminal : fds->standard[k];
    if (source >= 0 && dup2(source, k) < 0)
      return errno;
  }
  if (fds->status != STATUS_FD) {
    if (dup3(fds->status, STATUS_FD, O_CLOEXEC) < 0)
      return errno;
    fds->status = STATUS_FD;
  }
  return sys_close_range(STATUS_FD + 1, ~0u) < 0 ? errno : 0;
}

static int set_oom_score(int32_t score) {
  char text[16];
  unsigned at = sizeof text;
  unsigned left = (unsigned)(score < 0 ? -score : score);
  do
    text[--at] = (char)('0' + left % 10);
  while (left /= 10);
  if (score < 0)
    text[--at] = '-';
  int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  int error = fd < 0 ? errno : 0;
  if (fd >= 0) {
    if (write(fd, text + at, sizeof text - at) < 0)
      error = errno;
    close(fd);
  }
  return error;
}

static int set_rlimits(const uint8_t *rlimits, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    struct venus_rlimit each;
    memcpy(&each, rlimits + i * sizeof each, sizeof each);
    struct rlimit limit = {.rlim_cur = each.soft, .rlim_max = each.hard};
    if (setrlimit((int)each.resource, &limit) < 0)
      return errno;
  }
  return 0;
}

static int set_capabilities(uint64_t mask) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[2] = {
      {.effective = (uint32_t)mask, .permitted = (uint32_t)mask},
      {.effective = (uint32_t)(mask >> 32), .permitted = (uint32_t)(mask >> 32)},
  };
  return syscall(SYS_capset, &header, data) < 0 ? errno : 0;
}

static uint64_t permitted_capabilities(void) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[2];
  if (syscall(SYS_capget, &header, data) < 0)
    return 0;
  return data[0].permitted | (uint64_t)data[1].permitted << 32;
}

static int drop_bounding_set(uint64_t mask) {
  for (unsigned capability = 0; capability < 64; capability++) {
    if (mask & CAPABILITY_BIT(capability))
      continue;
    if (prctl(PR_CAPBSET_DROP, capability) < 0)
      return errno == EINVAL ? 0 : errno; /* EINVAL: beyond the kernel's last capability */
  }
  return 0;
}

/* Enough to become the user, nothing else beyond the sandbox's set. */
static int reduce_capabilities(uint64_t mask) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
    return errno;
  int error = drop_bounding_set(mask);
  if (error)
    return error;
  uint64_t needed = mask | CAPABILITY_BIT(CAP_SETUID) | CAPABILITY_BIT(CAP_SETGID);
  return set_capabilities(needed & permitted_capabilities());
}

static int become(const struct identity *identity, uint64_t mask) {
  if (setgroups(identity->group_count, identity->groups) < 0 ||
      setresgid(identity->gid, identity->gid, identity->gid) < 0 ||
      setresuid(identity->uid, identity->uid, identity->uid) < 0)
    return errno;
  return set_capabilities(identity->uid == 0 ? mask & permitted_capabilities() : 0);
}

static int enter_directory(const char *path, const struct identity *identity) {
  if (*path)
    return chdir(path) < 0 ? errno : 0;
  if (*identity->home && chdir(identity->home) == 0)
    return 0;
  return chdir("/") < 0 ? errno : 0;
}

static int install_filter(const struct policy *policy) {
  if (policy->filter_count == 0)
    return 0;
  struct sock_fprog program = {.len = (unsigned short)policy->filter_count,
                               .filter = (struct sock_filter *)policy->filter};
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0 ? errno : 0;
}

static const char *variable(char **env, const char *name) {
  size_t length = strlen(name);
  for (; *env; env++)
    if (strncmp(*env, name, length) == 0 && (*env)[length] == '=')
      return *env + length + 1;
  return NULL;
}

/* Lays argv and envp out in `vector`; returns envp. */
static char **build_vectors(const struct exec_request *request, const struct identity *identity) {
  const char *text = packet_next_string(packet_next_string(request->strings));
  uint32_t at = 0;
  for (uint32_t i = 0; i < request->head.argc; i++, text = packet_next_string(text))
    vector[at++] = (char *)text;
  vector[at++] = NULL;
  char **env = vector + at;
  for (uint32_t i = 0; i < request->head.envc; i++, text = packet_next_string(text))
    vector[at++] = (char *)text;
  vector[at] = NULL;
  if (!variable(env, "HOME")) {
    strcpy(home_variable, "HOME=");
    strcat(home_variable, *identity->home ? identity->home : "/");
    vector[at++] = home_variable;
    vector[at] = NULL;
  }
  return env;
}

/* execvp by the given environment's PATH; returns the errno worth telling. */
static int exec_program(char **argv, char **env) {
  const char *name = argv[0];
  if (!*name)
    return ENOENT;
  if (strchr(name, '/')) {
    execve(name, argv, env);
    return errno;
  }
  const char *path = variable(env, "PATH");
  if (!path || !*path)
    path = "/usr/local/bin:/usr/bin:/bin";
  int error = ENOENT;
  char full[PATH_MAX];
  size_t name_size = strlen(name) + 1;
  for (;;) {
    size_t length = strcspn(path, ":");
    if (length + 1 + name_size <= sizeof full) {
      memcpy(full, path, length);
      size_t at = length;
      if (length)
        full[at++] = '/'; /* an empty element is the working directory */
      memcpy(full + at, name, name_size);
      execve(full, argv, env);
      /* Somebody else's unreadable directory must not hide a program further on. */
      if (errno == EACCES)
        error = EACCES;
      else if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENAMETOOLONG)
        return errno;
    }
    if (!path[length])
      return error;
    path += length + 1;
  }
}

/* Init has what the daemon ignores, by inheritance: Python ignores two. */
static void reset_signal_actions(void) {
  struct sigaction action = {.sa_handler = SIG_DFL};
  for (int number = 1; number < 65; number++)
    sigaction(number, &action, NULL); /* SIGKILL, SIGSTOP and libc's own refuse; they are default */
}

static void unblock_signals(void) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
}

_Noreturn void child_run(const struct policy *policy, const struct exec_request *request,
                         struct child_fds *fds) {
  static struct identity identity;
  const char *user = request->strings;
  const char *cwd = packet_next_string(user);
  uint64_t mask = policy->capability_mask;
  int error;

#define STEP(name, expression)                                                                     \
  if ((error = (expression)))                                                                      \
  fail(fds->status, VENUS_STEP_##name, error)

  reset_signal_actions();
  if (request->head.kind == VENUS_KIND_RESTORE) {
    STEP(CGROUP, join_cgroups(fds));
    STEP(DESCRIPTORS, arrange_descriptors(fds));
    fail(fds->status, VENUS_STEP_RESTORE, restore_run(fds->status));
  }
  STEP(SESSION, setsid() < 0 ? errno : 0);
  STEP(CGROUP, join_cgroups(fds));
  STEP(DESCRIPTORS, arrange_descriptors(fds));
  if (fds->terminal >= 0)
    STEP(TERMINAL, terminal_take());
  if (policy->oom_score_adj)
    STEP(OOM_SCORE, set_oom_score(policy->oom_score_adj));
  STEP(RLIMIT, set_rlimits((const uint8_t *)policy->rlimits, policy->rlimit_count));
  STEP(RLIMIT, set_rlimits(request->rlimits, request->head.rlimit_count));
  STEP(CAPABILITIES, reduce_capabilities(mask));
  STEP(USER, users_lookup(user, &identity));
  if (fds->terminal >= 0 && identity.uid != 0)
    STEP(TERMINAL, fchown(STDIN_FILENO, identity.uid, (gid_t)-1) < 0 ? errno : 0);
  STEP(CREDENTIALS, become(&identity, mask));
  umask((mode_t)policy->umask);
  STEP(CWD, enter_directory(cwd, &identity));
  char **env = build_vectors(request, &identity);
  unblock_signals();
  scheduling_slice(SLICE_DEFAULT);
  STEP(SECCOMP, install_filter(policy));
  if (request->head.kind == VENUS_KIND_PROGRAM)
    fail(fds->status, VENUS_STEP_EXEC, exec_program(vector, env));
#undef STEP

  close(fds->status); /* stands for the exec: the operation runs */
  _exit(files_run(&request->head, vector[0], vector[1]));
}
