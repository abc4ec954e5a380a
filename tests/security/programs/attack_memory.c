/* Calls on the memory of the template: on its pages, its mappings, its file. */
#include <dirent.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "attack.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define MADV_GUARD 102

static const struct {
  const char *name;
  int advice;
} advices[] = {
    {"dontneed", MADV_DONTNEED},   {"free", MADV_FREE},
    {"remove", MADV_REMOVE},       {"cold", MADV_COLD},
    {"pageout", MADV_PAGEOUT},     {"populate_write", MADV_POPULATE_WRITE},
    {"collapse", MADV_COLLAPSE},   {"hwpoison", MADV_HWPOISON},
    {"soft_offline", 101},         {"mergeable", MADV_MERGEABLE},
    {"wipeonfork", MADV_WIPEONFORK}, {"guard", MADV_GUARD},
    {"hugepage", MADV_HUGEPAGE},   {"dontneed_locked", 24},
};

/* The file behind the pages: by every name that it could have. */
static void reopen_the_file(void) {
  char path[64], line[512];
  int opened = 0, refused = 0, named = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (fgets(line, sizeof line, maps)) {
    unsigned long start, end;
    if (!strstr(line, "venus-") || sscanf(line, "%lx-%lx", &start, &end) != 2)
      continue;
    named++;
    for (int access = O_RDONLY; access <= O_RDWR; access++) {
      snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", start, end);
      int fd = open(path, access);
      opened += fd >= 0;
      refused += fd < 0 && errno == EPERM;
    }
  }
  fclose(maps);
  errno = EPERM;
  report("map_files", named && refused == 3 * named ? -1 : opened);
  int found = 0;
  for (int process = 1; process < 8; process++) {
    snprintf(path, sizeof path, "/proc/%d/fd", process);
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
      char target[256] = "";
      if (readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1) > 0)
        found += strstr(target, "venus-extent") || strstr(target, "venus-plan");
    }
    if (directory)
      closedir(directory);
  }
  report("descriptors_of_the_pool", found);
}

void attack_memory(void) {
  char *at, name[64];
  at = next_pages();
  memset(at, 0x55, EACH * PAGE);
  report("store", 0);
  for (size_t i = 0; i < sizeof advices / sizeof *advices; i++) {
    at = next_pages();
    snprintf(name, sizeof name, "madvise_%s", advices[i].name);
    report(name, madvise(at, EACH * PAGE, advices[i].advice));
    at = next_read_only();
    snprintf(name, sizeof name, "madvise_%s_read_only", advices[i].name);
    report(name, madvise(at, EACH * PAGE, advices[i].advice));
  }
  int own = open("/proc/self/mem", O_RDWR);
  char bytes[64];
  memset(bytes, 0x5a, sizeof bytes);
  report("proc_self_mem", pwrite(own, bytes, sizeof bytes, (off_t)(uintptr_t)next_pages()));
  report("proc_self_mem_read_only",
         pwrite(own, bytes, sizeof bytes, (off_t)(uintptr_t)next_read_only()));
  close(own);
  at = next_pages();
  report("mremap_duplicate",
         mremap(at, 0, EACH * PAGE, MREMAP_MAYMOVE) == MAP_FAILED ? -1 : 0);
  at = next_pages();
  report("mremap_dontunmap", mremap(at, EACH * PAGE, EACH * PAGE,
                                    MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL) == MAP_FAILED
                                 ? -1
                                 : 0);
  at = next_pages();
  char *grown = mremap(at, EACH * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
  report("mremap_grow", grown == MAP_FAILED ? -1 : 0);
  if (grown != MAP_FAILED) {
    memset(grown, 0x77, 64 * PAGE);
    mmap(at, EACH * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  }
  report("remap_file_pages", syscall(SYS_remap_file_pages, next_pages(), PAGE, 0, 1, 0));
  at = next_read_only();
  report("mprotect_read_only", mprotect(at, EACH * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC));
  memset(at, 0x66, EACH * PAGE);
  report("mlock", mlock(next_pages(), PAGE));
  at = next_pages();
  report("msync", msync(at, PAGE, MS_SYNC | MS_INVALIDATE));
  int segment = shmget(IPC_PRIVATE, EACH * PAGE, 0600);
  at = next_pages();
  report("shmat_remap", shmat(segment, at, SHM_REMAP) == (void *)-1 ? -1 : 0);
  memset(at, 0x33, PAGE);
  shmctl(segment, IPC_RMID, NULL);
  reopen_the_file();
}

/* Another process of the sandbox writes, in every way that one process has into another. */
void attack_memory_from_outside(void) {
  char *pages[5] = {next_pages(), next_pages(), next_pages(), next_pages(), next_read_only()};
  int ends[2];
  if (pipe(ends) < 0)
    return;
  pid_t parent = getpid();
  pid_t child = fork();
  if (child == 0) {
    char path[64], bytes[64];
    char go;
    memset(bytes, 0x5c, sizeof bytes);
    if (read(ends[0], &go, 1) != 1)
      _exit(1);
    snprintf(path, sizeof path, "/proc/%d/mem", parent);
    int memory = open(path, O_RDWR);
    report("proc_pid_mem", pwrite(memory, bytes, sizeof bytes, (off_t)(uintptr_t)pages[0]));
    report("proc_pid_mem_read_only", pwrite(memory, bytes, sizeof bytes, (off_t)(uintptr_t)pages[4]));
    struct iovec local = {bytes, sizeof bytes}, remote = {pages[1], sizeof bytes};
    report("process_vm_writev", process_vm_writev(parent, &local, 1, &remote, 1, 0));
    remote.iov_base = pages[4] + PAGE;
    report("process_vm_writev_read_only", process_vm_writev(parent, &local, 1, &remote, 1, 0));
    report("ptrace_attach", ptrace(PTRACE_ATTACH, parent, 0, 0));
    waitpid(parent, NULL, __WALL);
    report("ptrace_poke", ptrace(PTRACE_POKEDATA, parent, pages[2], 0x4141414141414141));
    report("ptrace_poke_read_only",
           ptrace(PTRACE_POKEDATA, parent, pages[4] + 2 * PAGE, 0x4141414141414141));
    ptrace(PTRACE_DETACH, parent, 0, 0);
    int init = open("/proc/1/mem", O_RDWR);
    report("init_mem", init);
    remote.iov_base = pages[3];
    report("init_vm_writev", process_vm_writev(1, &local, 1, &remote, 1, 0));
    report("init_ptrace", ptrace(PTRACE_ATTACH, 1, 0, 0));
    /* What it has itself of its parent's memory. */
    memset(pages[3], 0x44, EACH * PAGE);
    report("child_store", 0);
    report("child_dontneed", madvise(pages[3], EACH * PAGE, MADV_DONTNEED));
    _exit(0);
  }
  if (write(ends[1], "g", 1) == 1)
    waitpid(child, NULL, 0);
  close(ends[0]);
  close(ends[1]);
}
