/* Wire formats between the daemon and sandbox-init, PID 1 of every sandbox.
 *
 * Three formats live here; sandboxd/init_protocol.py is the other half and the tests hold the two
 * against each other:
 *   1. the setup plan, a memfd that init executes once before it says READY;
 *   2. the status record, the one thing init ever writes to the spawner's status pipe;
 *   3. control packets on an AF_UNIX SOCK_SEQPACKET connection.
 *
 * Everything is little-endian and packed. Strings are NUL terminated on the wire, so that init can
 * use them where they lie. Init validates every field: a peer that lies gets an ERROR packet or a
 * FAILED one, never a crash of PID 1.
 */
#ifndef VENUS_INIT_PROTOCOL_H
#define VENUS_INIT_PROTOCOL_H

#include <stdint.h>

#define VENUS_PROTOCOL_VERSION 1u

/* ---- limits -------------------------------------------------------------------------------- */

#define VENUS_MAX_PACKET_SIZE (256u * 1024u)
#define VENUS_MAX_EXECS 1024u
#define VENUS_MAX_STRINGS 16384u /* argv and env together */
#define VENUS_MAX_CGROUP_PROCS 8u
#define VENUS_MAX_PACKET_FDS 16u
#define VENUS_MAX_RLIMITS 16u
#define VENUS_MAX_PLAN_SIZE (1024u * 1024u)
#define VENUS_MAX_PLAN_OPS 512u
#define VENUS_MAX_PLAN_SLOTS 32u
#define VENUS_MAX_FILTER_INSTRUCTIONS 4096u
#define VENUS_MAX_SANDBOX_ID 64u /* terminating NUL included */
#define VENUS_MAX_UPLOAD_FRAME (1024u * 1024u)

/* ---- descriptors that init is started with --------------------------------------------------- */

enum venus_init_fd {
  VENUS_FD_PLAN = 3,
  VENUS_FD_STATUS = 4,
  VENUS_FD_LISTEN = 5,
  VENUS_FD_ROOT = 6, /* O_PATH, the mounted root overlay; closed after setup */
  VENUS_FD_FIRST_FREE = 7,
};

/* ---- setup plan -------------------------------------------------------------------------------- */

#define VENUS_PLAN_MAGIC 0x4e4c5056u /* "VPLN" */

/* Followed by rlimit_count venus_rlimit, filter_count 8-byte struct sock_filter, the sandbox id
 * (NUL terminated), then op_count operations. Rlimits, filter and each operation start at multiples
 * of 8; the gaps are zero. */
struct venus_plan_header {
  uint32_t magic;
  uint16_t version;
  uint16_t reserved;
  uint32_t total_size;
  uint32_t op_count;
  uint64_t capability_mask; /* bounding set of exec children; bit n = capability n */
  int32_t oom_score_adj;    /* of exec children; must not be below init's own */
  uint32_t umask;
  uint32_t rlimit_count;
  uint32_t filter_count;
  uint32_t sandbox_id_size; /* NUL included */
  uint32_t reserved2;
} __attribute__((packed));

struct venus_rlimit {
  uint32_t resource;
  uint32_t reserved;
  uint64_t soft;
  uint64_t hard;
} __attribute__((packed));

/* One shape for every operation: what number, number2, slot and the three strings mean is in the
 * table below. The strings follow, each NUL terminated, sizes NUL included; then `data` bytes. */
struct venus_plan_op {
  uint32_t size; /* of the record, this header included, padding to 8 included */
  uint16_t kind;
  uint16_t flags;
  uint64_t number;
  uint64_t number2;
  uint32_t slot;
  uint32_t string_size[3];
  uint32_t data_size;
  uint32_t reserved;
} __attribute__((packed));

enum venus_op_kind {
  VENUS_OP_UNSHARE_CGROUP = 1,   /* - */
  VENUS_OP_MOUNTS_PRIVATE = 2,   /* - */
  VENUS_OP_CLONE_MOUNT = 3,      /* s0 path -> slot (open_tree clone, not recursive) */
  VENUS_OP_PIVOT_ROOT = 4,       /* s0 new root, "" = FD_ROOT; old root stays until DETACH_OLD_ROOT */
  VENUS_OP_DETACH_OLD_ROOT = 5,  /* - */
  VENUS_OP_MOUNT = 6,            /* s0 fstype, s1 target, s2 data, number MS_* flags */
  VENUS_OP_ATTACH_MOUNT = 7,     /* slot -> s0 path; number MOUNT_ATTR_* set first, slot is emptied */
  VENUS_OP_MAKE_DIRECTORY = 8,   /* s0 path, number mode; an existing directory is fine */
  VENUS_OP_SYMLINK = 9,          /* s0 target, s1 path */
  VENUS_OP_WRITE_FILE = 10,      /* s0 path, number mode, data; a symlink in the way is replaced */
  VENUS_OP_BIND_READ_ONLY = 11,  /* s0 path, recursive; missing path is fine with FLAG_OPTIONAL */
  VENUS_OP_MASK_PATH = 12,       /* s0 path; file -> /dev/null, directory -> empty tmpfs; same */
  VENUS_OP_SET_HOSTNAME = 13,    /* s0 name */
  VENUS_OP_LOOPBACK_UP = 14,     /* - */
  VENUS_OP_SET_RLIMIT = 15,      /* slot resource, number soft, number2 hard: of init itself */
  VENUS_OP_SET_MODE = 16,        /* s0 path, number mode */
};

