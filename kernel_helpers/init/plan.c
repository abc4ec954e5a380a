#include "plan.h"

#include <string.h>

static size_t padded(size_t size) { return (size + 7u) & ~(size_t)7u; }

/* Takes `size` bytes (rounded up to 8) off the plan, or NULL if it does not hold that many. */
static const uint8_t *take(struct plan_reader *reader, size_t size) {
  size_t whole = padded(size);
  if (whole < size || whole > reader->size - reader->offset)
    return NULL;
  const uint8_t *start = reader->bytes + reader->offset;
  reader->offset += whole;
  return start;
}

bool plan_open(struct plan_reader *reader, const uint8_t *bytes, size_t size,
               struct policy *policy) {
  struct venus_plan_header header;
  *reader = (struct plan_reader){.bytes = bytes, .size = size};
  if (size < sizeof header || size > VENUS_MAX_PLAN_SIZE)
    return false;
  memcpy(&header, bytes, sizeof header);
  reader->offset = sizeof header;
  if (header.magic != VENUS_PLAN_MAGIC || header.version != VENUS_PROTOCOL_VERSION ||
      header.total_size != size || header.op_count > VENUS_MAX_PLAN_OPS ||
      header.rlimit_count > VENUS_MAX_RLIMITS ||
      header.filter_count > VENUS_MAX_FILTER_INSTRUCTIONS || header.sandbox_id_size < 2 ||
      header.sandbox_id_size > VENUS_MAX_SANDBOX_ID || header.umask > 0777 ||
      header.oom_score_adj < -1000 || header.oom_score_adj > 1000)
    return false;

  const uint8_t *rlimits = take(reader, header.rlimit_count * sizeof policy->rlimits[0]);
  const uint8_t *filter = take(reader, header.filter_count * sizeof policy->filter[0]);
  const uint8_t *sandbox_id = take(reader, header.sandbox_id_size);
  if (!rlimits || !filter || !sandbox_id ||
      memchr(sandbox_id, 0, header.sandbox_id_size) != sandbox_id + header.sandbox_id_size - 1)
    return false;

  policy->capability_mask = header.capability_mask;
  policy->oom_score_adj = header.oom_score_adj;
  policy->umask = header.umask;
  policy->rlimit_count = header.rlimit_count;
  policy->filter_count = header.filter_count;
  policy->sandbox_id_size = header.sandbox_id_size;
  memcpy(policy->sandbox_id, sandbox_id, header.sandbox_id_size);
  memcpy(policy->rlimits, rlimits, header.rlimit_count * sizeof policy->rlimits[0]);
  memcpy(policy->filter, filter, header.filter_count * sizeof policy->filter[0]);
  reader->op_count = header.op_count;
  return true;
}

enum plan_next plan_next_op(struct plan_reader *reader, struct plan_op *op) {
  if (reader->next_index == reader->op_count)
    return reader->offset == reader->size ? PLAN_END : PLAN_INVALID;

  struct venus_plan_op head;
  size_t start = reader->offset;
  if (sizeof head > reader->size - start)
    return PLAN_INVALID;
  memcpy(&head, reader->bytes + start, sizeof head);
  if (head.size < sizeof head || head.size % 8 || head.size > reader->size - start)
    return PLAN_INVALID;

  size_t offset = sizeof head;
  *op = (struct plan_op){.kind = head.kind,
                         .flags = head.flags,
                         .slot = head.slot,
                         .number = head.number,
                         .number2 = head.number2};
  for (int i = 0; i < 3; i++) {
    uint32_t length = head.string_size[i];
    const char *text = (const char *)reader->bytes + start + offset;
    op->string[i] = "";
    if (length == 0)
      continue;
    if (length > head.size - offset || memchr(text, 0, length) != text + length - 1)
      return PLAN_INVALID;
    op->string[i] = text;
    offset += length;
  }
  if (head.data_size > head.size - offset || padded(offset + head.data_size) != head.size)
    return PLAN_INVALID;
  op->data = reader->bytes + start + offset;
  op->data_size = head.data_size;
  reader->offset = start + head.size;
  reader->next_index++;
  return PLAN_OP;
}
