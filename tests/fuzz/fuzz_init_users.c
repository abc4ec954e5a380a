/* /etc/passwd and /etc/group, which are the sandbox's own files, and the user that a client names.
 * The input is the three of them, each ended by the first NUL byte. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "init/users.h"

static int file_of(const void *bytes, size_t size) {
  int fd = memfd_create("fuzz", MFD_CLOEXEC);
  REQUIRE(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
  return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  const uint8_t *user_end = memchr(bytes, 0, size);
  if (!user_end)
    return 0;
  const uint8_t *passwd = user_end + 1;
  size_t left = size - (size_t)(passwd - bytes);
  const uint8_t *passwd_end = memchr(passwd, 0, left);
  size_t passwd_size = passwd_end ? (size_t)(passwd_end - passwd) : left;
  const uint8_t *group = passwd_end ? passwd_end + 1 : passwd + left;
  struct user_files files = {.passwd = file_of(passwd, passwd_size),
                             .group = file_of(group, size - (size_t)(group - bytes))};
  struct identity identity;
  if (users_lookup_in(&files, (const char *)bytes, &identity) == 0) {
    REQUIRE(memchr(identity.name, 0, sizeof identity.name));
    REQUIRE(memchr(identity.home, 0, sizeof identity.home));
    REQUIRE(identity.group_count <= USERS_MAX_GROUPS);
    REQUIRE(identity.uid != (uid_t)-1 && identity.gid != (gid_t)-1);
  }
  close(files.passwd);
  close(files.group);
  return 0;
}
