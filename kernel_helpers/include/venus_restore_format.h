/* The format of a restore plan, shared by its writer (native/restore) and its two readers:
 * the position-independent runner in this folder and sandbox-init, which starts it.
 *
 * A plan is one sealed memfd:  [runner code | one tail per process | operations and their data].
 * It is mapped read-only + executable at `base` in every process it rebuilds; all pointers in it
 * are absolute.  Below it lies what the runner itself needs while it works:
 *
 *   window_start
 *     park ........ where the vDSO waits while the old address space is dropped
 *     shared ...... MAP_SHARED pages of one fork: barriers and the record of the first failure
 *     scratch ..... private anonymous memory: one stack per thread
 *     base ........ the plan
 *   window_end
 *
 * When a process leaves the runner only its own tail stays mapped: a process cannot unmap the
 * page it executes.
 */
#ifndef VENUS_RESTORE_FORMAT_H
#define VENUS_RESTORE_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    VR_MAGIC = 0x52534e56, /* "VNSR" */
    VR_VERSION = 4,
    VR_PAGE = 4096,
    /* Scratch: one page for saved values, then the stack of the leader; one page per thread. */
    VR_LEADER_PAGES = 3,
    VR_MAX_PROCESSES = 1024,
    /* Where the built tree waits for the daemon; no timer of the program runs yet. */
    VR_RELEASE_BARRIER = 3,
    /* Of the whole tree, then two for the threads of each process, then those of processes that
     * share a table. */
    VR_TREE_BARRIERS = 16,
    VR_SHARED_BARRIERS = 480,
    VR_MAX_BARRIERS = VR_TREE_BARRIERS + 2 * VR_MAX_PROCESSES + VR_SHARED_BARRIERS,
    VR_MAX_VDSO_PARTS = 4,
    VR_MAX_POOL_EXTENTS = 4096,
};

/* How the result of an operation is judged. */
enum vr_check {
    VR_EXACT = 0,    /* result == expected */
    VR_AT_LEAST = 1, /* result >= expected */
    VR_ANY = 2,      /* not judged; the plan says why where it uses this */
};

enum vr_kind {
    VR_SYSCALL = 0,
    /* clone3(arg0 = struct clone_args, arg1 = size); the child continues at operation arg2.
     * arg3 = top of the child's stack for a thread, 0 for a process. */
    VR_CLONE,
    /* Wait at barrier arg0 until arg1 threads of the whole tree have come; with arg2 as long as it
     * takes. Who leaves only one missing joins barrier arg3 as well, unless that is 0. */
    VR_BARRIER,
    /* Only one of those that share a descriptor table at a time, by the word of barrier arg0. */
    VR_LOCK,
    VR_UNLOCK,
    /* Come to barrier arg0, where arg1 - 1 come in this way and the last one waits. */
    VR_JOIN,
    /* Move the vDSO group of the stub to `park`. */
    VR_PARK_VDSO,
    /* Open /dev/ptmx until the pty has index arg0; its descriptor becomes arg1. */
    VR_OPEN_PTY,
    /* End of a process that only helps to rebuild: exit_group(arg0). */
    VR_EXIT,
    /* Leave into the program. arg0 = tail code, arg1 = frame (or the status of a first thread that
     * ends while others run on), arg2 = counter of threads that are still on scratch stacks;
     * for the one that waits for them and unmaps the rest of the plan: arg3, arg4 = end of the
     * first range and start of the second to unmap, arg5 = how many others its memory has. */
    VR_LEAVE,
    VR_LEAVE_THREAD,
    /* *(uint64_t *)arg0 = arg1 */
    VR_STORE,
};

struct vr_op {
    uint16_t kind;
    uint16_t check;
    uint32_t number; /* system call number for VR_SYSCALL */
    uint64_t arg[6];
    int64_t expected;
    uint32_t process; /* index in the plan, for the failure record */
    uint32_t object;  /* offset from base of a C string: what this operation works on */
};

