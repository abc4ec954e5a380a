// Templates that are saved and made again from header and descriptors, with real sealed files.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>

#include "capture/template.h"
#include "check.h"
#include "os/error.h"
#include "saved_template.h"

namespace {

using namespace venus;

SealedExtent filled_extent(uint64_t pages, uint8_t value)
{
    ExtentWriter writer(pages * kPageBytes);
    std::vector<uint8_t> page(kPageBytes, value);
    writer.write(0, page.data(), page.size());
    SealedExtent extent = writer.finish(false);
    extent.seal();
    return extent;
}

Template example()
{
    CaptureState state{};
    state.add_extent(filled_extent(3, 1));
    SealedExtent second = filled_extent(5, 2);
    second.inherited = true;
    state.add_extent(std::move(second));
    state.image.external_slots = 1;
    state.image.processes.resize(2);
    state.image.processes[1].parent = 1;
    state.image.processes[1].pid = 7;
    RestorePlan plan{};
    plan.bytes = small_plan(2, 1);
    plan.base = 0x100000000000;
    plan.entry = 0x140;
    plan.coordinator = 12;
    plan.first_descriptor = 70;
    plan.shared_bytes = kSharedBytes;
    plan.operations = 9;
    return Template(std::move(state), std::move(plan), {{"capture", 1.5}});
}

std::string loading_error(const Bytes &header, const std::vector<int> &descriptors,
                          bool verify_digests = false)
{
    try {
        Template::load(header, descriptors, verify_digests);
    } catch (const os::Error &error) {
        return error.what();
    }
    return "";
}

bool names(const std::string &error, const char *what)
{
    return error.find(what) != std::string::npos;
}

unsigned open_descriptors()
{
    unsigned count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

void test_all_comes_back()
{
    Template saved = example();
    Template loaded = Template::load(saved.save(true), saved.descriptors(), true);
    CHECK(loaded.counts() == saved.counts() && loaded.coordinator() == saved.coordinator());
    CHECK(loaded.counts().at("inherited_bytes") == kPageBytes);  // the four others are holes
    CHECK(loaded.children_of_init() == std::vector<pid_t>{7});
    CHECK(loaded.save(true) == saved.save(true));
    Lineage lineage = loaded.lineage(), original = saved.lineage();
    CHECK(lineage.plans == original.plans && lineage.extents.size() == 2);
    for (size_t i = 0; i < 2; i++)
        CHECK(lineage.extents[i].identity == original.extents[i].identity);
}

void test_failures_are_described_after_loading()
{
    Template saved = example();
    Template loaded = Template::load(saved.save(false), saved.descriptors(), false);
    os::UniqueFd page(loaded.create_shared_page());
    CHECK(loaded.failure(page.get()) == "");
    vr_shared failure{};
    failure.failed = 1;
    // Wherever it points, and whatever lies there.
    for (uint64_t op : {uint64_t{0}, uint64_t{8}, kPlanBytes - sizeof(vr_op), kPlanBytes,
                        UINT64_MAX - 8, UINT64_MAX}) {
        failure.op = op;
        CHECK(pwrite(page.get(), &failure, sizeof failure, 0) == sizeof failure);
        CHECK(loaded.failure(page.get()) != "");
    }
}

void test_other_descriptors_are_refused()
{
    Template saved = example();
    const Bytes header = saved.save(true);
    const std::vector<int> good = saved.descriptors();
    unsigned before = open_descriptors();

    std::vector<int> wrong = {good[1], good[0], good[2]};
    CHECK(names(loading_error(header, wrong), "extent 0: it is another file"));
    wrong = {good[0], good[1]};
    CHECK(names(loading_error(header, wrong), "2 descriptors instead of 3"));
    wrong = {good[0], good[1], good[2], good[2]};
    CHECK(names(loading_error(header, wrong), "4 descriptors"));
    wrong = {good[0], -1, good[2]};
    CHECK(names(loading_error(header, wrong), "extent 1: Bad file descriptor"));
    Template other = example();
    wrong = {good[0], good[1], other.descriptors()[2]};
    CHECK(names(loading_error(header, wrong), "plan: it is another file"));
    CHECK(open_descriptors() == before + 3);  // those of `other`
}

// An extent that the header describes rightly, but for what `make` leaves undone.
std::string error_with_extent(int fd, uint64_t size, bool fitting_digest)
{
    Template saved = example();
    TemplateHeader header = decode_template_header(saved.save(true));
    header.extents[0].identity = identity_of(fd);
    header.extents[0].size = size;
    if (fitting_digest)
        header.extents[0].digest = content_digest(fd, size);
    std::vector<int> descriptors = saved.descriptors();
    descriptors[0] = fd;
    return loading_error(encode_template_header(header), descriptors, true);
}

void test_seals_size_and_content_are_verified()
{
    os::UniqueFd fd(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    CHECK(ftruncate(fd.get(), 2 * kPageBytes) == 0);
    CHECK(names(error_with_extent(fd.get(), 2 * kPageBytes, true), "its seals are 0"));
    CHECK(fcntl(fd.get(), F_ADD_SEALS, kTemplateSeals & ~F_SEAL_SEAL) == 0);
    CHECK(names(error_with_extent(fd.get(), 2 * kPageBytes, true), "its seals are"));
    CHECK(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SEAL) == 0);
    CHECK(names(error_with_extent(fd.get(), kPageBytes, true), "its size is 8192"));
    CHECK(names(error_with_extent(fd.get(), 2 * kPageBytes, false), "its content is another"));
    CHECK(error_with_extent(fd.get(), 2 * kPageBytes, true) == "");
    os::UniqueFd ordinary(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    CHECK(names(error_with_extent(ordinary.get(), 2 * kPageBytes, false), "its size is"));
    os::UniqueFd pipe_end = std::move(os::make_pipe().read_end);
    CHECK(error_with_extent(pipe_end.get(), 2 * kPageBytes, false) != "");
}

void test_digests_are_verified_only_where_they_are()
{
    Template saved = example();
    CHECK(names(loading_error(saved.save(false), saved.descriptors(), true), "no checksums"));
    CHECK(loading_error(saved.save(false), saved.descriptors()) == "");
}

void test_digest_leaves_holes()
{
    SealedExtent extent = filled_extent(64, 1);
    struct stat before, after;
    CHECK(fstat(extent.fd.get(), &before) == 0);
    content_digest(extent.fd.get(), extent.size);
    CHECK(fstat(extent.fd.get(), &after) == 0 && after.st_blocks == before.st_blocks);
}

}  // namespace

int main()
{
    test_all_comes_back();
    test_failures_are_described_after_loading();
    test_other_descriptors_are_refused();
    test_seals_size_and_content_are_verified();
    test_digests_are_verified_only_where_they_are();
    test_digest_leaves_holes();
    return 0;
}
