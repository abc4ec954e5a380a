/* A process whose first thread has ended, one that is in a root of its own, and one that waits for a
 * child of vfork() when it is captured. */
#include "fidelity.h"

#include <pthread.h>
#include <sys/prctl.h>

static int answers[2], orders[2];

static void *go_on(void *unused) {
  char name[16], byte;
  prctl(PR_SET_NAME, "second");
  if (write(answers[1], "r", 1) != 1 || read(orders[0], &byte, 1) != 1)
    _exit(1);
  prctl(PR_GET_NAME, name);
  byte = getpid() != (pid_t)syscall(SYS_gettid) && strcmp(name, "second") == 0 ? 'y' : 'n';
  if (write(answers[1], &byte, 1) != 1)
    _exit(1);
  syscall(SYS_exit, 4); /* the last thread's status is the process's */
  return unused;
}

static pid_t start_leaderless(void) {
  pid_t child = fork();
  if (child == 0) {
    pthread_t thread;
    prctl(PR_SET_NAME, "first");
    if (pthread_create(&thread, NULL, go_on, NULL) != 0)
      _exit(1);
    syscall(SYS_exit, 9);
  }
  char byte;
  MUST(read(answers[0], &byte, 1) == 1);
  return child;
}

static char state_of(pid_t pid, char *name) {
  char path[64], state = '?';
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "r");
  if (!file || fscanf(file, "%*d (%15[^)]) %c", name, &state) != 2)
    state = '?';
  if (file)
    fclose(file);
  return state;
}

static pid_t start_jailed(void) {
  pid_t child = fork();
  if (child == 0) {
    char byte;
    struct stat outside, inside, root;
    stat("/var", &outside);
    if (chdir("/usr") < 0 || chroot("/var/tmp/jail") < 0 || write(answers[1], "r", 1) != 1 || read(orders[0], &byte, 1) != 1)
      _exit(1);
    int at_root = stat("/", &root) == 0 && stat("/inside", &inside) == 0 && access("/var", F_OK) < 0;
    int outside_still = access("bin/env", F_OK) == 0;
    byte = at_root && outside_still ? 'y' : 'n';
    _exit(write(answers[1], &byte, 1) == 1 ? 0 : 1);
  }
  char byte;
  MUST(read(answers[0], &byte, 1) == 1);
  return child;
}

/* The child says that all is ready, and for a while shares the memory of its stopped parent. */
static pid_t run_borrowed(void) {
  pid_t child = vfork();
  if (child == 0) {
    struct timespec rest = {0, 300000000};
    write_file(READY_FILE, "ready");
    nanosleep(&rest, NULL);
    execl("/bin/sh", "sh", "-c", "while ! test -e " GO_FILE "; do sleep 0.01; done; exit 5", NULL);
    _exit(99);
  }
  return child;
}

int main(void) {
  char byte, name[16] = "";
  int status;
  MUST(pipe(answers) == 0 && pipe(orders) == 0);
  MUST(mkdir("/var/tmp/jail", 0755) == 0 && close(creat("/var/tmp/jail/inside", 0644)) == 0);
  pid_t leaderless = start_leaderless(), jailed = start_jailed();
  for (int i = 0; i < 1000 && state_of(leaderless, name) != 'Z'; i++)
    pause_ms(1);
  pid_t borrower = run_borrowed();

  wait_for_go();

  CHECK(state_of(leaderless, name) == 'Z' && strcmp(name, "first") == 0);
  CHECK(waitpid(leaderless, &status, WNOHANG) == 0);
  CHECK(write(orders[1], "xx", 2) == 2);
  for (int i = 0; i < 2; i++)
    CHECK(read(answers[0], &byte, 1) == 1 && byte == 'y');
  CHECK(waitpid(leaderless, &status, 0) == leaderless && WIFEXITED(status) && WEXITSTATUS(status) == 4);
  CHECK(waitpid(jailed, &status, 0) == jailed && status == 0);
  CHECK(waitpid(borrower, &status, 0) == borrower && WEXITSTATUS(status) == 5);
  finish();
}
