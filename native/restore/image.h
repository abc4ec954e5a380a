// What a captured sandbox is: plain data, without descriptors of its own and without system calls.
// capture/ fills it, restore/ turns it into operations.  Everything is expressed in the terms of
// the sandbox (its pids, its paths, its uids), so that it means the same in any other sandbox.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <sys/user.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "memory/page_runs.h"

namespace venus {

using Bytes = std::vector<uint8_t>;
inline constexpr uint32_t kNoObject = UINT32_MAX;

// ---- memory ----

struct ExtentPiece {
    PageRun run;
    uint32_t extent;  // index into TreeImage::extents
    uint64_t offset;
};

enum class Backing { kAnonymous, kFile, kSharedMemory, kSystemV };

struct Mapping {
    PageRun area;
    uint32_t protection = 0;
    bool shared = false;
    bool grows_down = false;
    bool no_reserve = false;
    bool locked = false;
    Backing backing = Backing::kAnonymous;
    std::string path;  // kFile
    uint32_t nameless = kNoObject;  // kFile: instead of the path
    bool file_writable = false;  // kFile, kSystemV
    uint32_t object = 0;  // kSharedMemory: index into TreeImage::objects; kSystemV: the segment's id
    uint64_t offset = 0;
    std::vector<int> advice;          // madvise values that still act on the area
    std::vector<ExtentPiece> pieces;  // private content that is not zero
    std::vector<PageRun> guards;
};

struct VdsoPart {
    PageRun area;
};

struct MemoryLayout {  // struct prctl_mm_map without its descriptor
    uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack;
    uint64_t arg_start, arg_end, env_start, env_end;
    Bytes auxv;
    std::string exe_path;
    uint32_t exe_nameless = kNoObject;
};

// ---- threads ----

struct Credentials {
    std::array<uint32_t, 4> uid, gid;  // real, effective, saved, file system
    std::vector<uint32_t> groups;
    uint64_t inheritable, permitted, effective, bounding, ambient;
    uint32_t securebits;
    bool no_new_privs;
    bool operator==(const Credentials &) const = default;
};

// A system call that must be entered again with one argument changed, e.g. a sleep of which only
// a part remains.  The argument gets its old value back before the program goes on.
struct ResumedCall {
    unsigned argument;  // 0..5
    uint64_t value;     // literal, unless `data` is not empty
    Bytes data;         // what the argument points to
};

struct DescriptorImage {
    int number;
    uint32_t object;
    bool close_on_exec;
};

struct PosixLock {
    uint32_t object;  // through this open file
    int number;       // descriptor of the process
    int type;
    uint64_t start, length;
};

struct DescriptorTable {
    std::vector<DescriptorImage> descriptors;
    std::vector<PosixLock> locks;
};

struct Directories {
    std::string root = "/";  // in the sandbox
    std::string working_directory;
    uint32_t working_nameless = kNoObject;  // index into TreeImage::nameless: it is deleted
    uint32_t umask = 0;
};

// Given back to a semaphore at the end of the process (SEM_UNDO).
struct SemaphoreUndo {
    int set;
    uint16_t index;
    int16_t amount;
};

struct ThreadImage {
    pid_t tid;
    bool ended = false;   // the first thread of a process whose others run on
    int exit_status = 0;  // of one that has ended
    // Tables that are not those of its process.
    std::optional<DescriptorTable> own_descriptors;
    std::optional<Directories> own_directories;
    std::optional<std::vector<SemaphoreUndo>> own_semaphore_undo;
    user_regs_struct registers;  // as they continue; never inside an unfinished system call
    Bytes xstate;
    std::optional<ResumedCall> resumed_call;
    uint64_t signal_mask;
    uint64_t alternate_stack[3];  // stack_t as the kernel has it
    uint64_t robust_list, robust_list_bytes;
    uint64_t rseq_area;
    uint32_t rseq_bytes, rseq_signature;
    uint64_t clear_child_tid;
    std::string name;
    uint32_t parent_death_signal;
    uint64_t timer_slack_ns;
    int nice;
    int policy;
    int priority;
    uint64_t scheduling_flags;  // SCHED_FLAG_*
    uint64_t slice_ns = 0;      // of its own; 0: as everybody's
    uint32_t personality;
    int io_priority;
    int machine_check_policy = 2;  // PR_MCE_KILL_DEFAULT
    int time_stamps = 1;           // PR_TSC_ENABLE
    std::vector<uint64_t> affinity;
    std::vector<Bytes> pending_signals;  // siginfo_t
    Credentials credentials;
};

// ---- processes ----

struct SignalAction {
    int number;
    uint64_t handler, flags, restorer, mask;
};

struct IntervalTimer {
    int which;
    uint64_t value[4];  // struct itimerval
};

struct PosixTimer {
    int id;
    int clock;
    int notify;  // SIGEV_*, with SIGEV_THREAD_ID
    int signal;
    pid_t thread;
    uint64_t value;
    uint64_t spec[4];  // struct itimerspec, relative
};

// What processes may share: the flags of clone(2).
enum class Table { kMemory, kSignalActions, kDescriptors, kDirectories, kSemaphoreUndo };
inline constexpr size_t kTables = 5;
inline constexpr std::array<Table, kTables> kAllTables = {
    Table::kMemory, Table::kSignalActions, Table::kDescriptors, Table::kDirectories,
    Table::kSemaphoreUndo};

enum class RunState { kRunning, kStopped, kZombie };

struct ProcessImage {
    pid_t pid, parent, group, session;
    int exit_signal = SIGCHLD;  // what its parent gets when it ends
    // Index of the first process that has the same table, of those that share one. What the table
    // holds stands with that process.
    std::array<uint32_t, kTables> shared_with = {kNoObject, kNoObject, kNoObject, kNoObject,
                                                 kNoObject};
    RunState state = RunState::kRunning;
    int exit_status = 0;  // zombies: as wait() reports it
    bool stop_unseen = false;  // stopped, and its parent has not been told by wait() yet
    std::string name;          // of its first thread
    std::vector<ThreadImage> threads;  // the leader first; empty for zombies
    std::vector<Mapping> mappings;
    std::vector<VdsoPart> vdso;
    MemoryLayout layout;
    DescriptorTable files;
    Directories directories;
    std::vector<SemaphoreUndo> semaphore_undo;
    std::vector<SignalAction> actions;
    std::vector<Bytes> pending_signals;
    std::vector<IntervalTimer> interval_timers;
    std::vector<PosixTimer> posix_timers;
    std::array<rlimit64, RLIM_NLIMITS> limits;
    bool child_subreaper = false;
    bool dumpable = true;
    bool thp_disabled = false;
    int oom_score_adjustment = 0;
    std::string core_dump_filter;  // empty: as everybody's
    uint64_t barrier_registrations = 0;  // membarrier(2): commands that register
    uint64_t deny_write_execute = 0;     // PR_MDWE_*
    bool memory_merge = false;
    std::vector<Bytes> seccomp_filters;  // oldest first; struct sock_filter[]
    int controlling_terminal = -1;       // pty index; only of session leaders
    pid_t foreground_group = 0;

