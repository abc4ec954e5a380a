// A plan and a header that fit each other, for the tests of saved templates.
#pragma once

#include <string.h>

#include "capture/template_header.h"
#include "venus_restore_format.h"

namespace venus {

inline constexpr uint64_t kPlanBytes = 2 * kPageBytes;
inline constexpr uint32_t kSharedBytes =
    (sizeof(vr_shared) + kPageBytes - 1) / kPageBytes * kPageBytes;

// As lay_out_descriptors numbers them: extents, externals, the shared page.
inline Bytes small_plan(uint32_t extents, uint32_t externals)
{
    vr_header header{};
    header.magic = VR_MAGIC;
    header.version = VR_VERSION;
    header.entry = 0x140;
    header.base = 0x100000000000;
    header.plan_bytes = kPlanBytes;
    header.shared_bytes = kSharedBytes;
    header.shared_fd = 70 + extents + externals;
    Bytes plan(kPlanBytes);
    memcpy(plan.data(), &header, sizeof header);
    return plan;
}

inline TemplateHeader small_header(const Bytes &plan, std::vector<SavedExtent> extents,
                                   uint32_t externals)
{
    TemplateHeader header{};
    header.base = 0x100000000000;
    header.entry = 0x140;
    header.plan_bytes = plan.size();
    header.operations = 9;
    header.coordinator = 12;
    header.first_descriptor = 70;
    header.shared_bytes = kSharedBytes;
    header.external_slots = externals;
    header.plan_identity = {3, 4};
    header.plan_digest = sha256(plan.data(), plan.size());
    header.children_of_init = {2, 5};
    header.counts = {{"processes", 1}, {"threads", 8}};
    header.has_digests = true;
    header.extents = std::move(extents);
    return header;
}

}  // namespace venus
