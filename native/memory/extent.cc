#include "memory/extent.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "os/checked.h"

namespace venus {
namespace {

constexpr const char *kName = "venus-extent";
constexpr int kMadvCollapse = 25;
constexpr size_t kReadBytes = 1 << 20;
constexpr int kSealExec = 0x20;  // F_SEAL_EXEC: set by the kernel itself under vm.memfd_noexec

}  // namespace

FileIdentity identity_of(int fd)
{
    struct stat status;
    checked(fstat(fd, &status), "stat", "descriptor " + std::to_string(fd));
    return {status.st_dev, status.st_ino};
}

SealedExtent duplicate(const SealedExtent &extent, bool inherited)
{
    os::UniqueFd fd(checked(fcntl(extent.fd.get(), F_DUPFD_CLOEXEC, 0), "duplicate", kName));
    return {std::move(fd), extent.size, extent.identity, inherited, extent.anonymous, {}};
}

SealedExtent adopt_sealed(int fd, uint64_t size, FileIdentity identity, const std::string &name)
{
    os::UniqueFd own(checked(fcntl(fd, F_DUPFD_CLOEXEC, 0), "duplicate", name));
    struct stat status;
    checked(fstat(own.get(), &status), "stat", name);
    if (!(FileIdentity{status.st_dev, status.st_ino} == identity))
        throw os::Error("adopt", name + ": it is another file", EBADMSG);
    if (static_cast<uint64_t>(status.st_size) != size)
        throw os::Error("adopt", name + ": its size is " + std::to_string(status.st_size), EBADMSG);
    int seals = checked(fcntl(own.get(), F_GET_SEALS), "read the seals of", name);
    if ((seals & ~kSealExec) != kTemplateSeals)
        throw os::Error("adopt", name + ": its seals are " + std::to_string(seals), EBADMSG);
    return {std::move(own), size, identity, false};
}

Digest content_digest(int fd, uint64_t size)
{
    Sha256 hash;
    std::vector<uint8_t> buffer(std::min<uint64_t>(size, kReadBytes));
    for (uint64_t at = 0; at < size;) {
        size_t wanted = std::min<uint64_t>(size - at, buffer.size());
        ssize_t got = checked(pread(fd, buffer.data(), wanted, static_cast<off_t>(at)), "read", kName);
        if (got == 0)
            throw os::Error("read", kName, EIO);
        hash.add(buffer.data(), static_cast<size_t>(got));
        at += static_cast<uint64_t>(got);
    }
    return hash.finish();
}

ExtentWriter::ExtentWriter(uint64_t size) : size_(size)
{
    fd_.reset(checked(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING), "create", kName));
    checked(ftruncate(fd_.get(), static_cast<off_t>(size)), "size", kName);
}

void ExtentWriter::write(uint64_t offset, const void *bytes, uint64_t count)
{
    auto *from = static_cast<const uint8_t *>(bytes);
    while (count > 0) {
        auto done = static_cast<uint64_t>(
            checked(pwrite(fd_.get(), from, count, static_cast<off_t>(offset)), "write", kName));
        from += done;
        offset += done;
        count -= done;
    }
}

void ExtentWriter::fill(uint64_t offset, uint64_t bytes)
{
    checked(fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)), "fill",
            kName);
}

void ExtentWriter::prefer_huge(uint64_t offset, uint64_t bytes)
{
    uint64_t start = (offset + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
    uint64_t end = (offset + bytes) & ~(kHugePageBytes - 1);
    if (start < end)
        huge_.push_back({start, end});
}

SealedExtent ExtentWriter::finish(bool anonymous)
{
    FileIdentity identity = identity_of(fd_.get());
    return {std::move(fd_), size_, identity, false, anonymous, std::move(huge_)};
}

uint64_t SealedExtent::memory_bytes() const
{
    constexpr uint64_t kBlockBytes = 512;  // of st_blocks, whatever the file system's own
    struct stat status;
    checked(fstat(fd.get(), &status), "stat", kName);
    return static_cast<uint64_t>(status.st_blocks) * kBlockBytes;
}

void SealedExtent::seal() const
{
    checked(fcntl(fd.get(), F_ADD_SEALS, kTemplateSeals), "seal", kName);
}

void SealedExtent::collapse() const
{
    if (huge.empty())
        return;
    // The kernel collapses only where file offset and address agree modulo a huge page.
    uint64_t reserved = size + kHugePageBytes;
    void *place = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
    if (place == MAP_FAILED)
        return;
    uint64_t at = (reinterpret_cast<uint64_t>(place) + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
    void *base = mmap(reinterpret_cast<void *>(at), size, PROT_READ, MAP_SHARED | MAP_FIXED,
                      fd.get(), 0);
    if (base != MAP_FAILED)
        for (const PageRun &run : huge)
            madvise(static_cast<uint8_t *>(base) + run.start, run.size(), kMadvCollapse);
    munmap(place, reserved);
}

bool is_zero_page(const uint8_t *page)
{
    return page[0] == 0 && memcmp(page, page + 1, kPageBytes - 1) == 0;
}

}  // namespace venus
