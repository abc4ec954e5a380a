// The header of a saved template: all of it comes back, and no bytes whatever make its parser read
// outside of them or let a field out of its bounds (always built with sanitizers).
#include <errno.h>

#include <functional>
#include <optional>

#include "check.h"
#include "os/error.h"
#include "saved_template.h"

namespace {

using namespace venus;

constexpr size_t kDigestBytes = sizeof(Digest);

TemplateHeader example()
{
    std::vector<SavedExtent> extents = {{3 * kPageBytes, {1, 77}, false, {1, 2, 3}},
                                        {9 * kPageBytes, {1, 78}, true, {}}};
    return small_header(small_plan(2, 1), extents, 1);
}

std::string error_of(const std::function<void()> &act)
{
    try {
        act();
    } catch (const os::Error &error) {
        return error.what();
    }
    return "";
}

std::string decoding_error(const Bytes &bytes)
{
    return error_of([&] { decode_template_header(bytes); });
}

bool names(const std::string &error, const char *what)
{
    return error.find(what) != std::string::npos;
}

// With a checksum that fits again, so that what lies behind the checksum is tried.
Bytes sign(Bytes bytes)
{
    if (bytes.size() < kDigestBytes)
        return bytes;
    Digest digest = sha256(bytes.data(), bytes.size() - kDigestBytes);
    memcpy(bytes.data() + bytes.size() - kDigestBytes, digest.data(), kDigestBytes);
    return bytes;
}

void test_sha256_is_that_of_the_standard()
{
    auto hex = [](const std::string &text) {
        std::string result;
        for (uint8_t byte : sha256(text.data(), text.size())) {
            char digits[3];
            snprintf(digits, sizeof digits, "%02x", byte);
            result += digits;
        }
        return result;
    };
    CHECK(hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(hex(std::string(1000000, 'a')) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

void test_sha256_does_not_depend_on_the_pieces()
{
    std::string text(1000, 'x');
    for (size_t first = 0; first < 200; first++) {
        Sha256 hash;
        hash.add(text.data(), first);
        hash.add(text.data() + first, text.size() - first);
        CHECK(hash.finish() == sha256(text.data(), text.size()));
    }
}

void test_all_comes_back()
{
    TemplateHeader saved = example();
    Bytes bytes = encode_template_header(saved);
    TemplateHeader read = decode_template_header(bytes);
    CHECK(encode_template_header(read) == bytes);
    CHECK(read.coordinator == 12 && read.counts == saved.counts && read.extents.size() == 2);
    CHECK(read.children_of_init == saved.children_of_init);
    CHECK(read.extents[1].inherited && read.extents[1].identity == saved.extents[1].identity);
    CHECK(read.extents[0].digest == saved.extents[0].digest);
    saved.has_digests = false;
    Bytes shorter = encode_template_header(saved);
    CHECK(shorter.size() == bytes.size() - 2 * kDigestBytes);
    CHECK(!decode_template_header(shorter).has_digests);
}

void test_errors_name_the_field()
{
    struct {
        const char *field;
        std::function<void(TemplateHeader &)> spoil;
    } cases[] = {
        {"base", [](TemplateHeader &header) { header.base += 1; }},
        {"base", [](TemplateHeader &header) { header.base = 0x7ffffffff000 - kPageBytes; }},
        {"entry", [](TemplateHeader &header) { header.entry = kPlanBytes; }},
        {"plan size", [](TemplateHeader &header) { header.plan_bytes = 0; }},
        {"plan size", [](TemplateHeader &header) { header.plan_bytes = uint64_t{1} << 30; }},
        {"operations", [](TemplateHeader &header) { header.operations = 0; }},
        {"coordinator", [](TemplateHeader &header) { header.coordinator = -1; }},
        {"first descriptor", [](TemplateHeader &header) { header.first_descriptor = 3; }},
        {"shared page", [](TemplateHeader &header) { header.shared_bytes = 8; }},
        {"external slots", [](TemplateHeader &header) { header.external_slots = 1u << 31; }},
        {"pid of a child", [](TemplateHeader &header) { header.children_of_init[1] = 1; }},
        {"number of children",
         [](TemplateHeader &header) { header.children_of_init.assign(1025, 2); }},
        {"name of a count", [](TemplateHeader &header) { header.counts = {{"a b", 1}}; }},
        {"length of a count's name", [](TemplateHeader &header) { header.counts = {{"", 1}}; }},
        {"size of an extent", [](TemplateHeader &header) { header.extents[0].size = 0; }},
        {"size of an extent", [](TemplateHeader &header) { header.extents[0].size = 5000; }},
    };
    for (const auto &each : cases) {
        TemplateHeader header = example();
        each.spoil(header);
        CHECK(names(decoding_error(encode_template_header(header)), each.field));
    }
    Bytes bytes = encode_template_header(example());
    bytes[4] = 9;
    CHECK(names(decoding_error(bytes), "version 9"));
    CHECK(names(decoding_error({}), "ends before magic"));
    bytes = encode_template_header(example());
    bytes[100] ^= 1;
    CHECK(names(decoding_error(bytes), "checksum"));
}

void test_too_much_is_not_saved()
{
    TemplateHeader header = example();
    header.extents.assign(kMaxTemplateExtents + 1, header.extents[0]);
    CHECK(names(error_of([&] { encode_template_header(header); }), "8193 extents"));
    header.extents.pop_back();
    CHECK(decode_template_header(encode_template_header(header)).extents.size() ==
          kMaxTemplateExtents);
}

void test_every_truncation_is_refused()
{
    Bytes whole = encode_template_header(example());
    for (size_t size = 0; size < whole.size(); size++) {
        Bytes cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
        CHECK(decoding_error(cut) != "");
        if (size >= 12 + kDigestBytes) {
            for (size_t i = 0; i < 4; i++)
                cut[8 + i] = static_cast<uint8_t>(size >> (8 * i));
            CHECK(decoding_error(sign(cut)) != "");
        }
    }
}

uint32_t random_state = 1;

uint32_t next_random()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

void test_mutations()
{
    static constexpr uint8_t interesting[] = {0, 1, 2, 16, 127, 128, 255};
    const Bytes valid = encode_template_header(example());
    unsigned accepted = 0, refused = 0;
    for (int round = 0; round < 40000; round++) {
        Bytes bytes = valid;
        for (unsigned i = 1 + next_random() % 4; i > 0; i--)
            bytes[next_random() % bytes.size()] = interesting[next_random() % 7];
        if (next_random() % 4 == 0)
            bytes.resize(next_random() % (bytes.size() + 64));
        if (bytes.size() >= 12 && next_random() % 4 != 0)
            for (size_t i = 0; i < 4; i++)
                bytes[8 + i] = static_cast<uint8_t>(bytes.size() >> (8 * i));
        Bytes checked = next_random() % 8 == 0 ? bytes : sign(bytes);
        try {
            // What is taken is understood wholly: writing it again gives the same bytes.
            CHECK(encode_template_header(decode_template_header(checked)) == checked);
            accepted++;
        } catch (const os::Error &error) {
            CHECK(error.error_number() == EBADMSG || error.error_number() == EPROTONOSUPPORT);
            refused++;
        }
    }
    CHECK(accepted > 1000 && refused > 1000);  // otherwise the mutations prove nothing
}

void test_the_plan_must_be_the_one()
{
    const Bytes plan = small_plan(2, 1);
    const TemplateHeader header = example();
    CHECK(error_of([&] { verify_plan(header, plan); }) == "");
    for (size_t at = 0; at < plan.size(); at += 7) {
        Bytes other = plan;
        other[at] ^= 1;
        CHECK(error_of([&] { verify_plan(header, other); }) != "");
        // Also when the header speaks of this content: only what the header has no word for may
        // differ then.
        TemplateHeader fitting = header;
        fitting.plan_digest = sha256(other.data(), other.size());
        try {
            verify_plan(fitting, other);
        } catch (const os::Error &) {
        }
    }
    CHECK(error_of([&] { verify_plan(header, {}); }) != "");
    TemplateHeader more = header;
    more.extents.pop_back();
    CHECK(names(error_of([&] { verify_plan(more, plan); }), "does not describe"));
}

}  // namespace

int main()
{
    test_sha256_is_that_of_the_standard();
    test_sha256_does_not_depend_on_the_pieces();
    test_all_comes_back();
    test_errors_name_the_field();
    test_too_much_is_not_saved();
    test_every_truncation_is_refused();
    test_mutations();
    test_the_plan_must_be_the_one();
    return 0;
}
