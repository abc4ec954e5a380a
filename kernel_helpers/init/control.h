/* The daemon's connection. Init never waits for it: what cannot be sent now stays as pending bits,
 * one stored answer and a LIST cursor, and no request is read meanwhile. */
#ifndef VENUS_INIT_CONTROL_H
#define VENUS_INIT_CONTROL_H

#include <stdbool.h>

#include "execs.h"

#define CONTROL_MAX_ANSWER 256

struct control {
  struct exec_table *table;
  uint64_t started_us;
  int listen_fd;
  int fd; /* the connection, -1 = none */
  bool listing;
  bool stalled; /* sending failed for a want that poll does not see: try again after a pause */
  unsigned list_next;
  uint64_t list_request_id;
  uint32_t answer_size; /* an answer that did not fit the socket */
  int answer_fd;        /* goes with it; -1 = none */
  uint8_t answer[CONTROL_MAX_ANSWER];
};

/* Takes the newest connection and drops the one before. */
void control_accept(struct control *control);

/* poll events to wait for. */
short control_events(const struct control *control);

/* Handles all requests that are there. Returns false when init shall end. */
bool control_receive(struct control *control);

/* Sends what is pending, as far as the socket takes it. */
void control_flush(struct control *control);

#endif
