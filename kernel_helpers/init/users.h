/* Users and groups of the sandbox, from its own /etc/passwd and /etc/group. Runs in exec children
 * only, with the sandbox's rights. Bounded: file size, line length, number of groups. */
#ifndef VENUS_INIT_USERS_H
#define VENUS_INIT_USERS_H

#include <sys/types.h>

#define USERS_MAX_GROUPS 64
#define USERS_HOME_SIZE 512

struct identity {
  uid_t uid;
  gid_t gid;
  unsigned group_count;
  gid_t groups[USERS_MAX_GROUPS];
  char name[64];
  char home[USERS_HOME_SIZE];
};

/* Regular files, from their beginnings; -1: there is none. */
struct user_files {
  int passwd;
  int group;
};

/* "" root; "1000"; "1000:1000"; "name"; "name:group". A number needs no entry: without one the
 * group is 0 and the home is /. 0, or ENOENT for an unknown name, EINVAL for nonsense. */
int users_lookup_in(const struct user_files *files, const char *user, struct identity *identity);
/* In /etc/passwd and /etc/group. */
int users_lookup(const char *user, struct identity *identity);

#endif
