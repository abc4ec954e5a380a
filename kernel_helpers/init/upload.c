#include "upload.h"

#include "sys.h"
#include "venus_init_protocol.h"

static int read_exactly(void *bytes, size_t size) {
  char *at = bytes;
  while (size) {
    ssize_t got = read(STDIN_FILENO, at, size);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return errno;
    if (got == 0)
      return ECANCELED;
    at += got;
    size -= (size_t)got;
  }
  return 0;
}

static int next_frame(struct upload_stream *stream) {
  int error = read_exactly(&stream->left, sizeof stream->left);
  if (!error && stream->left > VENUS_MAX_UPLOAD_FRAME)
    error = EBADMSG;
  stream->ended = !error && stream->left == 0;
  return error;
}

int upload_some(struct upload_stream *stream, void *bytes, size_t size, size_t *got) {
  *got = 0;
  int error = stream->left == 0 && !stream->ended ? next_frame(stream) : 0;
  if (error || stream->ended)
    return error;
  size_t piece = stream->left < size ? stream->left : size;
  if ((error = read_exactly(bytes, piece)))
    return error;
  stream->left -= (uint32_t)piece;
  *got = piece;
  return 0;
}

int upload_exactly(struct upload_stream *stream, void *bytes, size_t size) {
  char *at = bytes;
  while (size) {
    size_t got;
    int error = upload_some(stream, at, size, &got);
    if (error || got == 0)
      return error ? error : EBADMSG;
    at += got;
    size -= got;
  }
  return 0;
}
