#include "pool_calls.h"

#include <linux/seccomp.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "pool_thread.h"
#include "pool_vmas.h"
#include "sys.h"

#define MAX_JOBS 32
#define TURN_BYTES (8u << 20)
#define COPY_BYTES (128u << 10)
#define NOTIF_SET_FLAGS SECCOMP_IOW(4, uint64_t)
#define NOTIF_SYNC_WAKE_UP 1
#define GATE_PAUSE_MS 5
#define VANISH_CHECK_MS 50

#define ADVICE_FREE 8
#define ADVICE_REMOVE 9
#define ADVICE_WIPEONFORK 18
#define ADVICE_GUARD_INSTALL 102
#define REMAP_MAYMOVE 1u
#define REMAP_MOVES (2u | 4u) /* FIXED, DONTUNMAP */
#define FIXED_NOREPLACE 0x100000

enum job_state {
  JOB_FREE = 0,
  JOB_STOPPING, /* interrupted and answered: its stop comes */
  JOB_CALLING,  /* runs a system call for us */
  JOB_COPYING,  /* stopped; we copy */
  JOB_ZEROING,  /* not ours to stop: it waits for its answer while we write zeroes */
};

enum job_kind {
  KIND_DISCARD, /* pool parts become empty */
  KIND_KEEP,    /* pool parts become copies */
  KIND_REMAP,   /* grow in place, else the whole range becomes one copy */
};

enum step { STEP_NONE, STEP_DISCARD, STEP_GROW, STEP_MAP, STEP_PROTECT, STEP_MOVE, STEP_UNMAP };

struct job {
  uint8_t state, kind, step;
  pid_t tid;
  int maps_fd, memory_fd;
  uint64_t id;
  struct seccomp_data call;
  uint64_t at, end;        /* of the range: what has not been looked at */
  struct pool_part part;   /* what is being replaced */
  uint64_t copy, copied;   /* its replacement */
  long failure;
  struct pool_thread thread;
};

static int listener = -1, gate = -1;
static unsigned active;
static bool gate_shut; /* a capture goes on */
static uint64_t checked_us;
static struct pool_identity identity;
static struct job jobs[MAX_JOBS];
static uint64_t buffer[COPY_BYTES / sizeof(uint64_t)];

static bool lock_gate(short type) {
  if (gate < 0)
    return true; /* could not be made: better a capture that fails than calls that hang */
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
  return fcntl(gate, F_OFD_SETLK, &lock) == 0;
}

static void answer(uint64_t id, long result, uint32_t flags) {
  struct seccomp_notif_resp response = {.id = id, .flags = flags};
  if (result < 0)
    response.error = (int32_t)result;
  else
    response.val = result;
  ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response); /* fails when the thread is gone */
}

static void let_through(uint64_t id) { answer(id, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE); }

/* What the caller is told when its memory cannot be changed now. */
static long failure_of(const struct job *job) {
  return job->call.nr == SYS_mremap ? -ENOMEM : -EAGAIN;
}

static void drop(struct job *job) {
  close_fd(&job->maps_fd);
  close_fd(&job->memory_fd);
  job->state = JOB_FREE;
  if (--active == 0)
    lock_gate(F_UNLCK);
}

static void finish(struct job *job, long result) {
  pool_thread_return(&job->thread, result);
  drop(job);
}

/* The thread makes its call again, which now finds memory of its own. */
static void finish_again(struct job *job) {
  pool_thread_repeat(&job->thread, job->call.nr);
  drop(job);
}

static void call(struct job *job, enum step step, long number, const uint64_t *arguments) {
  job->step = (uint8_t)step;
  job->state = JOB_CALLING;
  pool_thread_call(&job->thread, number, arguments);
}

static void map(struct job *job, enum step step, uint64_t address, uint64_t bytes, int protection,
                int flags) {
  uint64_t arguments[6] = {
      address, bytes, (uint64_t)protection, (uint64_t)(flags | MAP_PRIVATE | MAP_ANONYMOUS),
      ~UINT64_C(0), 0};
  call(job, step, SYS_mmap, arguments);
}

