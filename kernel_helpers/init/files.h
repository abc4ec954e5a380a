/* File operations on behalf of the daemon. They run in an exec child after it has given up all that
 * the sandbox may not do, so the kernel applies the sandbox's rights, root and limits to every path;
 * no binary of the image is needed. */
#ifndef VENUS_INIT_FILES_H
#define VENUS_INIT_FILES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "venus_init_protocol.h"

/* Exit code of the child: 0, or 1 after an error record on stderr. `second` is the second argument of
 * those that have two. */
int files_run(const struct venus_exec *request, const char *path, const char *second);

/* 0 or errno. */
int files_list(const char *path, uint64_t depth, uint64_t max_entries);
int files_stat(const char *path, int follow);
int files_write(const char *path, const char *owner, mode_t mode, uint32_t flags);
int files_make_directory(const char *path, mode_t mode, int parents);
int files_remove(const char *path, int recursive);
int files_tar(const char *path);
int files_untar(const char *path, uint32_t flags);
int files_watch(const char *path, uint32_t flags);

/* Where an operation on many files failed; told with the error. */
void files_failed_at(const char *path);

struct file_owner {
  uid_t uid; /* -1: as it is */
  gid_t gid;
};

/* Resolves an owner as the protocol has it. 0, ENOENT for an unknown name, EINVAL for nonsense. */
int files_owner(const char *text, struct file_owner *owner);

/* Collects what goes to stdout. 0 or errno. */
int output_put(const void *bytes, size_t size);
int output_flush(void);

/* Writes everything or fails. */
int write_all(int fd, const void *bytes, size_t size);

#endif
