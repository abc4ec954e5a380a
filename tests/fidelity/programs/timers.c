/* Interval timers, POSIX timers with their ids, and what remains of sleeps. */
#include "fidelity.h"

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/time.h>

static volatile sig_atomic_t alarms, realtime, value;
static void on_alarm(int number) { alarms = number; }
static void on_timer(int number, siginfo_t *info, void *context) {
  (void)context;
  realtime = number;
  value = info->si_value.sival_int;
}

/* Each sleeps 3 s in another way and says when it woke. */
static double woke[6], started;
static double since_start(void) { return now_s(CLOCK_MONOTONIC) - started; }
static void *sleep_relative(void *unused) {
  struct timespec rest = {3, 0};
  (void)unused;
  nanosleep(&rest, NULL);
  woke[0] = since_start();
  return NULL;
}
static void *sleep_absolute(void *unused) {
  struct timespec until;
  (void)unused;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += 3;
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
  woke[1] = since_start();
  return NULL;
}
static void *sleep_poll(void *unused) {
  (void)unused;
  poll(NULL, 0, 3000);
  woke[2] = since_start();
  return NULL;
}
static void *sleep_epoll(void *unused) {
  int epoll = epoll_create1(0);
  struct epoll_event event;
  (void)unused;
  if (epoll_wait(epoll, &event, 1, 3000) != 0)
    problem("timers.c", __LINE__, "epoll_wait");
  woke[3] = since_start();
  return NULL;
}
static void *sleep_futex(void *unused) {
  static uint32_t word;
  struct timespec rest = {3, 0};
  (void)unused;
  if (syscall(SYS_futex, &word, 0 /* FUTEX_WAIT */, 0, &rest, NULL, 0) != -1 || errno != ETIMEDOUT)
    problem("timers.c", __LINE__, "futex");
  woke[4] = since_start();
  return NULL;
}
static void *sleep_with_remainder(void *unused) {
  struct timespec rest = {3, 0};
  (void)unused;
  nanosleep(&rest, &rest);
  woke[5] = since_start();
  return NULL;
}

int main(void) {
  pthread_t threads[6];
  void *(*kinds[6])(void *) = {sleep_relative, sleep_absolute, sleep_poll,
                               sleep_epoll,    sleep_futex,    sleep_with_remainder};
  signal(SIGALRM, on_alarm);
  struct sigaction action = {.sa_sigaction = on_timer, .sa_flags = SA_SIGINFO};
  sigaction(SIGRTMIN, &action, NULL);
  sigset_t late;
  sigemptyset(&late);
  sigaddset(&late, SIGALRM);
  sigaddset(&late, SIGRTMIN);
  pthread_sigmask(SIG_BLOCK, &late, NULL); /* also in the threads: they inherit it */
  started = now_s(CLOCK_MONOTONIC);
  for (int i = 0; i < 6; i++)
    MUST(pthread_create(&threads[i], NULL, kinds[i], NULL) == 0);
  struct itimerval real = {{7, 0}, {2, 500000}};
  MUST(setitimer(ITIMER_REAL, &real, NULL) == 0);
  timer_t dropped, kept, idle;
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
  MUST(timer_create(CLOCK_MONOTONIC, &event, &dropped) == 0);
  event.sigev_value.sival_int = 31337;
  MUST(timer_create(CLOCK_MONOTONIC, &event, &kept) == 0);
  event.sigev_notify = SIGEV_NONE;
  MUST(timer_create(CLOCK_REALTIME, &event, &idle) == 0);
  timer_delete(dropped);
  struct itimerspec spec = {{0, 0}, {2, 0}};
  MUST(timer_settime(kept, 0, &spec, NULL) == 0);
  pause_ms(700);

  /* The time that passes for the original between snapshot and fork shows as a gap here. */
  double gap = 0, last = now_s(CLOCK_MONOTONIC);
  write_file(READY_FILE, "ready");
  while (access(GO_FILE, F_OK) < 0) {
    pause_ms(2);
    double now = now_s(CLOCK_MONOTONIC);
    if (now - last > 0.05)
      gap += now - last;
    last = now;
  }

  struct itimerval now;
  getitimer(ITIMER_REAL, &now);
  CHECK(now.it_interval.tv_sec == 7 && now.it_value.tv_sec < 3);
  CHECK(timer_gettime(idle, &spec) == 0 && spec.it_value.tv_sec == 0);
  pthread_sigmask(SIG_UNBLOCK, &late, NULL);
  for (int i = 0; i < 6; i++)
    pthread_join(threads[i], NULL);
  for (int i = 0; i < 6; i++)
    if (woke[i] < 2.9 || woke[i] > 3 + gap + 1.5) {
      char text[64];
      snprintf(text, sizeof text, "sleep %d woke after %.3f s", i, woke[i]);
      problem("timers.c", __LINE__, text);
    }
  while (since_start() < 3.4 + gap)
    pause_ms(10);
  CHECK(realtime == SIGRTMIN && value == 31337 && alarms == SIGALRM);
  CHECK(timer_delete(kept) == 0 && timer_delete(idle) == 0);
  finish();
}