#define VENUS_OP_FLAG_OPTIONAL 1u /* the path may be missing */

/* ---- status record ------------------------------------------------------------------------------ */

#define VENUS_STATUS_MAGIC 0x54535456u /* "VTST" */

enum venus_status_kind {
  VENUS_STATUS_READY = 1,
  VENUS_STATUS_PLAN_INVALID = 2, /* op_index = the first bad operation, or op_count */
  VENUS_STATUS_OP_FAILED = 3,
  VENUS_STATUS_START_FAILED = 4, /* before or after the plan: signalfd, descriptors, exec of init */
};

struct venus_status {
  uint32_t magic;
  uint32_t kind;
  uint32_t op_index;
  int32_t error; /* errno */
} __attribute__((packed));

/* ---- control packets ---------------------------------------------------------------------------- */

struct venus_header {
  uint16_t version;
  uint16_t type;
  uint32_t payload_size;
  uint64_t request_id; /* chosen by the daemon, repeated in the answer; 0 in events */
} __attribute__((packed));

enum venus_message_type {
  /* daemon -> init */
  VENUS_HELLO = 1,        /* no payload -> HELLO_REPLY */
  VENUS_EXEC = 2,         /* venus_exec -> STARTED | FAILED */
  VENUS_KILL = 3,         /* venus_kill -> ACK */
  VENUS_STDIN_CLOSED = 4, /* venus_exec_ref -> ACK; init drops keep_stdin */
  VENUS_RELEASE = 5,      /* venus_exec_ref -> ACK; EBUSY while it runs */
  VENUS_LIST = 6,         /* no payload -> EXEC_INFO*, LIST_END */
  VENUS_SHUTDOWN = 7,     /* no payload; init exits, the kernel kills the rest */
  /* venus_exec_ref and one descriptor -> ACK; the master of a RESTORED command's terminal, of which
   * init keeps a duplicate as of one that it made itself */
  VENUS_KEEP_TERMINAL = 8,
  /* venus_socket -> ACK with the descriptor of a TCP socket of the sandbox's network namespace, not
   * connected and non-blocking. Wherever it is connected from, it leads into the sandbox alone. */
  VENUS_SOCKET = 9,
  /* init -> daemon */
  VENUS_HELLO_REPLY = 0x81,
  VENUS_STARTED = 0x82,
  VENUS_FAILED = 0x83,
  VENUS_ACK = 0x84,
  VENUS_EXEC_INFO = 0x85,
  VENUS_LIST_END = 0x86,
  VENUS_ERROR = 0x87, /* the request could not be understood: venus_ack with exec_id 0 */
  /* events */
  VENUS_EXITED = 0xc1,
};

enum venus_exec_kind {
  VENUS_KIND_PROGRAM = 0,
  VENUS_KIND_READ = 1,   /* argv path; number0 offset, number1 length -> bytes on stdout */
  /* argv path, owner; number0 mode, number1 flags PARENTS, SET_MODE; stdin in upload frames */
  VENUS_KIND_WRITE = 2,
  VENUS_KIND_LIST = 3,   /* argv path; number0 depth, number1 max entries -> records on stdout */
  VENUS_KIND_STAT = 4,   /* argv path; number1 flags FOLLOW -> one record, then END */
  VENUS_KIND_MKDIR = 5,  /* argv path; number0 mode, number1 flags PARENTS */
  VENUS_KIND_REMOVE = 6, /* argv path; number1 flags RECURSIVE */
  VENUS_KIND_RENAME = 7, /* argv from, to; number1 flags NO_REPLACE */
  VENUS_KIND_CHMOD = 8,  /* argv path; number0 mode */
  /* Rebuilds a process tree: argv ignored, number0 pid of the coordinator, stdin a socket that
   * venus_restore_format.h describes. It exits with 0 when the tree runs. Only in a fresh sandbox. */
  VENUS_KIND_RESTORE = 9,
  /* Starts nothing: enters a child of init that the next RESTORE makes, so that its end is told and
   * the kept descriptors stay. argv ignored, number0 its pid, 0 for a command whose leader has ended
   * while others hold its pipes. */
  VENUS_KIND_RESTORED = 10,
  VENUS_KIND_CHOWN = 11, /* argv path, owner */
  VENUS_KIND_TAR = 12,   /* argv path -> a tar archive of what is below on stdout */
  VENUS_KIND_UNTAR = 13, /* argv path; number1 flags OWNERS; a tar archive on stdin in upload frames */
  VENUS_KIND_WATCH = 14, /* argv path; number1 flags RECURSIVE -> watch events on stdout */
  VENUS_KIND_LAST = VENUS_KIND_WATCH,
};

