/* The runner: carries out a list of operations and leaves into the program.
 *
 * Freestanding: no libc, no writable data, no thread-local storage, so that it works at any
 * address while the address space around it is taken down and rebuilt.  It judges every result;
 * the first mismatch anywhere in the tree is recorded and ends every process of it.
 */
#include "venus_restore_format.h"

#include <stddef.h>

/* runner_asm.S uses these offsets. */
_Static_assert(offsetof(struct vr_header, window_start) == 40, "header");
_Static_assert(offsetof(struct vr_header, window_end) == 104, "header");
_Static_assert(sizeof(struct vr_header) == 216, "header");

enum {
    SYS_mmap = 9,
    SYS_munmap = 11,
    SYS_ioctl = 16,
    SYS_mremap = 25,
    SYS_close = 3,
    SYS_dup3 = 292,
    SYS_futex = 202,
    SYS_exit_group = 231,
    SYS_openat = 257,
    SYS_clone3 = 435,
    PROT_RW = 3,
    MAP_SHARED = 1,
    MAP_PRIVATE = 2,
    MAP_FIXED_NOREPLACE = 0x100000,
    MAP_ANONYMOUS = 0x20,
    MREMAP_FLAGS = 3, /* MAYMOVE | FIXED */
    FUTEX_WAIT = 0,
    FUTEX_WAKE = 1,
    O_RDWR_NOCTTY_CLOEXEC = 02 | 0400 | 02000000,
    TIOCGPTN = (int)0x80045430,
    AT_FDCWD = -100,
    BARRIER_TIMEOUT_S = 20,
    MAX_PTY_TRIES = 256,
    EIO_ = 5,
    ETIMEDOUT_ = 110,
};

long vr_clone_thread(uint64_t args, uint64_t size, const struct vr_op *op,
                     const struct vr_header *header);
_Noreturn void vr_leave(uint64_t tail, uint64_t frame, uint64_t counter, uint64_t first_end,
                        uint64_t second_start, const struct vr_header *header);
_Noreturn void vr_run(const struct vr_header *header, const struct vr_op *op);
_Noreturn void vr_main(const struct vr_header *header, uint64_t vdso);
uint64_t vr_prepare(const struct vr_header *header);

