/* The packet parser of sandbox-init: what it takes, what it refuses, and that no bytes whatever make
 * it read outside the packet (each is parsed from a heap block of exactly its size, so that the
 * address sanitizer sees a step beyond). */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "check.h"
#include "init/packet.h"

struct builder {
  size_t size;
  uint8_t bytes[4096];
};

static void put(struct builder *builder, const void *bytes, size_t size) {
  memcpy(builder->bytes + builder->size, bytes, size);
  builder->size += size;
}

static struct builder start(uint16_t type, uint32_t payload_size) {
  struct builder builder = {0};
  struct venus_header header = {VENUS_PROTOCOL_VERSION, type, payload_size, 42};
  put(&builder, &header, sizeof header);
  return builder;
}

static int parse(const struct builder *builder, unsigned fds, struct packet *packet) {
  uint8_t *exact = malloc(builder->size ? builder->size : 1);
  memcpy(exact, builder->bytes, builder->size);
  int error = packet_parse(packet, exact, builder->size, fds);
  if (!error && packet->header.type == VENUS_EXEC) {
    /* What the child does with it. */
    const char *text = packet->exec.strings;
    uint32_t count = 2 + packet->exec.head.argc + packet->exec.head.envc;
    for (uint32_t i = 0; i < count; i++)
      text = packet_next_string(text);
    CHECK(text == packet->exec.strings + packet->exec.head.strings_size);
    struct venus_rlimit limit;
    for (uint32_t i = 0; i < packet->exec.head.rlimit_count; i++)
      memcpy(&limit, packet->exec.rlimits + i * sizeof limit, sizeof limit);
  }
  free(exact);
  return error;
}

static struct builder exec_packet(struct venus_exec head, const char *strings, size_t size) {
  head.strings_size = (uint32_t)size;
  struct builder builder = start(
      VENUS_EXEC, (uint32_t)(sizeof head + head.rlimit_count * sizeof(struct venus_rlimit) + size));
  put(&builder, &head, sizeof head);
  for (uint32_t i = 0; i < head.rlimit_count; i++)
    put(&builder, &(struct venus_rlimit){.resource = i}, sizeof(struct venus_rlimit));
  put(&builder, strings, size);
  return builder;
}

static void test_exec(void) {
  static const char strings[] = "user\0/cwd\0prog\0arg\0A=1";
  struct venus_exec head = {.exec_id = 1, .argc = 2, .envc = 1, .rlimit_count = 2};
  struct packet packet;
  struct builder builder = exec_packet(head, strings, sizeof strings);
  CHECK(parse(&builder, 0, &packet) == 0);
  CHECK(packet.header.request_id == 42 && packet.exec.head.argc == 2);
  CHECK(parse(&builder, 1, &packet) == EBADF);

  head.argc = 3;
  builder = exec_packet(head, strings, sizeof strings);
  CHECK(parse(&builder, 0, &packet) == EBADMSG);
  head.argc = 2;
  builder = exec_packet(head, strings, sizeof strings - 1);
  CHECK(parse(&builder, 0, &packet) == EBADMSG);
  head.fd_mask = VENUS_HAS_STDOUT | VENUS_HAS_CGROUP_PROCS | VENUS_HAS_CGROUP_KILL;
  head.cgroup_procs_count = 3;
  builder = exec_packet(head, strings, sizeof strings);
  CHECK(parse(&builder, 5, &packet) == 0);
  CHECK(parse(&builder, 4, &packet) == EBADF);
  head.kind = VENUS_KIND_STAT;
  builder = exec_packet(head, strings, sizeof strings);
  CHECK(parse(&builder, 5, &packet) == EINVAL);
}

static void test_terminals(void) {
  static const char strings[] = "user\0/cwd\0prog";
  struct venus_exec head = {
      .exec_id = 1, .argc = 1, .flags = VENUS_EXEC_TERMINAL, .number = {UINT16_MAX, 1}};
  struct packet packet;
  struct builder builder = exec_packet(head, strings, sizeof strings);
  CHECK(parse(&builder, 0, &packet) == 0);
  struct venus_exec wrong[] = {head, head, head, head};
  wrong[0].number[1] = UINT16_MAX + 1;
  wrong[1].kind = VENUS_KIND_STAT;
  wrong[2].fd_mask = VENUS_HAS_KEEP_STDOUT;
  wrong[3].flags = VENUS_EXEC_TERMINAL << 1;
  for (unsigned i = 0; i < 4; i++) {
    builder = exec_packet(wrong[i], strings, sizeof strings);
    CHECK(parse(&builder, wrong[i].fd_mask != 0, &packet) == EINVAL);
  }
  builder = start(VENUS_KEEP_TERMINAL, sizeof(struct venus_exec_ref));
  put(&builder, &(struct venus_exec_ref){.exec_id = 1}, sizeof(struct venus_exec_ref));
  CHECK(parse(&builder, 1, &packet) == 0);
  CHECK(parse(&builder, 0, &packet) == EBADF);
}

