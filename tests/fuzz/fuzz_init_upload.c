/* Upload frames of sandbox-init, as what they carry is read in pieces. First two bytes: how large. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "confined.h"
#include "fuzz.h"
#include "init/upload.h"
#include "venus_init_protocol.h"

/* What the frames carry, and how they end: 0, or an errno. */
struct expected {
  int error;
  size_t size;
  uint8_t *bytes;
};

static struct expected decode(const uint8_t *bytes, size_t size) {
  struct expected expected = {.error = ECANCELED, .bytes = malloc(size + 1)};
  REQUIRE(expected.bytes);
  uint32_t length;
  for (size_t at = 0; at + sizeof length <= size;) {
    memcpy(&length, bytes + at, sizeof length);
    at += sizeof length;
    if (length == 0 || length > VENUS_MAX_UPLOAD_FRAME) {
      expected.error = length ? EBADMSG : 0;
      break;
    }
    size_t there = length < size - at ? length : size - at;
    memcpy(expected.bytes + expected.size, bytes + at, there);
    expected.size += there;
    at += there;
  }
  return expected;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  if (size < 2)
    return 0;
  size_t pieces[2] = {bytes[0] + 1u, 16u * bytes[1] + 1u};
  struct expected expected = decode(bytes + 2, size - 2);
  set_stdin(bytes + 2, size - 2);
  struct upload_stream stream = {0};
  size_t read = 0;
  int error;
  for (unsigned step = 0;; step++) {
    size_t wanted = pieces[step % 2], got = 0;
    uint8_t *piece = malloc(wanted);
    REQUIRE(piece);
    /* Every other piece has to come whole. */
    bool whole = step % 2;
    error = whole ? upload_exactly(&stream, piece, wanted) : upload_some(&stream, piece, wanted, &got);
    if (whole && !error)
      got = wanted;
    REQUIRE(got <= wanted && read + got <= expected.size);
    REQUIRE(memcmp(piece, expected.bytes + read, got) == 0);
    free(piece);
    read += got;
    if (whole && error) {
      /* The end came within the piece, or the frames are no frames. */
      REQUIRE(read + wanted > expected.size);
      REQUIRE(error == (expected.error ? expected.error : EBADMSG));
      break;
    }
    if (error || got == 0) {
      REQUIRE(error == expected.error);
      break;
    }
  }
  free(expected.bytes);
  return 0;
}
