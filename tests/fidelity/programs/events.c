/* eventfd, timerfd, signalfd, epoll. */
#include "fidelity.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

int main(void) {
  int counter = eventfd(41, EFD_NONBLOCK), semaphore = eventfd(3, EFD_SEMAPHORE | EFD_CLOEXEC);
  int timer = timerfd_create(CLOCK_MONOTONIC, 0), ticked = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  struct itimerspec once = {{0, 0}, {2, 0}}, often = {{0, 50000000}, {0, 50000000}};
  double started = now_s(CLOCK_MONOTONIC);
  MUST(timerfd_settime(timer, 0, &once, NULL) == 0 && timerfd_settime(ticked, 0, &often, NULL) == 0);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR2);
  sigprocmask(SIG_BLOCK, &signals, NULL);
  int signal_file = signalfd(-1, &signals, SFD_CLOEXEC);
  kill(getpid(), SIGUSR2);
  int ends[2];
  MUST(pipe(ends) == 0);
  int epoll = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create1(0);
  struct epoll_event event = {EPOLLIN, {.u64 = 0x1122334455667788}};
  MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, counter, &event) == 0);
  event = (struct epoll_event){EPOLLIN | EPOLLET, {.u64 = 2}};
  MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) == 0);
  event = (struct epoll_event){EPOLLIN, {.u64 = 3}};
  MUST(epoll_ctl(outer, EPOLL_CTL_ADD, epoll, &event) == 0);
  pause_ms(220);

  ready_and_wait();

  uint64_t value = 0;
  struct epoll_event found[4];
  CHECK(epoll_wait(outer, found, 4, 0) == 1 && found[0].data.u64 == 3);
  CHECK(epoll_wait(epoll, found, 4, 0) == 1 && found[0].data.u64 == 0x1122334455667788);
  CHECK(read(counter, &value, 8) == 8 && value == 41);
  CHECK(read(counter, &value, 8) < 0 && errno == EAGAIN);
  CHECK(epoll_wait(epoll, found, 4, 0) == 0);
  CHECK(write(ends[1], "x", 1) == 1 && epoll_wait(epoll, found, 4, 1000) == 1 && found[0].data.u64 == 2);
  CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, ends[0], NULL) == 0);
  for (int i = 0; i < 3; i++)
    CHECK(read(semaphore, &value, 8) == 8 && value == 1);
  CHECK(fcntl(semaphore, F_GETFD) == FD_CLOEXEC);
  CHECK(read(ticked, &value, 8) == 8 && value >= 4);
  CHECK(read(timer, &value, 8) == 8 && value == 1);
  double passed = now_s(CLOCK_MONOTONIC) - started;
  CHECK(passed > 1.9 && passed < 8);
  struct signalfd_siginfo info;
  CHECK(read(signal_file, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR2);
  finish();
}
