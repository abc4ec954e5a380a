#include "capture/template.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "os/checked.h"
#include "restore/refused.h"
#include "restore/runner_image.h"
#include "restore/transmission.h"

namespace venus {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// For state that ends by itself (Refused::passes).
constexpr std::chrono::milliseconds kPatience = 2s, kFirstPause = 5ms, kLongestPause = 80ms;

double milliseconds_since(Clock::time_point start)
{
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

os::UniqueFd sealed_file(const char *name, const Bytes &bytes)
{
    os::UniqueFd fd(checked(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING), "create", name));
    for (size_t at = 0; at < bytes.size();)
        at += static_cast<size_t>(
            checked(write(fd.get(), bytes.data() + at, bytes.size() - at), "write", name));
    checked(fcntl(fd.get(), F_ADD_SEALS, kTemplateSeals), "seal", name);
    return fd;
}

uint64_t bytes_of(const std::vector<ExtentPiece> &pieces)
{
    uint64_t bytes = 0;
    for (const ExtentPiece &piece : pieces)
        bytes += piece.run.size();
    return bytes;
}

// What each fork has a copy of from the start: shared memory, files in memory, locked areas.
uint64_t copied_bytes(const TreeImage &image)
{
    uint64_t bytes = 0;
    for (const OpenFile &object : image.objects)
        if (auto *memory = std::get_if<SharedMemoryFile>(&object))
            bytes += bytes_of(memory->content);
    for (const FileEntry &file : image.files)
        bytes += bytes_of(file.content);
    for (const NamelessFile &file : image.nameless)
        bytes += bytes_of(file.content);
    for (const SystemVMemory &memory : image.system_v.memories)
        bytes += bytes_of(memory.content);
    for (const ProcessImage &process : image.processes)
        for (const Mapping &mapping : process.mappings)
            if (mapping.locked)
                bytes += bytes_of(mapping.pieces);
    return bytes;
}

std::map<std::string, uint64_t> count(const TreeImage &image)
{
    std::map<std::string, uint64_t> counts = {{"processes", image.processes.size()},
                                              {"objects", image.objects.size()},
                                              {"copied_bytes", copied_bytes(image)}};
    for (const ProcessImage &process : image.processes) {
        counts["threads"] += process.threads.size();
        counts["mappings"] += process.mappings.size();
        for (const Mapping &mapping : process.mappings)
            counts["pieces"] += mapping.pieces.size();
    }
    return counts;
}

std::vector<pid_t> children_of_init_in(const TreeImage &image)
{
    std::vector<pid_t> pids;
    for (const ProcessImage &process : image.processes)
        if (process.parent == 1)
            pids.push_back(process.pid);
    return pids;
}

CaptureRequest copy_of(const CaptureRequest &request)
{
    CaptureRequest copy{request.init_host_pid, request.external,       {},
                        request.while_stopped, request.checkpoint,     request.reset_external,
                        request.tracking};
    for (const SealedExtent &extent : request.lineage.extents)
        copy.lineage.extents.push_back(duplicate(extent, extent.inherited));
    copy.lineage.plans = request.lineage.plans;
    return copy;
}

Template capture_once(CaptureRequest request, const std::function<void()> &released,
                      const std::string &leave_out)
{
    WriteTracking *tracking = request.tracking;
    auto start = Clock::now();
    CaptureState state = capture_tree(std::move(request));
    if (released)
        released();
    std::map<std::string, double> times = {{"capture", milliseconds_since(start)}};
    start = Clock::now();
    for (const SealedExtent &extent : state.extents)
        if (!extent.inherited)
            extent.seal();
    times["seal"] = milliseconds_since(start);
    start = Clock::now();
    RestorePlan plan = make_restore_plan(state.image, runner_image(), leave_out);
    times["plan"] = milliseconds_since(start);
    Template result(std::move(state), std::move(plan), std::move(times));
    if (tracking)
        tracking->settle();
    return result;
}

}  // namespace

Template::Template(CaptureState state, RestorePlan plan, std::map<std::string, double> times_ms)
    : tree_counts_(count(state.image)),
      external_slots_(state.image.external_slots),
      children_of_init_(children_of_init_in(state.image)),
      extents_(std::move(state.extents)),
      plan_(std::move(plan)),
      plan_file_(sealed_file("venus-plan", plan_.bytes)),
      times_ms_(std::move(times_ms))
{
}

Template::Template(const TemplateHeader &header, std::vector<SealedExtent> extents,
                   os::UniqueFd plan_file)
    : tree_counts_(header.counts),
      external_slots_(header.external_slots),
      children_of_init_(header.children_of_init),
      extents_(std::move(extents)),
      plan_{Bytes(header.plan_bytes), header.base,         header.entry,
            header.coordinator,       static_cast<int>(header.first_descriptor),
            header.shared_bytes,      header.operations},
      plan_file_(std::move(plan_file))
{
    ssize_t got = checked(pread(plan_file_.get(), plan_.bytes.data(), plan_.bytes.size(), 0), "read",
                          "plan");
    plan_.bytes.resize(static_cast<size_t>(got));
    verify_plan(header, plan_.bytes);
    for (uint32_t index : pool_extents(plan_.bytes, extents_.size()))
        extents_[index].anonymous = true;
}

