/* Control packets of sandbox-init. First byte: how many descriptors came along. */
#include <string.h>

#include "fuzz.h"
#include "init/packet.h"

/* What the child of an EXEC does with it. */
static void walk(const struct exec_request *exec) {
  const char *text = exec->strings;
  for (uint32_t i = 0; i < 2 + exec->head.argc + exec->head.envc; i++)
    text = packet_next_string(text);
  REQUIRE(text == exec->strings + exec->head.strings_size);
  struct venus_rlimit limit;
  for (uint32_t i = 0; i < exec->head.rlimit_count; i++)
    memcpy(&limit, exec->rlimits + i * sizeof limit, sizeof limit);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  struct packet packet;
  if (size == 0)
    return 0;
  unsigned fds = bytes[0] % (VENUS_MAX_PACKET_FDS + 1);
  if (packet_parse(&packet, bytes + 1, size - 1, fds) == 0 && packet.header.type == VENUS_EXEC) {
    REQUIRE(packet_fd_count(packet.exec.head.fd_mask, packet.exec.head.cgroup_procs_count) == fds);
    walk(&packet.exec);
  }
  return 0;
}