/* job->part becomes a copy of itself in anonymous memory. */
static void replace(struct job *job) {
  map(job, STEP_MAP, 0, job->part.end - job->part.start, PROT_READ | PROT_WRITE, 0);
}

static void move_copy(struct job *job) {
  uint64_t bytes = job->part.end - job->part.start;
  uint64_t arguments[6] = {job->copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, job->part.start};
  call(job, STEP_MOVE, SYS_mremap, arguments);
}

static void fail_copy(struct job *job, long failure) {
  job->failure = failure;
  uint64_t arguments[6] = {job->copy, job->part.end - job->part.start};
  call(job, STEP_UNMAP, SYS_munmap, arguments);
}

/* The thread stands still and no call is under way. */
static void proceed(struct job *job) {
  if (job->kind == KIND_REMAP) {
    uint64_t bytes = job->call.args[2];
    if (job->step == STEP_NONE && !(job->call.args[3] & REMAP_MOVES)) {
      uint64_t growth = pool_round_up(bytes) - (job->part.end - job->part.start);
      map(job, STEP_GROW, job->part.end, growth, job->part.protection, FIXED_NOREPLACE);
    } else {
      replace(job);
    }
    return;
  }
  if (!pool_next_part(job->maps_fd, &identity, job->at, job->end, &job->part)) {
    finish_again(job);
    return;
  }
  job->at = job->part.end;
  if (job->kind == KIND_KEEP)
    replace(job);
  else
    map(job, STEP_DISCARD, job->part.start, job->part.end - job->part.start, job->part.protection,
        MAP_FIXED);
}

static void call_ended(struct job *job, long result) {
  switch (job->step) {
  case STEP_DISCARD:
    if (result == (long)job->part.start)
      proceed(job);
    else
      finish(job, failure_of(job));
    return;
  case STEP_GROW:
    if (result == (long)job->part.end)
      finish(job, (long)job->part.start);
    else if (job->call.args[3] & REMAP_MAYMOVE)
      replace(job);
    else
      finish(job, -ENOMEM);
    return;
  case STEP_MAP:
    if (result < 0 && result > -4096) {
      finish(job, failure_of(job));
      return;
    }
    job->copy = (uint64_t)result;
    job->copied = 0;
    job->state = JOB_COPYING;
    return;
  case STEP_PROTECT:
    if (result == 0)
      move_copy(job);
    else
      fail_copy(job, failure_of(job));
    return;
  case STEP_MOVE:
    if (result != (long)job->part.start)
      fail_copy(job, failure_of(job));
    else if (job->kind == KIND_KEEP)
      proceed(job);
    else
      finish_again(job);
    return;
  default:
    finish(job, job->failure);
  }
}

static bool is_zero(const uint64_t *page) {
  for (unsigned i = 0; i < VR_PAGE / sizeof *page; i++)
    if (page[i])
      return false;
  return true;
}

/* Copies, or with to == from empties, the pages that hold something. What cannot be read (a guard)
 * stays away. False: a page could not be written. */
static bool copy_pages(int memory_fd, uint64_t from, uint64_t to, uint64_t bytes) {
  static const uint8_t zeroes[VR_PAGE];
  ssize_t got = pread(memory_fd, buffer, bytes, (off_t)from);
  for (uint64_t at = 0; at < bytes; at += VR_PAGE) {
    uint64_t *page = buffer + at / sizeof *buffer;
    if (got < (ssize_t)(at + VR_PAGE) &&
        pread(memory_fd, page, VR_PAGE, (off_t)(from + at)) != VR_PAGE)
      continue;
    if (is_zero(page))
      continue;
    const void *content = from == to ? (const void *)zeroes : page;
    if (pwrite(memory_fd, content, VR_PAGE, (off_t)(to + at)) != VR_PAGE)
      return false;
  }
  return true;
}

static uint64_t piece(uint64_t left) { return left < COPY_BYTES ? left : COPY_BYTES; }