Bytes Template::save(bool digests) const
{
    TemplateHeader header{};
    header.base = plan_.base;
    header.entry = plan_.entry;
    header.plan_bytes = plan_.bytes.size();
    header.operations = plan_.operations;
    header.coordinator = plan_.coordinator;
    header.first_descriptor = static_cast<uint32_t>(plan_.first_descriptor);
    header.shared_bytes = plan_.shared_bytes;
    header.external_slots = external_slots_;
    header.plan_identity = identity_of(plan_file_.get());
    header.plan_digest = sha256(plan_.bytes.data(), plan_.bytes.size());
    header.children_of_init = children_of_init_;
    header.counts = tree_counts_;
    header.has_digests = digests;
    for (const SealedExtent &extent : extents_)
        header.extents.push_back({extent.size, extent.identity, extent.inherited,
                                  digests ? content_digest(extent.fd.get(), extent.size) : Digest{}});
    return encode_template_header(header);
}

std::vector<int> Template::descriptors() const
{
    std::vector<int> descriptors;
    for (const SealedExtent &extent : extents_)
        descriptors.push_back(extent.fd.get());
    descriptors.push_back(plan_file_.get());
    return descriptors;
}

Template Template::load(const Bytes &bytes, const std::vector<int> &descriptors,
                        bool verify_digests)
{
    TemplateHeader header = decode_template_header(bytes);
    if (descriptors.size() != header.extents.size() + 1)
        throw os::Error("load template,", std::to_string(descriptors.size()) +
                        " descriptors instead of " + std::to_string(header.extents.size() + 1),
                        EBADMSG);
    if (verify_digests && !header.has_digests)
        throw os::Error("load template,", "header has no checksums of its extents", ENODATA);
    std::vector<SealedExtent> extents;
    for (size_t i = 0; i < header.extents.size(); i++) {
        const SavedExtent &saved = header.extents[i];
        std::string name = "extent " + std::to_string(i);
        extents.push_back(adopt_sealed(descriptors[i], saved.size, saved.identity, name));
        extents.back().inherited = saved.inherited;
        if (verify_digests && content_digest(descriptors[i], saved.size) != saved.digest)
            throw os::Error("load template,", name + ": its content is another", EBADMSG);
    }
    SealedExtent plan =
        adopt_sealed(descriptors.back(), header.plan_bytes, header.plan_identity, "plan");
    return Template(header, std::move(extents), std::move(plan.fd));
}

std::map<std::string, uint64_t> Template::counts() const
{
    std::map<std::string, uint64_t> counts = tree_counts_;
    counts["external_slots"] = external_slots_;
    counts["extents"] = extents_.size();
    counts["operations"] = plan_.operations;
    counts["plan_bytes"] = plan_.bytes.size();
    for (const SealedExtent &extent : extents_)
        counts[extent.inherited ? "inherited_bytes" : "extent_bytes"] += extent.memory_bytes();
    return counts;
}

int Template::create_shared_page() const
{
    os::UniqueFd fd(checked(memfd_create("venus-fork", MFD_CLOEXEC), "create", "shared page"));
    checked(ftruncate(fd.get(), plan_.shared_bytes), "size", "shared page");
    return fd.release();
}

void Template::send(int socket, int shared_page, const std::vector<int> &externals) const
{
    if (externals.size() != external_slots_)
        throw os::Error("fork with", std::to_string(externals.size()) + " external files", EINVAL);
    std::vector<int> descriptors;
    for (const SealedExtent &extent : extents_)
        descriptors.push_back(extent.fd.get());
    descriptors.insert(descriptors.end(), externals.begin(), externals.end());
    descriptors.push_back(shared_page);
    descriptors.push_back(plan_file_.get());
    send_plan(plan_, socket, descriptors);
}

std::string Template::failure(int shared_page) const
{
    Bytes page(plan_.shared_bytes);
    checked(pread(shared_page, page.data(), page.size(), 0), "read", "shared page");
    return describe_failure(plan_, page.data());
}

void Template::collapse() const
{
    for (const SealedExtent &extent : extents_)
        extent.collapse();
}

std::vector<std::vector<PageRun>> Template::huge_runs() const
{
    std::vector<std::vector<PageRun>> runs;
    for (const SealedExtent &extent : extents_)
        runs.push_back(extent.huge);
    return runs;
}

void Template::remember(std::vector<std::vector<PageRun>> huge,
                        std::map<std::string, double> times_ms)
{
    for (size_t i = 0; i < extents_.size(); i++)
        extents_[i].huge = std::move(huge.at(i));
    times_ms_ = std::move(times_ms);
}

Lineage Template::lineage() const
{
    Lineage lineage;
    for (const SealedExtent &extent : extents_)
        lineage.extents.push_back(duplicate(extent, true));
    lineage.plans.push_back(identity_of(plan_file_.get()));
    return lineage;
}

std::vector<ExternalEnd> external_ends(const std::vector<int> &descriptors)
{
    std::vector<ExternalEnd> ends;
    for (int fd : descriptors) {
        ends.push_back({fd, identity_of(fd), -1});
        unsigned index;
        if (ioctl(fd, TIOCGPTN, &index) == 0)
            ends.back().terminal = static_cast<int>(index);
    }
    return ends;
}

Template capture_template(const CaptureRequest &request, const std::function<void()> &released,
                          const std::string &leave_out)
{
    auto give_up = Clock::now() + kPatience;
    for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
        std::optional<Template> result;
        std::exception_ptr failure;
        // ptrace belongs to a thread; what goes wrong half way is released with it at the latest.
        std::thread([&] {
            try {
                result = capture_once(copy_of(request), released, leave_out);
            } catch (...) {
                failure = std::current_exception();
            }
        }).join();
        if (!failure)
            return std::move(*result);
        try {
            std::rethrow_exception(failure);
        } catch (const Refused &refused) {
            if (!refused.passes() || Clock::now() > give_up)
                throw;
        }
        std::this_thread::sleep_for(pause);
    }
}

}  // namespace venus