#define VENUS_FILE_PARENTS 1u
#define VENUS_FILE_FOLLOW 2u
#define VENUS_FILE_RECURSIVE 4u
#define VENUS_FILE_NO_REPLACE 8u
#define VENUS_FILE_SET_MODE 16u /* also of a file that is there already */
#define VENUS_FILE_OWNERS 32u   /* of the archive; else everything is the user's */

/* An owner is "user", "user:group" or ":group", by name or number, as the sandbox knows them; a user
 * alone stands for its own group too. "" leaves both as they are. */

/* Descriptors of an EXEC or EXEC_INFO packet, in the order of these bits. CGROUP_PROCS stands for
 * cgroup_procs_count descriptors. A missing stdin, stdout or stderr is /dev/null. */
enum venus_fd_bit {
  VENUS_HAS_STDIN = 1u << 0,
  VENUS_HAS_STDOUT = 1u << 1,
  VENUS_HAS_STDERR = 1u << 2,
  VENUS_HAS_KEEP_STDIN = 1u << 3,
  VENUS_HAS_KEEP_STDOUT = 1u << 4,
  VENUS_HAS_KEEP_STDERR = 1u << 5,
  VENUS_HAS_CGROUP_PROCS = 1u << 6,
  VENUS_HAS_CGROUP_KILL = 1u << 7,
  VENUS_HAS_ALL = (1u << 8) - 1,
};

/* A PROGRAM in a session with a new terminal of the sandbox as its own: number0 rows, number1 columns.
 * No stdin, stdout, stderr, nor any to be kept. STARTED brings the master. Init keeps a duplicate as
 * keep_stdout, and the slave open until the leader has ended. */
#define VENUS_EXEC_TERMINAL 1u

/* Followed by rlimit_count venus_rlimit (on top of the plan's), then by strings_size bytes: user,
 * cwd, argc arguments, envc "NAME=value", each NUL terminated and nothing else.
 * user: "" root, "1000", "1000:1000", "name", "name:group" (names: the sandbox's own /etc/passwd).
 * cwd: "" the user's home, or / if that cannot be entered. */
struct venus_exec {
  uint64_t exec_id; /* not 0, unused */
  uint32_t kind;
  uint32_t flags;
  uint32_t fd_mask;
  uint32_t cgroup_procs_count;
  uint32_t timeout_ms; /* 0 = none */
  uint32_t rlimit_count;
  uint32_t argc;
  uint32_t envc;
  uint64_t number[2];
  uint32_t strings_size;
  uint32_t reserved;
} __attribute__((packed));

#define VENUS_KILL_WHOLE_TREE 1u

struct venus_kill {
  uint64_t exec_id;
  uint32_t signal;
  uint32_t flags;
} __attribute__((packed));

struct venus_exec_ref {
  uint64_t exec_id;
} __attribute__((packed));

struct venus_socket {
  uint32_t family; /* AF_INET or AF_INET6 */
  uint32_t reserved;
} __attribute__((packed));

/* Followed by sandbox_id_size bytes, NUL included. */
struct venus_hello_reply {
  uint32_t protocol_version;
  uint32_t exec_count;
  uint64_t uptime_ms;
  uint32_t sandbox_id_size;
  uint32_t reserved;
} __attribute__((packed));

/* Comes with the master of the terminal if there is one. */
struct venus_started {
  uint64_t exec_id;
  int32_t pid; /* in the sandbox's pid namespace */
  uint32_t reserved;
} __attribute__((packed));

