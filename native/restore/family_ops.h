// Operations of a whole tree of processes: births, the stages at which all wait for all, and each
// one's way into its program.
#pragma once

#include <map>

#include "restore/creation.h"
#include "restore/layout.h"
#include "restore/plan_writer.h"
#include "restore/tail.h"

namespace venus {

class FamilyWriter {
public:
    FamilyWriter(const ProcessPlanContext &context, const CreationPlan &creation,
                 const std::vector<Tail> &tails, const vr_header &header, PlanWriter &writer);

    // For the coordinator: until everybody has its memory.
    void create_all(OpList &coordinator);
    // For the coordinator: until everybody goes into its program.
    void see_all_through(OpList &coordinator);
    // Of all but the coordinator.
    size_t operations() const { return operations_; }

private:
    // The tree waits for its last member at each of these. All of them wait at kRunning for the
    // coordinator: the last to come tells it (kGathered), and it waits for the daemon (kReleased)
    // first.
    enum Stage : Word {
        kBorn,
        kBuilt,
        kGathered,
        kReleased = VR_RELEASE_BARRIER,
        kRunning,
        kReady,
        kFirstOrphaned,
        kThreaded,     // where files are made late
        kFilesOpened,  // likewise
        kSettled,      // likewise
    };
    static_assert(Word{kSettled} < VR_TREE_BARRIERS);
    static constexpr Word kNobody = ~Word{0};

    struct Group {  // of processes with a table in common
        size_t members = 0;
        Word barrier = kNobody;
    };

    Word new_barrier();
    void find_groups();
    size_t threads(bool with_stopped) const;
    size_t living() const;
    void find_late();
    bool is_late_itself(const ProcessImage &process) const;
    bool anything_is_late() const;
    void wait_for_release(OpList &ops);
    size_t tables() const;  // of descriptors
    static void wait_at(Word stage, size_t participants, OpList &ops);
    void wait_for_sharers(Table table, uint32_t index, OpList &ops);
    void lock(const Birth &birth, OpList &ops, vr_kind kind) const;

    void add_birth(const Birth &birth, const Birth *creator, OpList &ops);
    void end_helpers(const Birth *own, const std::vector<std::unique_ptr<Birth>> &children,
                     OpList &ops);
    static size_t early_helpers(const std::vector<std::unique_ptr<Birth>> &births);
    Word write_process(const Birth &birth);
    static void add_mark_ops(const Tail &tail, OpList &ops);
    void add_end(const ProcessImage *process, OpList &ops);
    void add_life(const Birth &birth, const ProcessImage &process, uint32_t index, OpList &ops);
    void add_signals_and_filters(const Birth &birth, const ProcessImage &process, uint32_t index,
                                 OpList &ops);
    void add_tables(const Birth &birth, const ProcessImage &process, uint32_t index, OpList &ops);
    void wait_until_ready(OpList &ops);
    void add_descriptors(const DescriptorTable &table, OpList &ops);
    void await_children(const ProcessImage &process, OpList &ops);
    void add_thread(const ProcessImage &process, uint32_t index, size_t number, OpList &leader);
    void add_leave(const ProcessImage &process, uint32_t index, size_t number, OpList &ops);
    size_t stack_of(const Birth *birth) const;

    const ProcessPlanContext &context_;
    const CreationPlan &creation_;
    const std::vector<Tail> &tails_;
    const vr_header &header_;
    PlanWriter &writer_;
    size_t early_helpers_;
    bool late_files_;
    std::map<std::pair<Table, uint32_t>, Group> groups_;  // by the process that stands for all
    std::map<uint32_t, Word> locks_;                      // of descriptor tables
    // Processes that still have something to do after the release.
    std::vector<bool> late_;
    Word next_barrier_ = VR_TREE_BARRIERS + 2 * VR_MAX_PROCESSES;
    size_t operations_ = 0;
};

}  // namespace venus
