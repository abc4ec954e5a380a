/* Calls on pool memory: a restored process has private mappings of sealed template pages where its
 * original had anonymous memory. What would act differently there (discarding, growing, moving) is
 * caught by address with a seccomp filter that all processes of a fork share (native/restore/
 * pool_filter.h) and comes here. Init looks at what really lies at the address, makes it anonymous by
 * system calls that it puts into the calling thread, and lets the thread make its own call again.
 *
 * Nothing here waits: a thread that is being stopped or that runs a call for us is a job, and its
 * next event comes through wait(). Contents are copied a little per turn of the main loop.
 *
 * Whoever captures the sandbox from outside stops the same threads. It takes the lock of the gate
 * first (VR_GATE_NAME), which init holds while it has jobs.
 */
#ifndef VENUS_INIT_POOL_CALLS_H
#define VENUS_INIT_POOL_CALLS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "venus_restore_format.h"

/* Takes over what the coordinator reported; the descriptor is consumed. */
void pool_adopt(const struct vr_pool_report *report, int listener);

/* Whether poll shall wait for the listener. -1: there is none, or no job can be taken. */
int pool_poll_fd(void);

/* Milliseconds until pool_turn must be called, -1: none. */
int pool_timeout_ms(void);

/* `events`: what poll said of the listener. */
void pool_turn(short events);

/* Every result of wait(). True: it was the stop of a thread, no end of a process. */
bool pool_event(pid_t pid, int status);

#endif
