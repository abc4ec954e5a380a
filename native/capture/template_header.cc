#include "capture/template_header.h"

#include <string.h>

#include <algorithm>
#include <type_traits>

#include "os/error.h"
#include "venus_restore_format.h"

namespace venus {
namespace {

constexpr uint32_t kMagic = 0x54534e56;  // "VNST"
constexpr uint32_t kVersion = 1;
constexpr uint32_t kHasDigests = 1;
constexpr uint64_t kAddressSpaceEnd = 0x7ffffffff000;
constexpr uint64_t kMaxPlanBytes = uint64_t{1} << 29;
constexpr uint64_t kMaxExtentBytes = uint64_t{1} << 46;
constexpr uint32_t kMaxPid = 1 << 22;
constexpr uint32_t kMaxDescriptor = 1 << 20;
constexpr uint32_t kMaxExternalSlots = 4096;
constexpr uint32_t kMaxSharedBytes = 1 << 20;
constexpr uint32_t kMaxCounts = 64;
constexpr uint8_t kMaxCountName = 32;

[[noreturn]] void refuse(const std::string &what)
{
    throw os::Error("load template,", what, EBADMSG);
}

class Writer {
public:
    template <typename Number>
    void number(Number value)
    {
        static_assert(std::is_unsigned_v<Number>);
        for (size_t i = 0; i < sizeof value; i++)
            bytes.push_back(static_cast<uint8_t>(value >> (8 * i)));
    }
    void raw(const void *data, size_t size)
    {
        auto *first = static_cast<const uint8_t *>(data);
        bytes.insert(bytes.end(), first, first + size);
    }
    void identity(const FileIdentity &identity)
    {
        number<uint64_t>(identity.device);
        number<uint64_t>(identity.inode);
    }

    Bytes bytes;
};

class Reader {
public:
    Reader(const uint8_t *bytes, size_t size) : at_(bytes), left_(size) {}

