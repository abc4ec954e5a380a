#include "restore/thread_ops.h"

#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "restore/refused.h"

namespace venus {
namespace {

constexpr int kSetFsBase = 0x1002, kSetGsBase = 0x1001;  // ARCH_SET_FS, ARCH_SET_GS
constexpr Word kUnchanged = ~Word{0};
constexpr size_t kCommBytes = 16;

struct SchedulingAttributes {  // struct sched_attr, first version
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

std::string describe(const ThreadImage &thread)
{
    return "thread " + std::to_string(thread.tid);
}

}  // namespace

void add_thread_ops(const ThreadImage &thread, OpList &ops)
{
    PlanWriter &writer = ops.writer();
    std::string object = describe(thread);
    ops.call(object + " name", SYS_prctl, {PR_SET_NAME, writer.text(thread.name.substr(0, kCommBytes - 1))});
    ops.call(object + " tid address", SYS_set_tid_address, {thread.clear_child_tid}, thread.tid);
    if (thread.robust_list != 0)
        ops.call(object + " robust list", SYS_set_robust_list,
                 {thread.robust_list, thread.robust_list_bytes});
    if (thread.rseq_area != 0)
        ops.call(object + " rseq", SYS_rseq,
                 {thread.rseq_area, thread.rseq_bytes, 0, thread.rseq_signature});
    if (thread.policy != SCHED_OTHER && thread.policy != SCHED_BATCH && thread.policy != SCHED_IDLE)
        throw Refused(object, "its scheduling policy", "real-time scheduling is not supported");
    ops.call(object + " affinity", SYS_sched_setaffinity,
             {0, thread.affinity.size() * sizeof(uint64_t),
              writer.data(thread.affinity.data(), thread.affinity.size() * sizeof(uint64_t))});
    ops.call(object + " timer slack", SYS_prctl, {PR_SET_TIMERSLACK, thread.timer_slack_ns});
    ops.call(object + " fs base", SYS_arch_prctl, {kSetFsBase, thread.registers.fs_base});
    if (thread.registers.gs_base != 0)
        ops.call(object + " gs base", SYS_arch_prctl, {kSetGsBase, thread.registers.gs_base});
}

void add_bounding_set_ops(const ProcessImage &process, OpList &ops)
{
    const Credentials &credentials = process.threads[0].credentials;
    std::string object = describe(process.threads[0]);
    for (const ThreadImage &thread : process.threads)
        if (thread.credentials.bounding != credentials.bounding)
            throw Refused(describe(thread), "its capability bounding set",
                          "it differs from that of its process");
    for (unsigned capability = 0; capability <= CAP_LAST_CAP; capability++)
        if ((credentials.bounding & uint64_t{1} << capability) == 0)
            ops.call(object + " bounding set", SYS_prctl, {PR_CAPBSET_DROP, capability});
}

void add_credential_ops(const ThreadImage &thread, OpList &ops)
{
    PlanWriter &writer = ops.writer();
    const Credentials &credentials = thread.credentials;
    std::string object = describe(thread);
    ops.call(object + " groups", SYS_setgroups,
             {credentials.groups.size(),
              writer.data(credentials.groups.data(), credentials.groups.size() * sizeof(uint32_t))});
    ops.call(object + " gid", SYS_setresgid,
             {credentials.gid[0], credentials.gid[1], credentials.gid[2]});
    if (credentials.gid[3] != credentials.gid[1])
        ops.call(object + " fsgid", SYS_setfsgid, {credentials.gid[3]}, credentials.gid[1]);
    // Until the ids are set nothing may take capabilities away.
    ops.call(object + " securebits", SYS_prctl,
             {PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP});
    ops.call(object + " uid", SYS_setresuid,
             {credentials.uid[0], credentials.uid[1], credentials.uid[2]});
    if (credentials.uid[3] != credentials.uid[1])
        ops.call(object + " fsuid", SYS_setfsuid, {credentials.uid[3]}, credentials.uid[1]);
    ops.call(object + " securebits", SYS_prctl, {PR_SET_SECUREBITS, credentials.securebits});
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct sets[2];
    for (unsigned half = 0; half < 2; half++) {
        sets[half].effective = static_cast<uint32_t>(credentials.effective >> 32 * half);
        sets[half].permitted = static_cast<uint32_t>(credentials.permitted >> 32 * half);
        sets[half].inheritable = static_cast<uint32_t>(credentials.inheritable >> 32 * half);
    }
    ops.call(object + " capabilities", SYS_capset,
             {writer.object(header), writer.data(sets, sizeof sets)});
    for (unsigned capability = 0; capability <= CAP_LAST_CAP; capability++)
        if (credentials.ambient & uint64_t{1} << capability)
            ops.call(object + " ambient set", SYS_prctl,
                     {PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0});
    // Stubs inherit the short slice of init: runtime 0 gives the ordinary one back.
    SchedulingAttributes attributes{};
    attributes.size = sizeof attributes;
    attributes.policy = static_cast<uint32_t>(thread.policy);
    attributes.flags = thread.scheduling_flags;
    attributes.runtime = thread.slice_ns;
    attributes.nice = thread.nice;
    ops.call(object + " scheduling", SYS_sched_setattr, {0, writer.object(attributes), 0});
    if (credentials.no_new_privs)
        ops.call(object + " no_new_privs", SYS_prctl, {PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0});
}

void add_death_signal_ops(const ThreadImage &thread, OpList &ops)
{
    if (thread.parent_death_signal != 0)
        ops.call(describe(thread) + " parent death signal", SYS_prctl,
                 {PR_SET_PDEATHSIG, thread.parent_death_signal});
}

void add_pending_signal_ops(const ProcessImage &process, const ThreadImage &thread, OpList &ops)
{
    PlanWriter &writer = ops.writer();
    auto number_of = [](const Bytes &info) {
        int number;
        memcpy(&number, info.data(), sizeof number);
        return word(number);
    };
    if (thread.tid == process.pid)
        for (const Bytes &info : process.pending_signals)
            ops.call("pending signal", SYS_rt_sigqueueinfo,
                     {word(process.pid), number_of(info), writer.data(info)});
    for (const Bytes &info : thread.pending_signals)
        ops.call("pending signal", SYS_rt_tgsigqueueinfo,
                 {word(process.pid), word(thread.tid), number_of(info), writer.data(info)});
}

}  // namespace venus
