"""Which system calls a command in a sandbox may make.

An allow list: what is not named is refused with EPERM. Compared with Docker's default profile it
has no way to *any* namespace operation and no kernel facility whose attack surface a sandbox does
not need (bpf, io_uring, userfaultfd, keyrings, perf, vmsplice, mounting); it allows ptrace and
ADDR_NO_RANDOMIZE, so that gdb and strace work among a sandbox's own processes.

Not a boundary alone: the user namespace, the dropped capabilities and no_new_privs hold without it.
"""

from __future__ import annotations

import errno
import functools
import socket

from sandboxd.isolation.syscall_filter import ALLOW, Argument, Case, Rule, compile_policy, refuse
from sandboxd.isolation.syscall_numbers import LAST_KNOWN, SYSCALL_NUMBERS

ALLOWED_CALLS = """
accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown chroot
clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range creat
dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait
eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate
fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr file_getattr flistxattr
flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex futex_requeue futex_wait
futex_waitv futex_wake futimesat getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups
getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid
getrlimit get_robust_list getrusage getsid getsockname getsockopt gettid gettimeofday getuid
getxattr getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel
io_destroy io_getevents io_pgetevents ioprio_get ioprio_set io_submit kill
lchown lgetxattr link linkat
listen listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat madvise map_shadow_stack
membarrier memfd_create mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mprotect
mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget
msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat open openat openat2 pause
pidfd_getfd pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll
prctl pread64 preadv preadv2 process_mrelease process_vm_readv process_vm_writev pselect6
ptrace pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg
remap_file_pages removexattr removexattrat rename renameat renameat2 restart_syscall rmdir rseq
rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
rt_sigtimedwait rt_tgsigqueueinfo sched_getaffinity sched_getattr sched_getparam
sched_get_priority_max sched_get_priority_min sched_getscheduler sched_rr_get_interval
sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield select semctl
semget semop semtimedop sendfile sendmmsg sendmsg sendto setfsgid setfsuid setgid setgroups
setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit set_robust_list
setsid setsockopt set_tid_address setuid setxattr setxattrat shmat shmctl shmdt shmget shutdown
sigaltstack signalfd signalfd4 splice stat statfs statx symlink symlinkat sync sync_file_range
syncfs sysinfo tee tgkill time timer_create timer_delete timerfd_create timerfd_gettime
timerfd_settime timer_getoverrun timer_gettime timer_settime times tkill truncate umask uname
unlink unlinkat uprobe uretprobe utime utimensat utimes vfork wait4 waitid write writev
"""

# "This kernel has no such call": C libraries and tools fall back to an older way silently.
# Of io_setup's contexts the whole machine has fs.aio-max-nr: one sandbox could take all.
# A Landlock domain cannot be seen from outside, so a fork would silently be without it.
ABSENT_CALLS = """
clone3 io_setup landlock_add_rule landlock_create_ruleset landlock_restrict_self listmount
lsm_get_self_attr lsm_list_modules lsm_set_self_attr memfd_secret open_tree_attr statmount
"""

# A listener cannot be seen from outside either, and a chain of filters has room for one, which in a
# fork is taken. Answered as by a kernel that does not know the flag.
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8

# Flags of clone and unshare: mount, cgroup, uts, ipc, user, pid, net. CLONE_NEWTIME (0x80) lies in
# clone's signal byte and means a namespace to unshare alone.
CLONE_NAMESPACES = 0x7E020000
CLONE_NEWTIME = 0x00000080

TIOCSTI, TIOCLINUX = (
    0x5412,
    0x541C,
)  # type into the terminal that one was given; paste into a console
NETLINK_ROUTE = 0
# PER_LINUX, UNAME26, both as PER_LINUX32 has them, ADDR_NO_RANDOMIZE (gdb), and "only tell me".
PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
SOCKET_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
INIT_PID = 1

DENIED = refuse(errno.EPERM)


def _unless_flags(flags: int) -> Rule:
    return Rule(DENIED, (Case((Argument(0, 0, flags),), ALLOW),))


def _one_of(values: tuple[int, ...], error: int, *more: Case) -> Rule:
    cases = tuple(Case((Argument(0, value),), ALLOW) for value in values)
    return Rule(refuse(error), cases + more)


FILTERED_CALLS: dict[str, Rule] = {
    "clone": _unless_flags(CLONE_NAMESPACES),
    "unshare": _unless_flags(CLONE_NAMESPACES | CLONE_NEWTIME),
    "ioctl": Rule(
        ALLOW, tuple(Case((Argument(1, request),), DENIED) for request in (TIOCSTI, TIOCLINUX))
    ),
    # The kernel asks only for the same uid, which the sandbox's root has: with a limit on its time
    # or its descriptors init would die, or could start nothing more.
    "prlimit64": Rule(ALLOW, (Case((Argument(0, INIT_PID),), DENIED),)),
    "seccomp": Rule(
        ALLOW,
        (
            Case(
                (
                    Argument(0, SECCOMP_SET_MODE_FILTER),
                    Argument(1, SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_FILTER_FLAG_NEW_LISTENER),
                ),
                refuse(errno.EINVAL),
            ),
        ),
    ),
    "personality": _one_of(PERSONALITIES, errno.EPERM),
    "socket": _one_of(
        SOCKET_FAMILIES,
        errno.EAFNOSUPPORT,
        Case((Argument(0, socket.AF_NETLINK), Argument(2, NETLINK_ROUTE)), ALLOW),
    ),
    "socketpair": _one_of((socket.AF_UNIX,), errno.EAFNOSUPPORT),
}


def policy() -> dict[int, Rule]:
    """System call number → rule; everything else is denied."""
    rules = {name: Rule(ALLOW) for name in ALLOWED_CALLS.split()}
    rules |= {name: Rule(refuse(errno.ENOSYS)) for name in ABSENT_CALLS.split()}
    rules |= FILTERED_CALLS
    return {SYSCALL_NUMBERS[name]: rule for name, rule in rules.items()}


@functools.cache
def compile_filter() -> bytes:
    """The filter of every exec child, an array of `struct sock_filter`."""
    return compile_policy(policy(), Rule(DENIED), LAST_KNOWN)
