// The weight exp(l / T) of a logit as an integer times a power of two.
//
// Sums of such weights are sums of integers: they come out the same in every order, so a seed gives
// the same tokens whatever the grid is. And no weight needs the row's peak: octaves are absolute.

#pragma once

#include "plugins/cuda/types.cuh"

namespace ssd {

constexpr float kLowestTemperature = 1e-15f;  // for cuts and laws: l / T stays below 1e18

// log2(e) / T in two floats.
struct Scale {
    float high, low;
};

SSD_DEVICE Scale scale_of(float temperature) {
    const float clamped = temperature > kLowestTemperature ? temperature : kLowestTemperature;
    const double scale = 1.4426950408889634074 / double(clamped);
    const float high = float(scale);
    return {high, float(scale - double(high))};
}

// exp(l / T) = 2 ** (octave + fraction), 0 <= fraction <= 1. Octave and fraction rise with l.
struct Exponent {
    i64 octave;
    float fraction;
};

constexpr i64 kNoOctave = -(i64(1) << 60);  // of a weight of 0: that of -inf, and of NaN

SSD_DEVICE Exponent exponent_of(float logit, Scale scale) {
    constexpr float kHuge = 1e18f;
    const float high = logit * scale.high;
    if (!(fabsf(high) < kHuge)) return {high > 0 ? i64(kHuge) : kNoOctave, 0};
    // What rounding took from the product: at l = 30, T = 0.01 it is a thousandth of an octave.
    const float low = fmaf(logit, scale.high, -high) + logit * scale.low;
    const float whole = floorf(high);
    const float fraction = (high - whole) + low;
    const float carry = floorf(fraction);
    return {i64(whole) + i64(carry), fraction - carry};
}

// The weight is significand * 2 ** (octave - 23); 2**23 <= significand <= 2**24.
SSD_DEVICE u32 significand_of(float fraction) { return u32(exp2f(fraction) * 8388608.0f); }

constexpr int kMaxVocab = 1 << 20;  // so that no sum of masses passes 2**63

// A sum of significands of one octave in units that serve a whole row: 2**-41 of the octave `top`.
SSD_DEVICE u64 scaled_mass(u64 significands, i64 octaves_below_top) {
    return octaves_below_top < 64 ? significands << 18 >> octaves_below_top : 0;
}

SSD_DEVICE u64 mass_of(Exponent exponent, i64 top) {
    return scaled_mass(significand_of(exponent.fraction), top - exponent.octave);
}

}  // namespace ssd