static void copy_turn(struct job *job) {
  uint64_t bytes = job->part.end - job->part.start;
  for (uint64_t done = 0; done < TURN_BYTES && job->copied < bytes; done += COPY_BYTES) {
    uint64_t now = piece(bytes - job->copied);
    if (!copy_pages(job->memory_fd, job->part.start + job->copied, job->copy + job->copied, now)) {
      fail_copy(job, failure_of(job));
      return;
    }
    job->copied += now;
  }
  if (job->copied < bytes)
    return;
  if (job->part.protection != (PROT_READ | PROT_WRITE)) {
    uint64_t arguments[6] = {job->copy, bytes, (uint64_t)job->part.protection};
    call(job, STEP_PROTECT, SYS_mprotect, arguments);
  } else {
    move_copy(job);
  }
}

/* A debugger in the sandbox holds the thread: zeroes in place, which hold memory but read right. */
static void zero_turn(struct job *job) {
  for (uint64_t done = 0; done < TURN_BYTES && job->at < job->end;) {
    struct pool_part part;
    if (!pool_next_memory(job->maps_fd, &identity, job->at, job->end, &part)) {
      job->at = job->end;
      break;
    }
    uint64_t now = piece(part.end - part.start);
    if (!copy_pages(job->memory_fd, part.start, part.start, now)) {
      answer(job->id, -EAGAIN, 0);
      drop(job);
      return;
    }
    job->at = part.start + now;
    done += now;
  }
  if (job->at >= job->end) {
    answer(job->id, 0, 0);
    drop(job);
  } else if (ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &job->id) < 0) {
    drop(job);
  }
}

static void without_tracing(struct job *job) {
  uint64_t advice = job->call.args[2];
  if (job->kind == KIND_DISCARD && advice == ADVICE_FREE) {
    answer(job->id, 0, 0); /* it may free the memory at any time, or never */
    drop(job);
  } else if (job->kind == KIND_DISCARD && advice != ADVICE_GUARD_INSTALL &&
             job->memory_fd >= 0) {
    job->state = JOB_ZEROING;
  } else {
    answer(job->id, failure_of(job), 0);
    drop(job);
  }
}

/* Decides what a call needs. False: nothing, or `result` is the answer. */
static bool plan(struct job *job, long *result) {
  const __u64 *argument = job->call.args;
  uint64_t start = argument[0] & POOL_ADDRESS_MASK;
  uint64_t bytes = pool_round_up(argument[1]);
  *result = 0;
  if (start % VR_PAGE != 0 || bytes == 0 || argument[1] > UINT64_MAX - VR_PAGE ||
      start + bytes < start)
    return false;
  job->at = start;
  job->end = start + bytes < POOL_ADDRESS_MASK ? start + bytes : POOL_ADDRESS_MASK;
  if (job->call.nr == SYS_mremap) {
    uint64_t wanted = pool_round_up(argument[2]);
    bool moves = argument[3] & REMAP_MOVES;
    job->kind = KIND_REMAP;
    return wanted != 0 && (moves || wanted > bytes) &&
           pool_whole(job->maps_fd, &identity, job->at, job->end, &job->part);
  }
  if (!pool_next_part(job->maps_fd, &identity, job->at, job->end, &job->part))
    return false;
  job->kind = argument[2] == ADVICE_WIPEONFORK ? KIND_KEEP : KIND_DISCARD;
  /* Anonymous private memory has nothing to remove; and a copy while other threads write would lose
   * what they write. */
  if (argument[2] == ADVICE_REMOVE ||
      (job->kind == KIND_KEEP && pool_thread_count(job->tid) != 1))
    *result = -EINVAL;
  return *result == 0;
}

static struct job *free_job(void) {
  for (unsigned i = 0; i < MAX_JOBS; i++)
    if (jobs[i].state == JOB_FREE)
      return &jobs[i];
  return NULL;
}