/* First bytes of the file; written by the encoder over the runner's own header. */
struct vr_header {
    uint32_t magic;
    uint32_t version;
    /* Offsets in the code, filled by the linker. */
    uint32_t entry;
    uint32_t tail_code;
    uint32_t tail_code_bytes;
    uint32_t tail_leader; /* relative to tail_code */
    uint32_t tail_thread;
    uint32_t tail_exit;
    uint32_t code_bytes;
    uint32_t pad;
    /* Filled by the encoder. */
    uint64_t window_start;
    uint64_t base;
    uint64_t plan_bytes;
    uint64_t scratch;
    uint64_t scratch_bytes;
    uint64_t shared;
    uint64_t shared_bytes;
    uint64_t park;
    uint64_t window_end;
    uint64_t first_op; /* address: the coordinator's list */
    uint32_t shared_fd;
    uint32_t vdso_parts;
    /* Start relative to the vDSO's ELF header, length: vvar pages lie below it. */
    struct {
        int64_t start;
        uint64_t bytes;
    } vdso[VR_MAX_VDSO_PARTS];
    /* Offsets in the plan. The seccomp filter that hands calls on pool memory to init, struct
     * sock_filter[]; and which of the received descriptors are extents whose pages stand for
     * anonymous memory, uint32_t[] relative to the first of them. */
    uint64_t filter;
    uint64_t pool;
    uint32_t filter_count;
    uint32_t pool_count;
};

/* What starts a restore, sent to the coordinator over a SOCK_SEQPACKET socket: this record, then
 * packets of a uint32_t (how many descriptors came before) with up to VR_START_BATCH descriptors:
 * extents, externals, shared page, plan.  They get the numbers from first_fd on. */
enum { VR_START_BATCH = 16, VR_MIN_FIRST_FD = 64 };

/* What of a fork's memory comes from its template. The coordinator reports it when the filter is in
 * place, and the listener comes with it. */
struct vr_pool_report {
    uint32_t magic; /* VR_MAGIC */
    uint32_t count;
    uint64_t device; /* of all of them: the kernel has one file system for memfds */
    uint64_t plan;   /* inode */
    uint64_t inodes[VR_MAX_POOL_EXTENTS]; /* of extents whose pages stand for anonymous memory */
};

static inline size_t vr_pool_report_size(const struct vr_pool_report *report)
{
    return offsetof(struct vr_pool_report, inodes) + report->count * sizeof report->inodes[0];
}

/* `size`: how many of its bytes there are. */
static inline int vr_pool_report_is_whole(const struct vr_pool_report *report, size_t size)
{
    return size >= offsetof(struct vr_pool_report, inodes) && report->magic == VR_MAGIC &&
           report->count <= VR_MAX_POOL_EXTENTS && size == vr_pool_report_size(report);
}

/* The memfd of init whose first byte it locks (OFD lock) while it works on threads of a fork, and
 * that whoever captures the sandbox locks first. It holds the report, so that a capture knows what
 * the pages of the sandbox stand for when nobody knows its template any more. */
#define VR_GATE_NAME "venus-gate"

struct vr_start {
    uint32_t magic;
    uint32_t version;
    uint64_t base;
    uint64_t plan_bytes;
    uint64_t entry;
    uint32_t first_fd;
    uint32_t fd_count;
};

/* The shared page of one fork. */
struct vr_shared {
    uint32_t failed; /* 0 = no; set once, by whoever fails first */
    uint32_t process;
    uint64_t op; /* offset from base */
    int64_t result;
    uint64_t complete; /* nothing is left to do that could fail; never set if something always is */
    uint32_t barrier[VR_MAX_BARRIERS];
    uint32_t leaving[VR_MAX_PROCESSES]; /* per address space: threads that one waits for */
};

#ifdef __cplusplus
}
#endif
#endif