enum venus_exec_step {
  VENUS_STEP_REQUEST = 1, /* EINVAL, EEXIST (id in use), EAGAIN (too many execs) */
  VENUS_STEP_FORK = 2,
  VENUS_STEP_SESSION = 3,
  VENUS_STEP_CGROUP = 4,
  VENUS_STEP_DESCRIPTORS = 5,
  VENUS_STEP_OOM_SCORE = 6,
  VENUS_STEP_RLIMIT = 7,
  VENUS_STEP_CAPABILITIES = 8,
  VENUS_STEP_USER = 9,         /* ENOENT: no such user or group in the sandbox */
  VENUS_STEP_CREDENTIALS = 10,
  VENUS_STEP_CWD = 11,
  VENUS_STEP_SECCOMP = 12,
  VENUS_STEP_EXEC = 13,
  VENUS_STEP_RESTORE = 14,
  VENUS_STEP_TERMINAL = 15, /* ENOSPC: too many in the sandbox or on the machine */
};

struct venus_failed {
  uint64_t exec_id;
  uint32_t step;
  int32_t error;
} __attribute__((packed));

struct venus_ack {
  uint64_t exec_id;
  int32_t error; /* 0, or ENOENT (no such exec), EBUSY, EINVAL ... */
  uint32_t reserved;
} __attribute__((packed));

enum venus_exit_how { VENUS_EXIT_EXITED = 0, VENUS_EXIT_SIGNALED = 1 };

#define VENUS_EXIT_TIMED_OUT 1u
#define VENUS_EXIT_KILLED_BY_REQUEST 2u
#define VENUS_EXIT_CORE_DUMPED 4u

struct venus_exit {
  uint64_t exec_id;
  uint32_t how;
  uint32_t code; /* exit code or signal number */
  uint32_t flags;
  uint32_t reserved;
  uint64_t user_us; /* of the leader and what it waited for */
  uint64_t system_us;
  uint64_t max_rss_kib;
  uint64_t duration_us;
} __attribute__((packed));

enum venus_exec_state {
  VENUS_STATE_STARTING = 1,
  VENUS_STATE_RUNNING = 2,
  VENUS_STATE_EXITED = 3,
};

/* Comes with copies of the kept descriptors, in the order of the bits (keep_* bits only). */
struct venus_exec_info {
  struct venus_exit exit; /* exec_id always; the rest when state is EXITED */
  int32_t pid;
  uint32_t state;
  uint32_t kind;
  uint32_t fd_mask;
  uint32_t timeout_ms;
  uint32_t remaining_ms; /* of the timeout; 0 when none */
} __attribute__((packed));

/* ---- results of file operations ----------------------------------------------------------------- */

/* A file operation exits with 0, or with 1 after one venus_file_error on stderr; the rest of stderr is
 * the path at which an operation on many files failed, if any. */
#define VENUS_FILE_ERROR_MAGIC 0x52455656u /* "VVER" */

struct venus_file_error {
  uint32_t magic;
  int32_t error;
} __attribute__((packed));

enum venus_record_kind { VENUS_RECORD_ENTRY = 1, VENUS_RECORD_END = 2 };

#define VENUS_RECORD_TRUNCATED 1u /* END: there were more entries than asked for */

/* Followed by path_size and target_size bytes, not NUL terminated. A stream of records is whole
 * only if it ends with END. Paths of LIST are relative to the listed directory. */
struct venus_record {
  uint32_t size; /* of the record, strings included */
  uint16_t kind;
  uint16_t flags;
  uint32_t mode; /* st_mode */
  uint32_t uid;
  uint32_t gid;
  uint32_t link_count;
  uint64_t size_bytes;
  int64_t mtime_ns;
  uint64_t inode;
  uint32_t path_size;
  uint32_t target_size; /* of a symbolic link */
} __attribute__((packed));

enum venus_watch_kind {
  VENUS_WATCH_READY = 1, /* first of all: what happens from here on is seen */
  VENUS_WATCH_CREATE = 2,
  VENUS_WATCH_WRITE = 3,
  VENUS_WATCH_REMOVE = 4,
  VENUS_WATCH_RENAME = 5, /* path became target */
  VENUS_WATCH_CHMOD = 6,
  VENUS_WATCH_OVERFLOW = 7, /* some were missed */
};

#define VENUS_WATCH_DIRECTORY 1u

/* Followed by path_size and target_size bytes: paths below the watched directory, "" itself. */
struct venus_watch_event {
  uint32_t size; /* of the record, strings included */
  uint16_t kind;
  uint16_t flags;
  uint32_t path_size;
  uint32_t target_size;
} __attribute__((packed));

/* Upload frames on the stdin of WRITE and UNTAR: u32 length, bytes; length 0 ends it. Without that end the
 * file does not come to be. */

#endif
