#include "memory/sha256.h"

#include <string.h>

#include <algorithm>
#include <bit>

namespace venus {
namespace {

constexpr size_t kBlockBytes = 64;
constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const uint8_t *bytes)
{
    return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

}  // namespace

void Sha256::compress(const uint8_t *block)
{
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
        w[i] = big_endian(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t low = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
        uint32_t high = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + low + w[i - 7] + high;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (int i = 0; i < 64; i++) {
        uint32_t high = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
        uint32_t first = h + high + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
        uint32_t low = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
        uint32_t second = low + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + first;
        d = c;
        c = b;
        b = a;
        a = first + second;
    }
    const uint32_t after[8] = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; i++)
        state_[i] += after[i];
}

void Sha256::add(const void *bytes, size_t size)
{
    auto *at = static_cast<const uint8_t *>(bytes);
    while (size > 0) {
        size_t used = total_bytes_ % kBlockBytes;
        size_t taken = std::min(size, kBlockBytes - used);
        if (taken == kBlockBytes) {
            compress(at);
        } else {
            memcpy(pending_.data() + used, at, taken);
            if (used + taken == kBlockBytes)
                compress(pending_.data());
        }
        total_bytes_ += taken;
        at += taken;
        size -= taken;
    }
}

Digest Sha256::finish()
{
    const uint64_t bits = total_bytes_ * 8;
    static constexpr uint8_t padding[kBlockBytes] = {0x80};
    size_t used = total_bytes_ % kBlockBytes;
    add(padding, used < 56 ? 56 - used : 120 - used);
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
    add(length, sizeof length);
    Digest digest;
    for (size_t i = 0; i < digest.size(); i++)
        digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return digest;
}

Digest sha256(const void *bytes, size_t size)
{
    Sha256 hash;
    hash.add(bytes, size);
    return hash.finish();
}

}  // namespace venus
