/* Trees: sessions, groups, orphans, a zombie, a stopped child, groups whose leader is gone. */
#include "fidelity.h"

#include <sys/prctl.h>

struct seen {
  pid_t pid, parent, group, session;
};
static int report[2], order[2];

/* A child that says who it is whenever it is asked to, by SIGUSR1. */
static void tell(int number) {
  (void)number;
  struct seen self = {getpid(), getppid(), getpgrp(), getsid(0)};
  if (write(report[1], &self, sizeof self) != sizeof self)
    _exit(9);
}
static pid_t stay(int new_session, pid_t group) {
  pid_t child = fork();
  if (child == 0) {
    signal(SIGUSR1, tell);
    if (new_session)
      setsid();
    else if (group >= 0)
      setpgid(0, group);
    if (write(order[1], "x", 1) != 1)
      _exit(9);
    for (;;)
      pause();
  }
  char byte;
  MUST(read(order[0], &byte, 1) == 1);
  return child;
}
static struct seen ask(pid_t pid) {
  struct seen answer = {0};
  kill(pid, SIGUSR1);
  if (read(report[0], &answer, sizeof answer) != sizeof answer || answer.pid != pid)
    problem("sessions.c", __LINE__, "answer");
  return answer;
}
static int same(struct seen a, struct seen b) { return memcmp(&a, &b, sizeof a) == 0; }

int main(void) {
  MUST(pipe(report) == 0 && pipe(order) == 0);
  pid_t plain = stay(0, -1), own_group = stay(0, 0), member = stay(0, own_group), leader = stay(1, -1);
  /* A group whose leader has ended. */
  pid_t lost_leader = stay(0, 0), left = stay(0, lost_leader);
  kill(lost_leader, SIGKILL);
  waitpid(lost_leader, NULL, 0);
  /* An orphan in our session, whose parent has ended, and a daemon without its session leader. */
  pid_t orphan = 0, middle = fork();
  if (middle == 0) {
    pid_t inner = stay(0, -1);
    _exit(write(report[1], &inner, sizeof inner) == sizeof inner ? 0 : 1);
  }
  waitpid(middle, NULL, 0);
  MUST(read(report[0], &orphan, sizeof orphan) == sizeof orphan);
  pid_t background = 0;
  middle = fork();
  if (middle == 0) {
    setsid();
    pid_t inner = stay(0, -1);
    _exit(write(report[1], &inner, sizeof inner) == sizeof inner ? 0 : 1);
  }
  waitpid(middle, NULL, 0);
  MUST(read(report[0], &background, sizeof background) == sizeof background);
  pid_t zombie = fork();
  if (zombie == 0)
    _exit(23);
  pid_t killed = fork();
  if (killed == 0)
    pause();
  kill(killed, SIGTERM);
  siginfo_t info;
  waitid(P_PID, (id_t)zombie, &info, WEXITED | WNOWAIT);
  waitid(P_PID, (id_t)killed, &info, WEXITED | WNOWAIT);
  /* Adopted by us: of a session whose leader lives, and of one whose leader has ended. */
  MUST(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  pid_t adopted[2], leads = fork();
  if (leads == 0) {
    setsid();
    if (fork() == 0) {
      pid_t inner = stay(0, -1);
      _exit(write(report[1], &inner, sizeof inner) == sizeof inner ? 0 : 1);
    }
    wait(NULL);
    for (;;)
      pause();
  }
  MUST(read(report[0], &adopted[0], sizeof adopted[0]) == sizeof adopted[0]);
  middle = fork();
  if (middle == 0) {
    setsid();
    pid_t inner = stay(0, -1);
    _exit(write(report[1], &inner, sizeof inner) == sizeof inner ? 0 : 1);
  }
  waitpid(middle, NULL, 0);
  MUST(read(report[0], &adopted[1], sizeof adopted[1]) == sizeof adopted[1]);
  pid_t stopped = stay(0, -1);
  kill(stopped, SIGSTOP);
  int status;
  MUST(waitpid(stopped, &status, WUNTRACED) == stopped && WIFSTOPPED(status));
  pid_t everybody[] = {plain, own_group, member, leader, left, adopted[0], adopted[1], orphan, background};
  struct seen before[9];
  for (int i = 0; i < 9; i++)
    before[i] = ask(everybody[i]);
  struct seen self = {getpid(), getppid(), getpgrp(), getsid(0)};

  ready_and_wait();

  struct seen now = {getpid(), getppid(), getpgrp(), getsid(0)};
  CHECK(same(now, self));
  for (int i = 0; i < 9; i++)
    if (!same(ask(everybody[i]), before[i]))
      problem("sessions.c", i, "a process has other ids");
  CHECK(before[7].parent == 1 && before[8].parent == 1 && before[8].session != self.session);
  CHECK(before[5].parent == self.pid && before[5].session == leads && before[6].session != self.session);
  CHECK(waitpid(stopped, &status, WNOHANG | WUNTRACED) == 0);
  char line[512] = "";
  snprintf(line, sizeof line, "/proc/%d/stat", stopped);
  int fd = open(line, O_RDONLY);
  CHECK(read(fd, line, sizeof line - 1) > 0 && strstr(line, ") T "));
  close(fd);
  kill(stopped, SIGCONT);
  CHECK(ask(stopped).parent == getpid());
  CHECK(waitpid(zombie, &status, 0) == zombie && WIFEXITED(status) && WEXITSTATUS(status) == 23);
  CHECK(waitpid(killed, &status, 0) == killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  int subreaper = 0;
  CHECK(prctl(PR_GET_CHILD_SUBREAPER, &subreaper) == 0 && subreaper == 1);
  for (int i = 0; i < 7; i++) {
    kill(everybody[i], SIGKILL);
    CHECK(waitpid(everybody[i], &status, 0) == everybody[i]);
  }
  finish();
}