    template <typename Number>
    Number number(const char *field)
    {
        static_assert(std::is_unsigned_v<Number>);
        uint8_t raw_value[sizeof(Number)];
        raw(raw_value, sizeof raw_value, field);
        Number value = 0;
        for (size_t i = 0; i < sizeof value; i++)
            value = static_cast<Number>(value | static_cast<Number>(raw_value[i]) << (8 * i));
        return value;
    }
    template <typename Number>
    Number number(const char *field, Number least, Number most)
    {
        Number value = number<Number>(field);
        if (value < least || value > most)
            refuse(std::string("header field ") + field + ": " + std::to_string(value));
        return value;
    }
    uint64_t pages(const char *field, uint64_t least, uint64_t most)
    {
        uint64_t value = number<uint64_t>(field, least, most);
        if (value % kPageBytes != 0)
            refuse(std::string("header field ") + field + ": not whole pages");
        return value;
    }
    void raw(void *target, size_t size, const char *field)
    {
        if (size > left_)
            refuse(std::string("header ends before ") + field);
        memcpy(target, at_, size);
        at_ += size;
        left_ -= size;
    }
    FileIdentity identity(const char *field)
    {
        FileIdentity identity{};
        identity.device = number<uint64_t>(field);
        identity.inode = number<uint64_t>(field);
        return identity;
    }
    Digest digest(const char *field)
    {
        Digest digest;
        raw(digest.data(), digest.size(), field);
        return digest;
    }
    size_t left() const { return left_; }

private:
    const uint8_t *at_;
    size_t left_;
};

std::string read_count_name(Reader &reader)
{
    std::string name(reader.number<uint8_t>("length of a count's name", 1, kMaxCountName), '\0');
    reader.raw(name.data(), name.size(), "name of a count");
    for (char letter : name)
        if (letter != '_' && (letter < 'a' || letter > 'z'))
            refuse("header field name of a count");
    return name;
}

void check_frame(const Bytes &bytes, Reader &reader)
{
    if (bytes.size() > kMaxTemplateHeaderBytes)
        refuse("header of " + std::to_string(bytes.size()) + " bytes");
    reader.number<uint32_t>("magic", kMagic, kMagic);
    if (uint32_t version = reader.number<uint32_t>("version"); version != kVersion)
        throw os::Error("load template,", "header of version " + std::to_string(version) +
                        " where this program knows " + std::to_string(kVersion), EPROTONOSUPPORT);
    auto size = static_cast<uint32_t>(bytes.size());
    reader.number<uint32_t>("size of all", size, size);
    if (bytes.size() < sizeof(Digest))
        refuse("header without checksum");
    Digest digest = sha256(bytes.data(), bytes.size() - sizeof(Digest));
    if (memcmp(digest.data(), bytes.data() + bytes.size() - sizeof digest, sizeof digest) != 0)
        refuse("header's checksum");
}

}  // namespace

Bytes encode_template_header(const TemplateHeader &header)
{
    Writer body;
    body.number<uint32_t>(header.has_digests ? kHasDigests : 0);
    body.number<uint64_t>(header.base);
    body.number<uint64_t>(header.entry);
    body.number<uint64_t>(header.plan_bytes);
    body.number<uint64_t>(header.operations);
    body.number(static_cast<uint32_t>(header.coordinator));
    body.number<uint32_t>(header.first_descriptor);
    body.number<uint32_t>(header.shared_bytes);
    body.number<uint32_t>(header.external_slots);
    body.identity(header.plan_identity);
    body.raw(header.plan_digest.data(), header.plan_digest.size());
    body.number(static_cast<uint32_t>(header.children_of_init.size()));
    for (pid_t pid : header.children_of_init)
        body.number(static_cast<uint32_t>(pid));
    body.number(static_cast<uint32_t>(header.counts.size()));
    for (const auto &[name, value] : header.counts) {
        body.number(static_cast<uint8_t>(name.size()));
        body.raw(name.data(), name.size());
        body.number<uint64_t>(value);
    }
    body.number(static_cast<uint32_t>(header.extents.size()));
    for (const SavedExtent &extent : header.extents) {
        body.number<uint64_t>(extent.size);
        body.identity(extent.identity);
        body.number<uint32_t>(extent.inherited);
        if (header.has_digests)
            body.raw(extent.digest.data(), extent.digest.size());
    }
    Writer whole;
    whole.number<uint32_t>(kMagic);
    whole.number<uint32_t>(kVersion);
    whole.number(static_cast<uint32_t>(3 * sizeof(uint32_t) + body.bytes.size() + sizeof(Digest)));
    whole.raw(body.bytes.data(), body.bytes.size());
    Digest digest = sha256(whole.bytes.data(), whole.bytes.size());
    whole.raw(digest.data(), digest.size());
    if (whole.bytes.size() > kMaxTemplateHeaderBytes || header.extents.size() > kMaxTemplateExtents)
        throw os::Error("save template of", std::to_string(header.extents.size()) + " extents",
                        E2BIG);
    return std::move(whole.bytes);
}

TemplateHeader decode_template_header(const Bytes &bytes)
{
    Reader reader(bytes.data(), bytes.size());
    check_frame(bytes, reader);
    TemplateHeader header{};
    header.has_digests = reader.number<uint32_t>("flags", 0, kHasDigests) != 0;
    header.base = reader.pages("base", kPageBytes, kAddressSpaceEnd);
    header.entry = reader.number<uint64_t>("entry");
    header.plan_bytes = reader.pages("plan size", kPageBytes, kMaxPlanBytes);
    if (header.base > kAddressSpaceEnd - header.plan_bytes)
        refuse("header field base: the plan does not fit behind it");
    if (header.entry >= header.plan_bytes)
        refuse("header field entry: outside of the plan");
    header.operations = reader.number<uint64_t>("operations", 1, header.plan_bytes);
    header.coordinator = static_cast<pid_t>(reader.number<uint32_t>("coordinator", 2, kMaxPid));
    header.first_descriptor =
        reader.number<uint32_t>("first descriptor", VR_MIN_FIRST_FD, kMaxDescriptor);
    header.shared_bytes = reader.number<uint32_t>("size of the shared page",
                                                  uint32_t{sizeof(vr_shared)}, kMaxSharedBytes);
    header.external_slots = reader.number<uint32_t>("external slots", 0, kMaxExternalSlots);
    header.plan_identity = reader.identity("identity of the plan");
    header.plan_digest = reader.digest("checksum of the plan");
    auto children = reader.number<uint32_t>("number of children", 0, uint32_t{VR_MAX_PROCESSES});
    for (uint32_t i = 0; i < children; i++)
        header.children_of_init.push_back(
            static_cast<pid_t>(reader.number<uint32_t>("pid of a child", 2, kMaxPid)));
    for (auto left = reader.number<uint32_t>("number of counts", 0, kMaxCounts); left > 0; left--) {
        std::string name = read_count_name(reader);
        auto value = reader.number<uint64_t>("count");
        if (!header.counts.emplace(name, value).second)
            refuse("header field " + name + ": it is there twice");
        if (header.counts.rbegin()->first != name)
            refuse("header field " + name + ": it is not in its place");
    }
    auto extents = reader.number<uint32_t>("number of extents", 0, uint32_t{kMaxTemplateExtents});
    for (uint32_t i = 0; i < extents; i++) {
        SavedExtent extent{};
        extent.size = reader.pages("size of an extent", kPageBytes, kMaxExtentBytes);
        extent.identity = reader.identity("identity of an extent");
        extent.inherited = reader.number<uint32_t>("inherited", 0, 1) != 0;
        if (header.has_digests)
            extent.digest = reader.digest("checksum of an extent");
        header.extents.push_back(extent);
    }
    if (reader.left() != sizeof(Digest))
        refuse("header with bytes that belong to nothing");
    return header;
}

void verify_plan(const TemplateHeader &header, const Bytes &plan)
{
    vr_header own;
    if (plan.size() != header.plan_bytes || plan.size() < sizeof own)
        refuse("plan of " + std::to_string(plan.size()) + " bytes");
    if (sha256(plan.data(), plan.size()) != header.plan_digest)
        refuse("plan's checksum");
    memcpy(&own, plan.data(), sizeof own);
    if (own.magic != VR_MAGIC || own.version != VR_VERSION)
        throw os::Error("load template,", "plan of version " + std::to_string(own.version) +
                        " where this program knows " + std::to_string(VR_VERSION), EPROTONOSUPPORT);
    // After extents and externals, see lay_out_descriptors.
    uint64_t shared = uint64_t{header.first_descriptor} + header.extents.size() +
                      header.external_slots;
    if (own.base != header.base || own.entry != header.entry ||
        own.plan_bytes != header.plan_bytes || own.shared_bytes != header.shared_bytes ||
        own.shared_fd != shared)
        refuse("plan that the header does not describe");
}

std::vector<uint32_t> pool_extents(const Bytes &plan, size_t extents)
{
    vr_header own;
    memcpy(&own, plan.data(), sizeof own);
    if (own.pool > plan.size() || own.pool_count > (plan.size() - own.pool) / sizeof(uint32_t))
        refuse("plan that lists extents behind its end");
    std::vector<uint32_t> indices(own.pool_count);
    std::copy_n(plan.data() + own.pool, indices.size() * sizeof(uint32_t),
                reinterpret_cast<uint8_t *>(indices.data()));
    for (uint32_t index : indices)
        if (index >= extents)
            refuse("plan that lists extent " + std::to_string(index) + " of " +
                   std::to_string(extents));
    return indices;
}

}  // namespace venus