static void take(struct job *job) {
  struct seccomp_notif call = {0};
  if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) < 0)
    return;
  *job = (struct job){.tid = (pid_t)call.pid, .id = call.id, .call = call.data, .memory_fd = -1};
  job->maps_fd = pool_open(job->tid, "maps", O_RDONLY);
  /* Is what was opened still the caller's? Its number cannot be given away while its call waits. */
  bool valid = ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call.id) == 0;
  long result = failure_of(job);
  bool needed = job->maps_fd >= 0 && valid && plan(job, &result);
  if (needed) {
    job->memory_fd = pool_open(job->tid, "mem", O_RDWR);
    result = failure_of(job);
  }
  /* To discard is possible without it, as long as the thread can be stopped. */
  if (!needed || (job->memory_fd < 0 && job->kind != KIND_DISCARD)) {
    close_fd(&job->maps_fd);
    if (result == 0)
      let_through(call.id);
    else
      answer(call.id, result, 0);
    return;
  }
  active++;
  if (pool_thread_interrupt(&job->thread, job->tid)) {
    job->state = JOB_STOPPING;
    answer(call.id, failure_of(job), 0); /* what it sees should we lose it */
  } else {
    without_tracing(job);
  }
}

void pool_adopt(const struct vr_pool_report *report, int fd) {
  close_fd(&listener);
  if (gate < 0)
    gate = memfd_create(VR_GATE_NAME, MFD_CLOEXEC);
  if (gate >= 0)
    pwrite(gate, report, vr_pool_report_size(report), 0);
  identity.device = report->device;
  identity.count = report->count;
  memcpy(identity.inodes, report->inodes, identity.count * sizeof identity.inodes[0]);
  listener = fd;
  /* The caller sleeps as soon as it has woken us: run there and then. Since Linux 6.6. */
  ioctl(listener, NOTIF_SET_FLAGS, (unsigned long)NOTIF_SYNC_WAKE_UP);
}

int pool_poll_fd(void) { return gate_shut || active == MAX_JOBS ? -1 : listener; }

int pool_timeout_ms(void) {
  for (unsigned i = 0; i < MAX_JOBS && active; i++)
    if (jobs[i].state == JOB_COPYING || jobs[i].state == JOB_ZEROING)
      return 0;
  if (gate_shut)
    return GATE_PAUSE_MS;
  return active ? VANISH_CHECK_MS : -1;
}

/* When another thread of the process calls execve, a stopped first thread disappears unseen. */
static void drop_vanished(void) {
  uint64_t now = monotonic_us();
  if (!active || now - checked_us < VANISH_CHECK_MS * 1000u)
    return;
  checked_us = now;
  for (unsigned i = 0; i < MAX_JOBS; i++) {
    siginfo_t info;
    if ((jobs[i].state == JOB_STOPPING || jobs[i].state == JOB_CALLING) &&
        waitid(P_PID, (id_t)jobs[i].tid, &info,
               WNOHANG | WNOWAIT | WEXITED | WSTOPPED | __WALL) < 0)
      drop(&jobs[i]);
  }
}

void pool_turn(short events) {
  for (unsigned i = 0; i < MAX_JOBS && active; i++) {
    if (jobs[i].state == JOB_COPYING)
      copy_turn(&jobs[i]);
    else if (jobs[i].state == JOB_ZEROING)
      zero_turn(&jobs[i]);
  }
  drop_vanished();
  gate_shut = false;
  if (events & POLLIN) {
    struct job *job = free_job();
    if (job && !active && !lock_gate(F_WRLCK))
      gate_shut = true;
    else if (job)
      take(job);
    if (!gate_shut && !active)
      lock_gate(F_UNLCK);
  } else if (events & (POLLHUP | POLLERR | POLLNVAL)) {
    close_fd(&listener); /* nothing runs under the filter any more */
  }
}

bool pool_event(pid_t pid, int status) {
  struct job *job = NULL;
  for (unsigned i = 0; i < MAX_JOBS && active; i++)
    if (jobs[i].state != JOB_FREE && jobs[i].state != JOB_ZEROING && jobs[i].tid == pid)
      job = &jobs[i];
  if (!WIFSTOPPED(status)) {
    if (job)
      drop(job);
    return false;
  }
  if (!job)
    return true;
  long result;
  switch (pool_thread_event(&job->thread, status, job->call.instruction_pointer, &result)) {
  case POOL_THREAD_STOPPED:
    proceed(job);
    break;
  case POOL_THREAD_CALLED:
    call_ended(job, result);
    break;
  case POOL_THREAD_LOST:
    drop(job);
    break;
  case POOL_THREAD_WAIT:
    break;
  }
  return true;
}
