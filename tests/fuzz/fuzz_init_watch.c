/* What sandbox-init tells of a watched directory: real changes of a small tree, and notices in any order
 * and of any content that the kernel's have the form of. Each step is a byte for what happens and one for
 * each name in it. */
#include "init/watch.c" /* for what they hold: a child watches once */
#include "init/watched_directories.c"

#include <stdio.h>
#include <sys/mman.h>

#include "confined.h"
#include "fuzz.h"

enum { MAX_STEPS = 64, MAX_ANSWER = 1 << 20 };

static int answer; /* stdout */

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  confine();
  answer = memfd_create("stdout", MFD_CLOEXEC);
  REQUIRE(answer >= 0 && dup2(answer, STDOUT_FILENO) == STDOUT_FILENO);
  watch.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  REQUIRE(watch.fd >= 0);
  watch.root_path = "root";
  return 0;
}

/* One of some that lie in each other. */
static const char *name(uint8_t choice) {
  static const char *const names[] = {"root/a",   "root/b",     "root/a/c",   "root/b/c",
                                      "root/a/d", "root/a/c/e", "root/b/c/e", "outside",
                                      "outside/c", "root"};
  return names[choice % (sizeof names / sizeof *names)];
}

static int inject(const uint8_t *bytes) {
  static const uint32_t masks[] = {IN_CREATE, IN_MODIFY,   IN_DELETE,      IN_MOVED_FROM,
                                   IN_MOVED_TO, IN_ATTRIB, IN_DELETE_SELF, IN_MOVE_SELF,
                                   IN_IGNORED, IN_UNMOUNT, IN_Q_OVERFLOW,  IN_MODIFY};
  uint32_t mask = masks[bytes[1] % (sizeof masks / sizeof *masks)];
  /* The kernel names what is in the directory, and of the directory itself only attributes. */
  bool named = mask & (IN_CREATE | IN_DELETE | IN_MOVE) || bytes[2] & 0x80;
  union {
    struct inotify_event event;
    char bytes[sizeof(struct inotify_event) + 32];
  } notice = {.event = {.wd = watch.root + bytes[0] % 8 - 1,
                        .mask = mask | (bytes[1] & 0x80 ? IN_ISDIR : 0),
                        .cookie = bytes[2] % 4,
                        .len = named ? 32 : 0}};
  if (named)
    strcpy(notice.bytes + sizeof notice.event, strrchr(name(bytes[2]), '/') ? "c" : "d");
  return take_event(&notice.event);
}

static int step(const uint8_t *bytes) {
  const char *first = name(bytes[1]), *second = name(bytes[2]);
  switch (bytes[0] % 8) {
  case 0:
    mkdir(first, 0755);
    return 0;
  case 1:
    close(open(first, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    return 0;
  case 2:
    rename(first, second);
    return 0;
  case 3:
    files_remove(first, 1);
    return 0;
  case 4:
    chmod(first, 0700);
    return 0;
  case 5:
    (void)!symlink(second, first);
    return 0;
  case 6:
    return inject(bytes + 1);
  default:
    return take_events();
  }
}

/* What a reader relies on: records that are whole, of paths that lie below. */
static void require_whole(const char *bytes, size_t size) {
  struct venus_watch_event event;
  for (size_t at = 0; at < size; at += event.size) {
    REQUIRE(size - at >= sizeof event);
    memcpy(&event, bytes + at, sizeof event);
    REQUIRE(event.size == sizeof event + event.path_size + event.target_size);
    REQUIRE(event.size <= size - at && event.kind >= VENUS_WATCH_CREATE &&
            event.kind <= VENUS_WATCH_OVERFLOW);
    REQUIRE(!event.target_size == (event.kind != VENUS_WATCH_RENAME));
    const char *path = bytes + at + sizeof event;
    REQUIRE(!memchr(path, 0, event.path_size + event.target_size));
    REQUIRE(event.path_size == 0 || *path != '/');
  }
}

/* All but the kernel's queue, which takes ten milliseconds to be made again. */
static void forget(void) {
  for (; count; watched_drop(table[0].number))
    inotify_rm_watch(watch.fd, table[0].number);
  while (read(watch.fd, events, sizeof events) > 0)
    ;
  watch.ended = watch.from_known = false;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  static char told[MAX_ANSWER];
  if (size == 0)
    return 0;
  unsigned before = open_descriptors();
  REQUIRE(mkdir("root", 0755) == 0 && mkdir("outside", 0755) == 0);
  watch.recursive = bytes[0] & 1;
  REQUIRE(add("", EVENTS_OF_ROOT, &watch.root) == 0);
  size_t at = 1;
  for (int done = 0; done < MAX_STEPS && at + 4 <= size && !watch.ended; done++, at += 4)
    if (step(bytes + at))
      break;
  if (!watch.ended)
    take_events();
  REQUIRE(output_flush() == 0);
  ssize_t got = pread(answer, told, sizeof told, 0);
  REQUIRE(got >= 0 && got < (ssize_t)sizeof told);
  require_whole(told, (size_t)got);
  REQUIRE(ftruncate(answer, 0) == 0 && lseek(answer, 0, SEEK_SET) == 0);
  files_remove("root", 1);
  files_remove("outside", 1);
  forget();
  REQUIRE(open_descriptors() == before);
  return 0;
}