    // Of several processes that share a table the first stands for all.
    bool stands_for(Table table, uint32_t own_index) const
    {
        uint32_t first = shared_with[static_cast<size_t>(table)];
        return first == kNoObject || first == own_index;
    }
    bool shares(Table table) const { return shared_with[static_cast<size_t>(table)] != kNoObject; }
};

// ---- open files ----

struct RegularFile {
    std::string path;
    int flags;
    uint64_t offset;
    bool is_directory = false;
    uint32_t nameless = kNoObject;  // index into TreeImage::nameless: no name leads to it
    bool of_process = false;        // in /proc: opened when the processes and threads are there
};
struct DeviceFile {
    std::string path;
    int flags;
};
// One end of a pipe; both ends name the same `pipe`.
struct PipeEnd {
    uint32_t pipe;
    int flags;
    std::string fifo_path;  // empty: anonymous
};
struct EventCounter {
    uint64_t count;
    int flags;
    bool semaphore;
};
struct TimerFile {
    int clock;
    int flags;
    int settime_flags;
    uint64_t ticks;
    uint64_t spec[4];
};
struct SignalFile {
    uint64_t mask;
    int flags;
};
struct EpollTarget {
    uint32_t object;
    int number;  // under which descriptor number it was added
    uint32_t events;
    uint64_t data;
};
struct EpollFile {
    std::vector<EpollTarget> targets;
};
struct SharedMemoryFile {  // memfd and shared anonymous memory
    std::string name;
    int flags;
    uint64_t size;
    uint32_t seals;
    uint64_t offset;
    uint32_t memory;  // open files of the same memory share this number
    bool may_be_sealed;
    std::vector<ExtentPiece> content;  // runs are file offsets
};
struct TerminalMaster {
    int index;
    int flags;
};
struct TerminalSlave {
    int index;
    int flags;
    bool as_own = false;  // opened as the controlling terminal, under the name /dev/tty
};
struct QueuedMessage {
    Bytes payload;
    Bytes sender;  // datagrams: its address, empty without a name
};
struct SocketOption {
    int level, name;
    Bytes value;
};
struct UnixSocket {
    int type;
    int flags;
    uint32_t peer = kNoObject;  // connected to this object
    bool connected = false;     // without a peer: the other end is closed
    bool waiting = false;       // to be accepted by a listener
    bool accepted = false;      // has the name of a listener
    uint32_t listener = kNoObject;  // none: it is closed
    std::vector<uint32_t> clients;  // listening: that wait to be accepted, oldest first
    Bytes peer_address;             // of datagrams that go to a socket which is not connected back
    std::vector<QueuedMessage> queue;  // waiting to be read here
    std::vector<SocketOption> options;
    int shutdown = 0;  // bit 0: cannot receive, bit 1: cannot send
    Bytes bound_address;
    int backlog = -1;  // listening when >= 0
    bool file_gone = false;     // that it was bound to
    int mode = 0, owner_uid = 0, owner_gid = 0;  // of the bound file
};
struct Datagram {
    Bytes payload;
    Bytes sender;  // its address
};
enum class TcpFate {
    kConnecting,  // its listener has no room yet
    kOpen,
    kWaiting,  // the other end waits to be accepted: see InetSocket::waiting
    kEnded,    // finished by both ends
    kReset,    // the other end was outside the sandbox
};
// One end of a TCP connection. Sequence numbers do not count the end of the stream (FIN).
struct TcpEnd {
    TcpFate fate = TcpFate::kOpen;
    uint32_t peer = kNoObject;  // none: the other end is closed
    uint32_t send_next = 0;     // of the first byte of `unsent`: what the other end expects
    uint32_t receive_next = 0;  // of the byte after `received`
    Bytes received, unsent;
    bool finished = false;  // sends no more after `unsent`
    bool deaf = false;      // has shut its receiving side
    uint32_t segment_bytes = 0, send_scale = 0, receive_scale = 0, timestamp = 0;
    bool window_scaling = false, selective_acknowledgements = false, timestamps = false;
    std::array<uint32_t, 5> window{};  // struct tcp_repair_window
    uint32_t window_clamp = 0;
    int send_buffer = 0, receive_buffer = 0, buffer_locks = 0;
};
// Of a listener: connected, not accepted yet.
struct WaitingConnection {
    uint32_t client;  // none: it is closed already
    Bytes client_address, server_address;
};
struct InetSocket {
    int family, type, protocol;
    int flags;
    Bytes bound_address, peer_address;
    int backlog = -1;
    std::vector<SocketOption> options;
    std::vector<Datagram> queue;
    std::optional<TcpEnd> tcp;
    std::vector<WaitingConnection> waiting;
};
// The other end belongs to the daemon: each fork gets a new one.
struct ExternalFile {
    uint32_t slot;
    int flags;
};

using OpenFile = std::variant<RegularFile, DeviceFile, PipeEnd, EventCounter, TimerFile, SignalFile,
                              EpollFile, SharedMemoryFile, TerminalMaster, TerminalSlave,
                              UnixSocket, InetSocket, ExternalFile>;

// Who gets a signal when something can be done with an open file (O_ASYNC), or its lease ends.
struct FileSignal {
    uint32_t object;
    int owner_kind = -1;  // F_OWNER_*; none: nobody
    pid_t owner = 0;
    uint32_t uid = 0, effective_uid = 0;  // of who has named the owner
    int signal = 0;                       // 0: SIGIO
    int flags = 0;                        // of the file, with O_ASYNC
    int lease = -1;                       // F_RDLCK, F_WRLCK
    uint32_t lease_uid = 0;               // owner of the file
};

// Of an open file, whoever has it: flock() or, with a range, an open file description lock.
struct FileLock {
    uint32_t object;
    bool of_range;
    bool exclusive;
    uint64_t start = 0, length = 0;  // 0: to the end
};

struct PipeImage {
    uint32_t capacity;
    Bytes content;
    std::vector<uint32_t> packets;  // sizes of what is in it; empty: a stream
    std::string fifo_path;
};

struct TerminalImage {
    int index;
    Bytes settings;     // struct termios2
    Bytes window_size;  // struct winsize
    bool master_locked = false;
    bool packet_mode = false;
    bool stopped = false;  // by ^S
    bool hung_up = false;  // the slave was open and nobody has it any more
    uint32_t external_slot = kNoObject;  // the caller of the capture holds the master
    Bytes input;   // waits for the slave, also a line that is not complete
    Bytes output;  // waits for the master
    int owner_uid, owner_gid, mode;
};

// ---- files of memory file systems ----

struct FileEntry {
    std::string path;
    uint32_t mode;  // st_mode
    uint32_t uid, gid;
    uint64_t modified[2];
    uint64_t size;
    std::vector<ExtentPiece> content;
    std::string target;   // symbolic link
    std::string link_to;  // another name of this file, made before
    std::vector<std::pair<std::string, Bytes>> attributes;
    bool only_times = false;  // a directory whose content is complete
};

// A file that is open or mapped but has no name: deleted, replaced, or made without one.
struct NamelessFile {
    std::string path, directory;  // that it had
    bool is_directory = false;    // an empty one, then
    bool name_taken = false;
    bool never_named = false;  // O_TMPFILE: it may get a name still
    uint32_t mode, uid, gid;
    uint64_t modified[2], directory_modified[2];
    uint64_t size;
    std::vector<ExtentPiece> content;
};

// ---- System V objects ----

struct SystemVObject {
    int id;
    int32_t key;
    uint32_t mode, uid, gid, creator_uid, creator_gid;
};
struct SystemVMemory {
    SystemVObject object;
    uint64_t size;
    bool removed;  // goes when the last process detaches it
    bool locked;
    std::vector<ExtentPiece> content;
};
struct SystemVSemaphores {
    SystemVObject object;
    std::vector<uint16_t> values;
};
struct SystemVMessage {
    int64_t type;
    Bytes text;
};
struct SystemVQueue {
    SystemVObject object;
    uint64_t capacity;
    std::vector<SystemVMessage> messages;
};
struct SystemVImage {
    std::vector<SystemVMemory> memories;
    std::vector<SystemVSemaphores> semaphores;
    std::vector<SystemVQueue> queues;

    bool empty() const { return memories.empty() && semaphores.empty() && queues.empty(); }
};

// ---- the whole ----

struct ExtentImage {
    uint64_t size;
    bool anonymous = false;  // its pages stand for anonymous memory
};

struct TreeImage {
    std::vector<ProcessImage> processes;  // parents before children
    std::vector<OpenFile> objects;
    std::vector<FileSignal> file_signals;
    std::vector<FileLock> file_locks;
    std::vector<PipeImage> pipes;
    std::vector<TerminalImage> terminals;
    std::vector<ExtentImage> extents;
    std::vector<FileEntry> files;  // in the order in which they are made
    std::vector<NamelessFile> nameless;
    SystemVImage system_v;
    uint32_t external_slots = 0;
    std::vector<VdsoPart> vdso;  // of any process of this kernel: of the one that captures
};

// Which process stands for a table of a process: itself, or the first of those that share it.
inline uint32_t holder_of(const TreeImage &tree, Table table, uint32_t process)
{
    uint32_t first = tree.processes[process].shared_with[static_cast<size_t>(table)];
    return first == kNoObject ? process : first;
}

}  // namespace venus
