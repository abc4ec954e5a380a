#include "tracer/capture_notes.h"

namespace venus {

void put_lineage(Message &message, const Lineage &lineage)
{
    message.put(lineage.extents.size());
    for (const SealedExtent &extent : lineage.extents) {
        message.put(extent.size);
        message.put(extent.anonymous);
        message.to_send.push_back(extent.fd.get());
    }
    message.put(lineage.plans.size());
    for (const FileIdentity &plan : lineage.plans) {
        message.put(plan.device);
        message.put(plan.inode);
    }
}

Lineage take_lineage(Message &message)
{
    Lineage lineage;
    for (uint64_t left = message.number(); left > 0; left--) {
        uint64_t size = message.number();
        bool anonymous = message.number();
        os::UniqueFd fd(message.take_fd());
        FileIdentity identity = identity_of(fd.get());
        lineage.extents.push_back({std::move(fd), size, identity, true, anonymous, {}});
    }
    for (uint64_t left = message.number(); left > 0; left--) {
        uint64_t device = message.number();
        lineage.plans.push_back({device, message.number()});
    }
    return lineage;
}

void put_notes(Message &message, const CaptureNotes &notes)
{
    for (const std::vector<PageRun> &runs : notes.huge) {
        message.put(runs.size());
        for (const PageRun &run : runs) {
            message.put(run.start);
            message.put(run.end);
        }
    }
    message.put(notes.times_ms.size());
    for (const auto &[name, milliseconds] : notes.times_ms) {
        message.put(name);
        message.put(static_cast<uint64_t>(milliseconds * 1e6));
    }
}

CaptureNotes take_notes(Message &message, size_t extents)
{
    CaptureNotes notes;
    notes.huge.resize(extents);
    for (std::vector<PageRun> &runs : notes.huge)
        for (uint64_t left = message.number(); left > 0; left--) {
            uint64_t start = message.number();
            runs.push_back({start, message.number()});
        }
    for (uint64_t left = message.number(); left > 0; left--) {
        std::string name = message.text();
        notes.times_ms[name] = static_cast<double>(message.number()) / 1e6;
    }
    return notes;
}

}  // namespace venus
