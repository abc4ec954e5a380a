/* One connection of a daemon: receives a request, answers it. Does not wait for the peer. */
#ifndef VENUS_KEEPER_SERVE_H
#define VENUS_KEEPER_SERVE_H

#include "table.h"

struct connection {
  int fd;             /* -1: none */
  struct entry being; /* put over this connection and not committed */
};

enum served { SERVED, SERVED_LAST, SERVED_END };

/* False unless the peer is root; then nothing of it was read. */
bool serve_accept(struct connection *connection, int listen_fd);
/* One request. SERVED_LAST: the peer is gone or is dropped. SERVED_END: it told the keeper to end,
 * and still waits for the answer. */
enum served serve_one(struct connection *connection);
void serve_answer_end(const struct connection *connection);
void serve_drop(struct connection *connection);

#endif
