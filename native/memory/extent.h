// An extent: template pages in one memfd that the kernel itself keeps from changing.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "memory/page_runs.h"
#include "memory/sha256.h"
#include "os/fd.h"

namespace venus {

// What keeps a file of a template as it is, for everybody and for ever.
inline constexpr int kTemplateSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct FileIdentity {
    dev_t device;
    ino_t inode;
    bool operator==(const FileIdentity &) const = default;
};
FileIdentity identity_of(int fd);

struct SealedExtent {
    os::UniqueFd fd;
    uint64_t size;
    FileIdentity identity;
    bool inherited = false;  // from the template that the sandbox was forked from
};

// A duplicate of a descriptor that was handed on. Throws os::Error, with `name`, unless it is the very
// file that was sealed: same identity, same size, all seals.
SealedExtent adopt_sealed(int fd, uint64_t size, FileIdentity identity, const std::string &name);

// Holes read as zeroes and stay holes.
Digest content_digest(int fd, uint64_t size);

// Being filled; seal() ends that.
class ExtentWriter {
public:
    explicit ExtentWriter(uint64_t size);
    ~ExtentWriter();
    ExtentWriter(const ExtentWriter &) = delete;

    uint8_t *at(uint64_t offset) { return base_ + offset; }
    // Huge pages where a whole one is filled; an optimisation that may fail.
    void collapse(uint64_t offset, uint64_t bytes);
    SealedExtent seal();

private:
    os::UniqueFd fd_;
    uint64_t size_;
    uint8_t *base_ = nullptr;
};

bool is_zero_page(const uint8_t *page);

}  // namespace venus
