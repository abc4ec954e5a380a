// SHA-256 (FIPS 180-4): names the content of extents and plans. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace venus {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
public:
    void add(const void *bytes, size_t size);
    // Ends it: nothing can be added afterwards.
    Digest finish();

private:
    void compress(const uint8_t *block);

    std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint64_t total_bytes_ = 0;
    std::array<uint8_t, 64> pending_{};
};

Digest sha256(const void *bytes, size_t size);

}  // namespace venus
