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
    // Its pages stand for anonymous memory: what a program discards there is zero afterwards.
    bool anonymous = false;
    std::vector<PageRun> huge = {};  // offsets that shall become huge pages

    void seal() const;
    // Its holes take none, and alignment makes many.
    uint64_t memory_bytes() const;
    // Huge pages where they are wanted: an optimisation that may fail, and takes a second or two per
    // GiB.  The content stays what it is: also when it is sealed, and while forks run on it.
    void collapse() const;
};

SealedExtent duplicate(const SealedExtent &extent, bool inherited);

// A duplicate of a descriptor that was handed on. Throws os::Error, with `name`, unless it is the very
// file that was sealed: same identity, same size, all seals.
SealedExtent adopt_sealed(int fd, uint64_t size, FileIdentity identity, const std::string &name);

// Holes read as zeroes and stay holes.
Digest content_digest(int fd, uint64_t size);

// Being filled; finish() ends that. What is never written stays a hole.
class ExtentWriter {
public:
    explicit ExtentWriter(uint64_t size);

    void write(uint64_t offset, const void *bytes, uint64_t count);
    // Pages of zeroes that exist.
    void fill(uint64_t offset, uint64_t bytes);
    void prefer_huge(uint64_t offset, uint64_t bytes);
    SealedExtent finish(bool anonymous);  // not sealed yet

private:
    os::UniqueFd fd_;
    uint64_t size_;
    std::vector<PageRun> huge_;
};

bool is_zero_page(const uint8_t *page);

}  // namespace venus
