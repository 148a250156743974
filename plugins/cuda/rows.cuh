// Reading a row of numbers 16 bytes at a time, wherever it starts.

#pragma once

#include "plugins/cuda/block.cuh"

namespace ssd {

struct alignas(16) Vec16 {
    u32 words[4];
};

SSD_DEVICE bool is_aligned16(const void* address) { return (u64(address) & 15) == 0; }

// The address is a multiple of 16. A device loads byte by byte through memcpy, and the host may
// not read a float through another type.
SSD_DEVICE Vec16 load16(const void* address) {
#if SSD_ON_DEVICE
    return *static_cast<const Vec16*>(address);
#else
    if (!is_aligned16(address)) throw BrokenRule{kMisaligned};
    Vec16 vector;
    memcpy(&vector, address, 16);
    return vector;
#endif
}

SSD_DEVICE void store16(void* address, const Vec16& vector) {
#if SSD_ON_DEVICE
    *static_cast<Vec16*>(address) = vector;
#else
    if (!is_aligned16(address)) throw BrokenRule{kMisaligned};
    memcpy(address, &vector, 16);
#endif
}

// Numbers of type T in 16 bytes.
template <class T>
constexpr int kPerVector = 16 / int(sizeof(T));

template <class T>
SSD_DEVICE void unpack(const Vec16& vector, float* values) {
    T items[kPerVector<T>];
    memcpy(items, &vector, 16);
    SSD_UNROLL
    for (int i = 0; i < kPerVector<T>; ++i) values[i] = to_float(items[i]);
}

// The half-open range of one of `num_parts` nearly equal parts of 0 .. count; every part but the
// last starts and ends at a multiple of `step`.
struct Range {
    int begin, end;
};

SSD_DEVICE Range part_of(int count, int part, int num_parts, int step) {
    const int num_steps = (count + step - 1) / step;
    const int per_part = (num_steps + num_parts - 1) / num_parts * step;
    const int begin = part * per_part, end = begin + per_part;
    return {begin < count ? begin : count, end < count ? end : count};
}

// visit(index, value) once for each index of the range, shared out over the block's threads, in no
// order. T is float, Half or BFloat16. The row may start at any multiple of sizeof(T): a head and
// a tail are read one by one, the rest 16 bytes at a time, the next load under way during a visit.
template <class T, class Ctx, class Visit>
SSD_DEVICE void for_each(Ctx& ctx, const T* row, Range range, Visit visit) {
    const int count = range.end - range.begin;
    const T* start = row + range.begin;
    const int misaligned = int((16 - (u64(start) & 15)) & 15) / int(sizeof(T));
    const int head = misaligned < count ? misaligned : count;
    const int num_vectors = (count - head) / kPerVector<T>;
    const int num_between = num_vectors * kPerVector<T>;

    for (int i = ctx.thread_index(); i < count - num_between; i += ctx.num_threads()) {
        const int offset = i < head ? i : i + num_between;
        visit(range.begin + offset, to_float(start[offset]));
    }
    const T* body = start + head;
    int vector = ctx.thread_index();
    if (vector >= num_vectors) return;
    Vec16 loaded = load16(body + vector * kPerVector<T>);
    while (vector < num_vectors) {
        const int next = vector + ctx.num_threads();
        float values[kPerVector<T>];
        unpack<T>(loaded, values);
        if (next < num_vectors) loaded = load16(body + next * kPerVector<T>);
        SSD_UNROLL
        for (int i = 0; i < kPerVector<T>; ++i)
            visit(range.begin + head + vector * kPerVector<T> + i, values[i]);
        vector = next;
    }
}

}  // namespace ssd
