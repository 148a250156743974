// Words, half floats and arithmetic that g++ and NVRTC both have, without any include on a device.

#pragma once

#ifdef __CUDACC__
#define SSD_ON_DEVICE 1
#define SSD_DEVICE __device__ __forceinline__
#define SSD_UNROLL _Pragma("unroll")
#define SSD_CALLED __device__ __noinline__  // for what is rare: it keeps the code around it small
#else
#define SSD_ON_DEVICE 0
#define SSD_DEVICE inline
#define SSD_UNROLL
#define SSD_CALLED inline
#include <cmath>
#include <cstring>
#endif

namespace ssd {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void*) == 8);

// Both are the stored bits; `to_float` reads them.
struct Half {
    u16 bits;
};
struct BFloat16 {
    u16 bits;
};

// The same bits as another type of the same size.
template <class To, class From>
SSD_DEVICE To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

SSD_DEVICE float infinity() { return bit_cast<float>(0x7F800000u); }

SSD_DEVICE float to_float(float value) { return value; }

SSD_DEVICE float to_float(BFloat16 value) { return bit_cast<float>(u32(value.bits) << 16); }

SSD_DEVICE float to_float(Half value) {
#if SSD_ON_DEVICE
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
#else
    const u32 sign = u32(value.bits & 0x8000u) << 16;
    const u32 exponent = (value.bits >> 10) & 31u;
    const u32 fraction = value.bits & 1023u;
    if (exponent == 0) {  // zero or subnormal: a multiple of 2**-24
        return (sign ? -1.0f : 1.0f) * float(fraction) * 5.9604644775390625e-8f;
    }
    const u32 wide = exponent == 31 ? 255u : exponent + 112u;
    return bit_cast<float>(sign | wide << 23 | fraction << 13);
#endif
}

// An integer that orders as the float does: a < b exactly when order_key(a) < order_key(b),
// for all but NaN, and -0 just below +0.
SSD_DEVICE u32 order_key(float value) {
    const u32 bits = bit_cast<u32>(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

SSD_DEVICE float from_order_key(u32 key) {
    return bit_cast<float>(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}

// The upper 64 of the 128 bits of a product.
SSD_DEVICE u64 multiply_high(u64 a, u64 b) {
#if SSD_ON_DEVICE
    return __umul64hi(a, b);
#else
    __extension__ using u128 = unsigned __int128;
    return u64(u128(a) * b >> 64);
#endif
}

// Natural logarithm and exponential in float32. Host and device libraries may differ in the last
// place.
SSD_DEVICE float log_f32(float value) { return logf(value); }
SSD_DEVICE float exp_f32(float value) { return expf(value); }

}  // namespace ssd
