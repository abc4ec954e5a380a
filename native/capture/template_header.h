// A template as data that outlives its process: this header, and descriptors in a fixed order
// (extents, then the plan). Pure: encodes, decodes, verifies; no system calls.
//
// Little endian, in this order:
//   u32 magic, u32 version, u32 size of all, u32 flags
//   u64 base, u64 entry, u64 plan size, u64 operations
//   u32 coordinator, u32 first descriptor, u32 size of the shared page, u32 external slots
//   plan: u64 device, u64 inode, 32 bytes SHA-256 of its content
//   u32 number of init's children, each: u32 pid
//   u32 number of counts, in the order of their names, each: u8 length, name, u64 value
//   u32 number of extents, each: u64 size, u64 device, u64 inode, u32 inherited,
//                                32 bytes SHA-256 (only with kHasDigests)
//   32 bytes SHA-256 of everything before
//
// Does not handle: other machines. Descriptors are of this boot, and so is the header.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "memory/extent.h"
#include "memory/sha256.h"
#include "restore/image.h"

namespace venus {

inline constexpr size_t kMaxTemplateHeaderBytes = 1 << 20;
inline constexpr size_t kMaxTemplateExtents = 8192;

struct SavedExtent {
    uint64_t size;
    FileIdentity identity;
    bool inherited;
    Digest digest;  // zero without has_digests
};

struct TemplateHeader {
    uint64_t base, entry, plan_bytes, operations;
    pid_t coordinator;
    uint32_t first_descriptor, shared_bytes, external_slots;
    FileIdentity plan_identity;
    Digest plan_digest;
    std::vector<pid_t> children_of_init;
    std::map<std::string, uint64_t> counts;
    bool has_digests;
    std::vector<SavedExtent> extents;
};

Bytes encode_template_header(const TemplateHeader &header);
// Throws os::Error, which names the field, unless every field is within its bounds.
TemplateHeader decode_template_header(const Bytes &bytes);
// Throws os::Error unless these bytes are the plan that the header speaks of.
void verify_plan(const TemplateHeader &header, const Bytes &plan);
// Which of the extents stand for anonymous memory. pre: verify_plan
std::vector<uint32_t> pool_extents(const Bytes &plan, size_t extents);

}  // namespace venus
