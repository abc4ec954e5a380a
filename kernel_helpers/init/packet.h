/* Parser of control packets. Pure: no system call, no state; safe to fuzz. */
#ifndef VENUS_INIT_PACKET_H
#define VENUS_INIT_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "venus_init_protocol.h"

/* A validated EXEC. Pointers lead into the packet and may be unaligned for their type. */
struct exec_request {
  struct venus_exec head;
  const uint8_t *rlimits; /* head.rlimit_count venus_rlimit */
  const char *strings;    /* 2 + argc + envc NUL-terminated strings */
};

struct packet {
  struct venus_header header;
  union {
    struct exec_request exec;
    struct venus_kill kill;
    struct venus_exec_ref ref;
    struct venus_socket socket;
  };
};

/* 0, or an errno for the ERROR answer. `packet->header.request_id` is set whenever the packet was
 * long enough to hold one, 0 otherwise. `fd_count` is how many descriptors came with the packet. */
int packet_parse(struct packet *packet, const uint8_t *bytes, size_t size, unsigned fd_count);

/* How many descriptors a mask stands for. */
unsigned packet_fd_count(uint32_t fd_mask, uint32_t cgroup_procs_count);

/* The string after `text` in the same block. */
const char *packet_next_string(const char *text);

#endif