static void test_restored(void) {
  static const char strings[] = "\0\0restored";
  struct packet packet;
  uint64_t pids[] = {0, 2, INT32_MAX, 1, (uint64_t)INT32_MAX + 1, UINT64_MAX};
  for (unsigned i = 0; i < 6; i++) {
    struct venus_exec head = {
        .exec_id = 1, .kind = VENUS_KIND_RESTORED, .argc = 1, .number = {pids[i]}};
    struct builder builder = exec_packet(head, strings, sizeof strings);
    CHECK(parse(&builder, 0, &packet) == (i < 3 ? 0 : EINVAL));
  }
}

static void test_socket(void) {
  static const struct {
    uint32_t family;
    int error;
  } cases[] = {{AF_INET, 0}, {AF_INET6, 0}, {AF_UNIX, EINVAL}, {AF_NETLINK, EINVAL}, {0, EINVAL}};
  struct packet packet;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct builder builder = start(VENUS_SOCKET, sizeof(struct venus_socket));
    put(&builder, &(struct venus_socket){.family = cases[i].family}, sizeof(struct venus_socket));
    CHECK(parse(&builder, 0, &packet) == cases[i].error);
    CHECK(parse(&builder, 1, &packet) == EBADF);
  }
  struct builder builder = start(VENUS_SOCKET, 4);
  put(&builder, &(uint32_t){AF_INET}, 4);
  CHECK(parse(&builder, 0, &packet) == EBADMSG);
}

static void test_others(void) {
  struct packet packet;
  struct builder builder = start(VENUS_HELLO, 0);
  CHECK(parse(&builder, 0, &packet) == 0);
  builder = start(VENUS_KILL, sizeof(struct venus_kill));
  put(&builder, &(struct venus_kill){.exec_id = 1, .signal = 9}, sizeof(struct venus_kill));
  CHECK(parse(&builder, 0, &packet) == 0);
  CHECK(packet.kill.signal == 9);
  builder.size--;
  CHECK(parse(&builder, 0, &packet) == EBADMSG);
  builder = start(1234, 0);
  CHECK(parse(&builder, 0, &packet) == EOPNOTSUPP);
  builder.size = 0;
  CHECK(parse(&builder, 0, &packet) == EBADMSG);
}

static uint32_t random_state = 1;

static uint32_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 17;
  random_state ^= random_state << 5;
  return random_state;
}

static void test_mutations(void) {
  static const char strings[] = "\0\0prog\0A=1\0B=2";
  struct venus_exec head = {.exec_id = 1, .argc = 1, .envc = 2, .rlimit_count = 1};
  struct builder valid[] = {exec_packet(head, strings, sizeof strings),
                            start(VENUS_LIST, 0), start(VENUS_KILL, 16)};
  put(&valid[2], "\1\0\0\0\0\0\0\0\17\0\0\0\1\0\0\0", 16);
  unsigned accepted = 0;
  for (int round = 0; round < 300000; round++) {
    struct builder builder = valid[next_random() % 3];
    for (unsigned i = next_random() % 4; i > 0; i--) {
      static const uint8_t interesting[] = {0, 1, 2, 16, 127, 128, 255};
      builder.bytes[next_random() % builder.size] = interesting[next_random() % 7];
    }
    if (next_random() % 4 == 0)
      builder.size = next_random() % (builder.size + 1);
    struct packet packet;
    accepted += parse(&builder, next_random() % 3 ? 0 : next_random() % 17, &packet) == 0;
  }
  CHECK(accepted > 1000); /* otherwise the mutations prove nothing */
}

int main(void) {
  test_exec();
  test_terminals();
  test_restored();
  test_socket();
  test_others();
  test_mutations();
  return 0;
}
