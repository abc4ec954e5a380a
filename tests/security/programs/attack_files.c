/* Files of the template's layer, and of the image. */
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include "attack.h"

static char bytes[PAGE];

static void by_name(void) {
  char other[64];
  const char *path = lower_file(next_file());
  int fd = open(path, O_WRONLY);
  report("file_write", pwrite(fd, bytes, sizeof bytes, 0));
  close(fd);
  report("file_truncate", truncate(lower_file(next_file()), 100));
  report("file_chmod", chmod(lower_file(next_file()), 0777));
  path = lower_file(next_file());
  snprintf(other, sizeof other, "%s.link", path);
  report("file_link", link(path, other));
  fd = open(other, O_WRONLY | O_APPEND);
  report("file_link_write", write(fd, bytes, sizeof bytes));
  close(fd);
  path = lower_file(next_file());
  snprintf(other, sizeof other, "%s.moved", path);
  report("file_rename", rename(path, other));
  snprintf(other, sizeof other, "%s", lower_file(next_file()));
  report("file_exchange",
         renameat2(AT_FDCWD, other, AT_FDCWD, lower_file(next_file()), RENAME_EXCHANGE));
  report("file_unlink", unlink(lower_file(next_file())));
  report("file_setxattr", setxattr(lower_file(0), "user.mark", "other", 5, 0));
  report("file_removexattr", removexattr(lower_file(0), "user.mark"));
  report("file_overlay_xattr",
         setxattr(lower_file(0), "trusted.overlay.redirect", "/etc", 4, 0));
  report("file_user_overlay_xattr", setxattr(PLACE, "user.overlay.opaque", "y", 1, 0));
  report("whiteout", mknod(PLACE "/whiteout", S_IFCHR, makedev(0, 0)));
}

/* Opened for reading while it still was the layer's own. */
static void by_descriptor(void) {
  char again[64];
  const char *path = lower_file(next_file());
  int fd = open(path, O_RDONLY), flags = FS_NODUMP_FL;
  char *mapped = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
  report("lower_mmap_shared_write", mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
  report("lower_mprotect", mprotect(mapped, PAGE, PROT_READ | PROT_WRITE));
  report("lower_write", write(fd, bytes, 1));
  report("lower_ftruncate", ftruncate(fd, 10));
  report("lower_fallocate", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE));
  report("lower_madvise_remove", madvise(mapped, PAGE, MADV_REMOVE));
  report("lower_fchmod", fchmod(fd, 0600));
  report("lower_fsetxattr", fsetxattr(fd, "user.other", "x", 1, 0));
  report("lower_setflags", ioctl(fd, FS_IOC_SETFLAGS, &flags));
  snprintf(again, sizeof again, "/proc/self/fd/%d", fd);
  int writer = open(again, O_RDWR);
  report("lower_reopen", writer);
  report("lower_reopen_write", pwrite(writer, bytes, sizeof bytes, 0));
  /* Now it has a copy of its own; the old descriptor still leads to the layer. */
  report("lower_write_after", pwrite(fd, bytes, 1, 0));
  char *own = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, writer, 0);
  report("own_mmap_shared", own == MAP_FAILED ? -1 : 0);
  if (own != MAP_FAILED)
    memset(own, 0x19, FILE_BYTES);
  report("own_punch", fallocate(writer, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE));
  report("own_madvise_remove", own == MAP_FAILED ? -1 : madvise(own, 2 * PAGE, MADV_REMOVE));
  close(writer);
  close(fd);
}

static void by_sharing_blocks(void) {
  int from = open(lower_file(next_file()), O_RDONLY);
  int into = open(PLACE "/clone", O_RDWR | O_CREAT, 0600);
  report("clone", ioctl(into, FICLONE, from));
  report("copy_file_range", copy_file_range(from, NULL, into, NULL, PAGE, 0));
  report("sendfile_file", sendfile(into, from, NULL, PAGE));
  report("clone_write", pwrite(into, bytes, sizeof bytes, 0));
  close(into);
  int other = open(lower_file(next_file()), O_RDWR);
  struct {
    struct file_dedupe_range head;
    struct file_dedupe_range_info info;
  } range = {{.src_length = PAGE, .dest_count = 1}, {.dest_fd = other}};
  report("dedupe", ioctl(from, FIDEDUPERANGE, &range));
  close(other);
  close(from);
}

static void without_a_name(void) {
  char path[64];
  int fd = open(PLACE, O_TMPFILE | O_RDWR, 0600);
  report("tmpfile", write(fd, bytes, sizeof bytes));
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const char *target = lower_file(next_file());
  report("tmpfile_link_over", linkat(AT_FDCWD, path, AT_FDCWD, target, AT_SYMLINK_FOLLOW));
  unlink(target);
  report("tmpfile_link", linkat(AT_FDCWD, path, AT_FDCWD, target, AT_SYMLINK_FOLLOW));
  close(fd);
}

void attack_files(void) {
  memset(bytes, 0x18, sizeof bytes);
  by_name();
  by_descriptor();
  by_sharing_blocks();
  without_a_name();
  int fd = open("/proc/self/exe", O_WRONLY);
  report("exe_write", fd);
  char exe[256] = "";
  if (readlink("/proc/self/exe", exe, sizeof exe - 1) > 0)
    report("exe_unlink", unlink(exe));
  fd = open(exe, O_WRONLY | O_CREAT, 0755);
  report("exe_replace", write(fd, bytes, sizeof bytes));
  close(fd);
  struct file_handle *handle = calloc(1, sizeof *handle + 128);
  int mount_id;
  handle->handle_bytes = 128;
  report("name_to_handle", name_to_handle_at(AT_FDCWD, PLACE, handle, &mount_id, 0));
  report("open_by_handle", open_by_handle_at(AT_FDCWD, handle, O_RDWR));
  free(handle);
  report("init_root", open("/proc/1/root", O_RDONLY));
  fd = open("/tmp/in-memory", O_WRONLY | O_TRUNC);
  report("tmpfs_write", write(fd, bytes, sizeof bytes));
  close(fd);
  fd = open("/etc/passwd", O_WRONLY | O_APPEND);
  report("image_write", write(fd, bytes, sizeof bytes));
  close(fd);
}
