// The header of a saved template and its plan. Sizes and checksums are made to fit first, so that what
// lies behind them is tried.
#include <string.h>

#include <algorithm>

#include "capture/template_header.h"
#include "fuzz.h"
#include "os/error.h"
#include "venus_restore_format.h"

using namespace venus;

namespace {

constexpr size_t kSizeOffset = 2 * sizeof(uint32_t);

void decode(Bytes bytes)
{
    if (bytes.size() >= kSizeOffset + sizeof(uint32_t) + sizeof(Digest)) {
        auto size = static_cast<uint32_t>(bytes.size());
        memcpy(bytes.data() + kSizeOffset, &size, sizeof size);
        size_t signed_bytes = bytes.size() - sizeof(Digest);
        Digest digest = sha256(bytes.data(), signed_bytes);
        memcpy(bytes.data() + signed_bytes, digest.data(), digest.size());
    }
    TemplateHeader header = decode_template_header(bytes);
    REQUIRE(encode_template_header(header) == bytes);
}

void read_plan(const Bytes &plan)
{
    constexpr size_t kExtents = 4;
    vr_header own{};
    std::copy_n(plan.data(), std::min(sizeof own, plan.size()), reinterpret_cast<uint8_t *>(&own));
    TemplateHeader header{};
    header.base = own.base;
    header.entry = own.entry;
    header.plan_bytes = plan.size();
    header.shared_bytes = own.shared_bytes;
    header.plan_digest = sha256(plan.data(), plan.size());
    header.extents.resize(kExtents);
    header.first_descriptor = own.shared_fd - kExtents;
    verify_plan(header, plan);
    for (uint32_t index : pool_extents(plan, kExtents))
        REQUIRE(index < kExtents);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0)
        return 0;
    Bytes rest(bytes + 1, bytes + size);
    try {
        bytes[0] & 1 ? read_plan(rest) : decode(rest);
    } catch (const os::Error &) {
        // Refused, and said why.
    }
    return 0;
}
