/* What a client uploads, on stdin: frames of a length and as many bytes, ended by a length of 0. A
 * stream that stops before that was cut: ECANCELED. */
#ifndef VENUS_INIT_UPLOAD_H
#define VENUS_INIT_UPLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct upload_stream {
  uint32_t left; /* of the frame */
  bool ended;
};

/* Up to `size` bytes, more than none unless the end has come. 0 or errno. */
int upload_some(struct upload_stream *stream, void *bytes, size_t size, size_t *got);

/* All of `size`; EBADMSG if the end comes first. */
int upload_exactly(struct upload_stream *stream, void *bytes, size_t size);

#endif
