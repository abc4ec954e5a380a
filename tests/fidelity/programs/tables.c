/* Tables that processes share without being threads, and threads that have tables of their own. */
#include "fidelity.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

enum { FILES, DIRECTORY, MEMORY, ACTIONS, FIRST_SIBLING, SECOND_SIBLING, OWN_FILES, OWN_DIRECTORY, ROLES };

/* Each child answers one question at a time. */
static struct board {
  int ready[ROLES], asked[ROLES], answered[ROLES];
  int number;
  char text[64];
} *board;
static volatile int in_memory = 1;
static volatile sig_atomic_t signalled;

static void on_signal(int number) { signalled = number; }

static void answer(int role) {
  if (role == FILES || role == OWN_FILES || role == SECOND_SIBLING)
    board->number = fcntl(board->number, F_GETFD); /* whether it is open here */
  else if (role == FIRST_SIBLING)
    board->number = open("/dev/zero", O_RDONLY);
  else if (role == MEMORY)
    board->number = ++in_memory;
  else if (role == ACTIONS)
    board->number = signal(SIGUSR2, on_signal) == SIG_IGN;
  else if (!getcwd(board->text, sizeof board->text))
    board->text[0] = 0;
}

static int serve(void *argument) {
  int role = (int)(intptr_t)argument;
  board->ready[role] = 1;
  for (int done = 0;; done++) {
    while (__atomic_load_n(&board->asked[role], __ATOMIC_SEQ_CST) == done)
      pause_ms(1);
    answer(role);
    __atomic_store_n(&board->answered[role], done + 1, __ATOMIC_SEQ_CST);
  }
  return 0;
}

static void *serve_apart(void *argument) {
  MUST(unshare((intptr_t)argument == OWN_FILES ? CLONE_FILES : CLONE_FS) == 0);
  if ((intptr_t)argument == OWN_FILES)
    close(100);
  else
    MUST(chdir("/usr") == 0 && umask(077) == 022);
  serve(argument);
  return NULL;
}

static pid_t start(int role, int flags) {
  char *stack = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pid_t child = clone(serve, stack + 65536, flags | SIGCHLD, (void *)(intptr_t)role);
  MUST(child > 0);
  while (!board->ready[role])
    pause_ms(1);
  return child;
}

static int ask(int role, int number) {
  int before = board->answered[role];
  board->number = number;
  __atomic_store_n(&board->asked[role], before + 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&board->answered[role], __ATOMIC_SEQ_CST) == before)
    pause_ms(1);
  return board->number;
}

static int own_files(void *unused) {
  (void)unused;
  for (;;)
    pause();
  return 0;
}

int main(void) {
  pthread_t thread;
  umask(022);
  board = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  signal(SIGUSR2, SIG_IGN);
  MUST(chdir("/var") == 0 && dup2(open("/dev/null", O_RDONLY), 100) == 100);
  pid_t parts[] = {start(FILES, CLONE_FILES), start(DIRECTORY, CLONE_FS), start(MEMORY, CLONE_VM),
                   start(ACTIONS, CLONE_VM | CLONE_SIGHAND | CLONE_FILES | CLONE_FS)};
  MUST(pthread_create(&thread, NULL, serve_apart, (void *)OWN_FILES) == 0);
  MUST(pthread_create(&thread, NULL, serve_apart, (void *)OWN_DIRECTORY) == 0);
  while (!board->ready[OWN_FILES] || !board->ready[OWN_DIRECTORY])
    pause_ms(1);
  /* Two that share what their parent has left. */
  pid_t middle = fork();
  if (middle == 0) {
    start(FIRST_SIBLING, CLONE_FILES);
    start(SECOND_SIBLING, CLONE_FILES);
    unshare(CLONE_FILES);
    for (;;)
      pause();
  }
  while (!board->ready[SECOND_SIBLING])
    pause_ms(1);
  /* A child whose end is told by another signal, and a zombie of that kind. */
  signal(SIGUSR1, on_signal);
  char *stack = malloc(16384);
  pid_t odd = clone(own_files, stack + 16384, SIGUSR1, NULL);
  pid_t zombie = (pid_t)syscall(SYS_clone, SIGUSR1, NULL, NULL, NULL, NULL);
  if (zombie == 0)
    _exit(17);
  siginfo_t info;
  MUST(waitid(P_PID, (id_t)zombie, &info, WEXITED | WNOWAIT | __WALL) == 0);
  MUST(signalled == SIGUSR1);
  signalled = 0;

  ready_and_wait();

  CHECK(signalled == 0);
  int fresh = open("/dev/null", O_RDONLY);
  CHECK(ask(FILES, fresh) == 0 && ask(OWN_FILES, fresh) == -1);
  close(fresh);
  CHECK(ask(FILES, fresh) == -1 && ask(FILES, 100) == 0 && ask(OWN_FILES, 100) == -1);
  CHECK(chdir("/tmp") == 0 && ask(DIRECTORY, 0) == 0 && strcmp(board->text, "/tmp") == 0);
  CHECK(ask(OWN_DIRECTORY, 0) == 0 && strcmp(board->text, "/usr") == 0);
  CHECK(umask(027) == 022);
  in_memory = 40;
  CHECK(ask(MEMORY, 0) == 41 && in_memory == 41);
  CHECK(ask(ACTIONS, 0) == 1);
  raise(SIGUSR2);
  CHECK(signalled == SIGUSR2);
  int theirs = ask(FIRST_SIBLING, 0);
  CHECK(theirs >= 0 && ask(SECOND_SIBLING, theirs) == 0);
  CHECK(fcntl(theirs, F_GETFD) == -1);
  int status;
  signalled = 0;
  CHECK(kill(odd, SIGKILL) == 0 && waitpid(odd, &status, __WALL) == odd && signalled == SIGUSR1);
  CHECK(waitpid(zombie, &status, 0) == -1 && errno == ECHILD);
  CHECK(waitpid(zombie, &status, __WCLONE) == zombie && WEXITSTATUS(status) == 17);
  for (int i = 0; i < 4; i++)
    CHECK(kill(parts[i], SIGKILL) == 0 && waitpid(parts[i], &status, 0) == parts[i]);
  CHECK(in_memory == 41);
  finish();
}