static long call6(long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                  uint64_t f)
{
    long result;
    register uint64_t r10 __asm__("r10") = d;
    register uint64_t r8 __asm__("r8") = e;
    register uint64_t r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static struct vr_shared *shared_of(const struct vr_header *header)
{
    return (struct vr_shared *)header->shared;
}

static _Noreturn void leave_process(uint64_t status)
{
    for (;;)
        call6(SYS_exit_group, status, 0, 0, 0, 0, 0);
}

/* Record the first failure and wake everybody who waits, so that they end as well. */
static _Noreturn void fail(const struct vr_header *header, const struct vr_op *op, long result)
{
    struct vr_shared *shared = shared_of(header);
    uint32_t none = 0;
    if (__atomic_compare_exchange_n(&shared->failed, &none, 2, 0, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST)) {
        shared->process = op->process;
        shared->op = (uint64_t)op - header->base;
        shared->result = result;
        __atomic_store_n(&shared->failed, 1, __ATOMIC_SEQ_CST);
    }
    for (int i = 0; i < VR_MAX_BARRIERS; i++)
        call6(SYS_futex, (uint64_t)&shared->barrier[i], FUTEX_WAKE, 0x7fffffff, 0, 0, 0);
    leave_process(124);
}

static void join_barrier(struct vr_shared *shared, uint64_t index, uint32_t wanted)
{
    if (__atomic_add_fetch(&shared->barrier[index], 1, __ATOMIC_SEQ_CST) >= wanted)
        call6(SYS_futex, (uint64_t)&shared->barrier[index], FUTEX_WAKE, 1, 0, 0, 0);
}

static void wait_barrier(const struct vr_header *header, const struct vr_op *op)
{
    struct vr_shared *shared = shared_of(header);
    uint32_t *count = &shared->barrier[op->arg[0]];
    uint32_t wanted = (uint32_t)op->arg[1];
    struct {
        int64_t seconds, nanoseconds;
    } timeout = {BARRIER_TIMEOUT_S, 0};
    uint64_t patience = op->arg[2] ? 0 : (uint64_t)&timeout;
    uint32_t seen = __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
    if (seen >= wanted) {
        call6(SYS_futex, (uint64_t)count, FUTEX_WAKE, 0x7fffffff, 0, 0, 0);
        return;
    }
    if (op->arg[3] && seen == wanted - 1)
        join_barrier(shared, op->arg[3], 1);
    while (seen < wanted) {
        if (__atomic_load_n(&shared->failed, __ATOMIC_SEQ_CST))
            leave_process(124);
        long result = call6(SYS_futex, (uint64_t)count, FUTEX_WAIT, seen, patience, 0, 0);
        if (result == -ETIMEDOUT_)
            fail(header, op, result);
        seen = __atomic_load_n(count, __ATOMIC_SEQ_CST);
    }
}

static void lock(const struct vr_header *header, const struct vr_op *op)
{
    uint32_t *word = &shared_of(header)->barrier[op->arg[0]];
    struct {
        int64_t seconds, nanoseconds;
    } timeout = {BARRIER_TIMEOUT_S, 0};
    while (__atomic_exchange_n(word, 1, __ATOMIC_SEQ_CST) != 0) {
        if (__atomic_load_n(&shared_of(header)->failed, __ATOMIC_SEQ_CST))
            leave_process(124);
        long result = call6(SYS_futex, (uint64_t)word, FUTEX_WAIT, 1, (uint64_t)&timeout, 0, 0);
        if (result == -ETIMEDOUT_)
            fail(header, op, result);
    }
}

static void unlock(const struct vr_header *header, const struct vr_op *op)
{
    uint32_t *word = &shared_of(header)->barrier[op->arg[0]];
    __atomic_store_n(word, 0, __ATOMIC_SEQ_CST);
    call6(SYS_futex, (uint64_t)word, FUTEX_WAKE, 1, 0, 0, 0);
}

static long park_vdso(const struct vr_header *header, uint64_t vdso)
{
    uint64_t target = header->park;
    for (uint32_t i = 0; i < header->vdso_parts; i++) {
        uint64_t bytes = header->vdso[i].bytes;
        long result = call6(SYS_mremap, vdso + (uint64_t)header->vdso[i].start, bytes, bytes,
                            MREMAP_FLAGS, target, 0);
        if (result != (long)target)
            return result;
        target += bytes;
    }
    return 0;
}

/* The kernel gives the lowest free index: take ptys until ours comes, then drop the others.
 * The descriptors below `target` are free, so the extra ones are numbered from 0. */
static long open_pty(uint64_t wanted, uint64_t target)
{
    static const char path[] = "/dev/ptmx";
    long opened[MAX_PTY_TRIES];
    int count = 0;
    long result = -EIO_;
    while (count < MAX_PTY_TRIES) {
        long fd = call6(SYS_openat, (uint64_t)(int64_t)AT_FDCWD, (uint64_t)path,
                        O_RDWR_NOCTTY_CLOEXEC, 0, 0, 0);
        if (fd < 0) {
            result = fd;
            break;
        }
        opened[count++] = fd;
        uint32_t index = 0;
        result = call6(SYS_ioctl, (uint64_t)fd, (uint64_t)(uint32_t)TIOCGPTN, (uint64_t)&index, 0,
                       0, 0);
        if (result < 0)
            break;
        if (index == wanted) {
            result = call6(SYS_dup3, (uint64_t)fd, target, 02000000, 0, 0, 0);
            break;
        }
        result = -EIO_;
        if (index > wanted)
            break;
    }
    while (count > 0)
        call6(SYS_close, (uint64_t)opened[--count], 0, 0, 0, 0, 0);
    return result == (long)target ? 0 : result;
}

static int matches(const struct vr_op *op, long result)
{
    switch (op->check) {
    case VR_EXACT:
        return result == op->expected;
    case VR_AT_LEAST:
        return result >= op->expected;
    default:
        return 1;
    }
}

/* vdso is only meaningful in the coordinator, which is the one that parks it. */
static _Noreturn void run(const struct vr_header *header, const struct vr_op *op, uint64_t vdso)
{
    for (;;) {
        long result = 0;
        const uint64_t *arg = op->arg;
        switch (op->kind) {
        case VR_SYSCALL:
            result = call6(op->number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
            if (!matches(op, result))
                fail(header, op, result);
            break;
        case VR_CLONE:
            if (arg[3] != 0)
                result = vr_clone_thread(arg[0], arg[1], (const struct vr_op *)arg[2], header);
            else
                result = call6(SYS_clone3, arg[0], arg[1], 0, 0, 0, 0);
            if (result == 0 && arg[3] == 0) {
                op = (const struct vr_op *)arg[2];
                continue;
            }
            if (result != op->expected)
                fail(header, op, result);
            break;
        case VR_BARRIER:
            wait_barrier(header, op);
            break;
        case VR_LOCK:
            lock(header, op);
            break;
        case VR_UNLOCK:
            unlock(header, op);
            break;
        case VR_JOIN:
            /* The one that waits may have come already, or not. */
            join_barrier(shared_of(header), arg[0], (uint32_t)arg[1] - 1);
            break;
        case VR_PARK_VDSO:
            result = park_vdso(header, vdso);
            if (result != 0)
                fail(header, op, result);
            break;
        case VR_OPEN_PTY:
            result = open_pty(arg[0], arg[1]);
            if (result != 0)
                fail(header, op, result);
            break;
        case VR_EXIT:
            leave_process(arg[0]);
        case VR_STORE:
            *(volatile uint64_t *)arg[0] = arg[1];
            break;
        case VR_LEAVE:
            __atomic_add_fetch((uint32_t *)arg[2], (uint32_t)arg[5], __ATOMIC_SEQ_CST);
            vr_leave(arg[0], arg[1], arg[2], arg[3], arg[4], header);
        case VR_LEAVE_THREAD:
            vr_leave(arg[0], arg[1], arg[2], arg[3], arg[4], header);
        default:
            fail(header, op, -EIO_);
        }
        op++;
    }
}

void vr_run(const struct vr_header *header, const struct vr_op *op)
{
    run(header, op, 0);
}

void vr_main(const struct vr_header *header, uint64_t vdso)
{
    run(header, (const struct vr_op *)header->first_op, vdso);
}

uint64_t vr_prepare(const struct vr_header *header)
{
    long shared = call6(SYS_mmap, header->shared, header->shared_bytes, PROT_RW,
                        MAP_SHARED | MAP_FIXED_NOREPLACE, header->shared_fd, 0);
    if (shared != (long)header->shared)
        return 0;
    long scratch = call6(SYS_mmap, header->scratch, header->scratch_bytes, PROT_RW,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, (uint64_t)-1, 0);
    if (scratch != (long)header->scratch)
        return 0;
    return header->scratch + VR_LEADER_PAGES * VR_PAGE;
}
