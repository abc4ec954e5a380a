#include "capture/template.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "os/checked.h"
#include "restore/runner_image.h"
#include "restore/transmission.h"

namespace venus {
namespace {

using Clock = std::chrono::steady_clock;

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
    checked(fcntl(fd.get(), F_ADD_SEALS,
                  F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
            "seal", name);
    return fd;
}

}  // namespace

Template::Template(CaptureState state, RestorePlan plan, std::map<std::string, double> times_ms)
    : image_(std::move(state.image)),
      extents_(std::move(state.extents)),
      plan_(std::move(plan)),
      plan_file_(sealed_file("venus-plan", plan_.bytes)),
      times_ms_(std::move(times_ms))
{
}

std::map<std::string, uint64_t> Template::counts() const
{
    std::map<std::string, uint64_t> counts = {{"processes", image_.processes.size()},
                                              {"objects", image_.objects.size()},
                                              {"external_slots", image_.external_slots},
                                              {"operations", plan_.operations},
                                              {"plan_bytes", plan_.bytes.size()}};
    for (const ProcessImage &process : image_.processes) {
        counts["threads"] += process.threads.size();
        counts["mappings"] += process.mappings.size();
        for (const Mapping &mapping : process.mappings)
            counts["pieces"] += mapping.pieces.size();
    }
    for (const SealedExtent &extent : extents_)
        counts[extent.inherited ? "inherited_bytes" : "extent_bytes"] += extent.size;
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
    std::vector<int> descriptors;
    for (const SealedExtent &extent : extents_)
        descriptors.push_back(extent.fd.get());
    if (externals.size() != image_.external_slots)
        throw os::Error("fork with", std::to_string(externals.size()) + " external files", EINVAL);
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

Lineage Template::lineage() const
{
    Lineage lineage;
    for (const SealedExtent &extent : extents_) {
        os::UniqueFd again(checked(fcntl(extent.fd.get(), F_DUPFD_CLOEXEC, 0), "duplicate", "extent"));
        lineage.extents.push_back({std::move(again), extent.size, extent.identity, true});
    }
    lineage.plans.push_back(identity_of(plan_file_.get()));
    return lineage;
}

Template capture_template(pid_t init_host_pid, const std::vector<int> &externals,
                          const std::function<void()> &while_stopped, const Template *parent,
                          const std::string &leave_out, const std::string &on_external)
{
    if (on_external != "refuse" && on_external != "reset")
        throw os::Error("capture with on_external", on_external, EINVAL);
    Lineage lineage = parent ? parent->lineage() : Lineage{};
    std::vector<FileIdentity> identities;
    for (int fd : externals)
        identities.push_back(identity_of(fd));
    std::optional<Template> result;
    std::exception_ptr failure;
    // ptrace belongs to a thread; what goes wrong half way is released with it at the latest.
    std::thread([&] {
        try {
            auto start = Clock::now();
            CaptureState state = capture_tree(
                init_host_pid, identities, std::move(lineage), while_stopped,
                on_external == "reset");
            std::map<std::string, double> times = {{"capture", milliseconds_since(start)}};
            start = Clock::now();
            RestorePlan plan = make_restore_plan(state.image, runner_image(), leave_out);
            times["plan"] = milliseconds_since(start);
            result.emplace(std::move(state), std::move(plan), std::move(times));
        } catch (...) {
            failure = std::current_exception();
        }
    }).join();
    if (failure)
        std::rethrow_exception(failure);
    return std::move(*result);
}

}  // namespace venus
