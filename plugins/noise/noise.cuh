// The noise of a token, as plugins/noise/reference.py specifies it: the same integers, and the same
// float32 before the logarithm. The logarithms are the platform's.

#pragma once

#include "plugins/cuda/types.cuh"

namespace ssd {

enum class Purpose : u64 { kToken = 0, kDraft = 1, kAccept = 2, kResidual = 3 };

constexpr int kIdsPerBlock = 8;

// -log(-log(u)) at u = 1 - 2**-24 and at u = 2**-24, rounded outwards: all noise lies between.
constexpr float kLargestGumbel = 16.636f;
constexpr float kLeastGumbel = -2.812f;

struct PhiloxBlock {
    u64 words[4];
};

// Philox4x64-10 of the counter (1 + block, position, 0, 0) and the key (seed, purpose).
SSD_DEVICE PhiloxBlock philox(u64 seed, u64 position, Purpose purpose, u64 block) {
    u64 c0 = 1 + block, c1 = position, c2 = 0, c3 = 0;
    u64 k0 = seed, k1 = u64(purpose);
    SSD_UNROLL
    for (int round = 0; round < 10; ++round) {
        constexpr u64 kFirst = 0xD2E7470EE14C6C93ull, kSecond = 0xCA5A826395121157ull;
        const u64 high0 = multiply_high(kFirst, c0), low0 = kFirst * c0;
        const u64 high1 = multiply_high(kSecond, c2), low1 = kSecond * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B97F4A7C15ull;
        k1 += 0xBB67AE8584CAA73Bull;
    }
    return {{c0, c1, c2, c3}};
}

// The 32 bits of id 8 * block + index.
SSD_DEVICE u32 bits_of(const PhiloxBlock& block, int index) {
    return u32(block.words[index / 2] >> (index % 2 * 32));
}

// An odd multiple of 2**-24, so neither 0 nor 1.
SSD_DEVICE float uniform24(u32 bits) { return float(bits >> 8 | 1) * 5.9604644775390625e-8f; }

SSD_DEVICE float gumbel_of_bits(u32 bits) { return -log_f32(-log_f32(uniform24(bits))); }

// Standard Gumbel noise of the ids `first` .. `first + 7`; `first` is a multiple of 8.
SSD_DEVICE void gumbel8(u64 seed, u64 position, int first, float* noise) {
    const PhiloxBlock block = philox(seed, position, Purpose::kToken, u64(first / kIdsPerBlock));
    SSD_UNROLL
    for (int i = 0; i < kIdsPerBlock; ++i) noise[i] = gumbel_of_bits(bits_of(block, i));
}

// That of one id, at the price of eight.
SSD_CALLED float gumbel_of(u64 seed, u64 position, int id) {
    const PhiloxBlock block = philox(seed, position, Purpose::kToken, u64(id / kIdsPerBlock));
    return gumbel_of_bits(bits_of(block, id % kIdsPerBlock));
}

// One uniform in (0, 1) for a purpose other than kToken, exact.
SSD_CALLED double uniform53(u64 seed, u64 position, Purpose purpose) {
    const u64 word = philox(seed, position, purpose, 0).words[0];
    return double(2 * (word >> 12) + 1) * 1.1102230246251565404e-16;
}

}  // namespace ssd
