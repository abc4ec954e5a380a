// A template: sealed extents and a sealed plan, ready to be forked any number of times. Saved, it is
// a header (template_header.h) and descriptors, which another process makes it from again.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "capture/template_header.h"
#include "restore/restore_plan.h"
#include "restore/transmission.h"

namespace venus {

class Template {
public:
    Template(CaptureState state, RestorePlan plan, std::map<std::string, double> times_ms);

    // `digests`: record what the extents contain, which reads all of them.
    Bytes save(bool digests) const;
    // What the header speaks of: the extents in their order, then the plan. They stay the template's.
    std::vector<int> descriptors() const;
    // Duplicates the descriptors. Throws os::Error unless header, seals, sizes, identities and the
    // content of the plan are as they were saved; with `verify_digests` that of the extents too.
    static Template load(const Bytes &header, const std::vector<int> &descriptors,
                         bool verify_digests);

    pid_t coordinator() const { return plan_.coordinator; }
    std::map<std::string, uint64_t> counts() const;
    // Processes whose parent is init, which alone learns of their end.
    const std::vector<pid_t> &children_of_init() const { return children_of_init_; }
    const std::map<std::string, double> &times_ms() const { return times_ms_; }

    // One for each fork; the caller's to close.
    int create_shared_page() const;
    void send(int socket, int shared_page, const std::vector<int> &externals) const;
    // The tree waits for this before the program runs; see release_tree.
    static bool release(int shared_page) { return release_tree(shared_page); }
    // Makes huge pages of it; see SealedExtent::collapse.
    void collapse() const;
    const std::vector<SealedExtent> &extents() const { return extents_; }
    // What a saved header does not hold: of each extent what shall become huge pages, and the times.
    std::vector<std::vector<PageRun>> huge_runs() const;
    void remember(std::vector<std::vector<PageRun>> huge, std::map<std::string, double> times_ms);
    // For the capture of a sandbox that was forked from this.
    Lineage lineage() const;
    // Empty when no operation of the fork failed.
    std::string failure(int shared_page) const;

private:
    Template(const TemplateHeader &header, std::vector<SealedExtent> extents, os::UniqueFd plan_file);

    std::map<std::string, uint64_t> tree_counts_;
    uint32_t external_slots_;
    std::vector<pid_t> children_of_init_;
    std::vector<SealedExtent> extents_;
    RestorePlan plan_;
    os::UniqueFd plan_file_;
    std::map<std::string, double> times_ms_;
};

// Slots for descriptors of the caller that lead to files which belong to it.
std::vector<ExternalEnd> external_ends(const std::vector<int> &descriptors);

// `released`: called as soon as the sandbox runs again, as if nothing had been. `leave_out`: for tests of
// tests. State that cannot be held and ends by itself is waited for, up to 2 seconds, while the sandbox
// goes on; `while_stopped` runs once.
Template capture_template(const CaptureRequest &request,
                          const std::function<void()> &released = {},
                          const std::string &leave_out = "");

}  // namespace venus
