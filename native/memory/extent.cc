#include "memory/extent.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/checked.h"

namespace venus {
namespace {

constexpr const char *kName = "venus-extent";
constexpr int kMadvCollapse = 25;

}  // namespace

FileIdentity identity_of(int fd)
{
    struct stat status;
    checked(fstat(fd, &status), "stat", "descriptor " + std::to_string(fd));
    return {status.st_dev, status.st_ino};
}

ExtentWriter::ExtentWriter(uint64_t size) : size_(size)
{
    fd_.reset(checked(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING), "create", kName));
    checked(ftruncate(fd_.get(), static_cast<off_t>(size)), "size", kName);
    if (size == 0)
        return;
    void *base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    if (base == MAP_FAILED)
        throw os::Error("map", kName, errno);
    base_ = static_cast<uint8_t *>(base);
}

ExtentWriter::~ExtentWriter()
{
    if (base_)
        munmap(base_, size_);
}

void ExtentWriter::collapse(uint64_t offset, uint64_t bytes)
{
    uint64_t start = (offset + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
    uint64_t end = (offset + bytes) & ~(kHugePageBytes - 1);
    if (start < end)
        madvise(base_ + start, end - start, kMadvCollapse);
}

SealedExtent ExtentWriter::seal()
{
    // F_SEAL_WRITE needs every writable mapping gone.
    if (base_)
        munmap(base_, size_);
    base_ = nullptr;
    checked(fcntl(fd_.get(), F_ADD_SEALS,
                  F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
            "seal", kName);
    FileIdentity identity = identity_of(fd_.get());
    return {std::move(fd_), size_, identity, false};
}

bool is_zero_page(const uint8_t *page)
{
    return page[0] == 0 && memcmp(page, page + 1, kPageBytes - 1) == 0;
}

}  // namespace venus
