// The context of a CUDA block; block.cuh says what each member means.

#pragma once

#include "plugins/cuda/block.cuh"

namespace ssd {

constexpr int kWarp = 32;
constexpr u32 kAllLanes = 0xFFFFFFFFu;

// Another lane's value, 32 bits at a time.
template <class T, class Move>
__device__ __forceinline__ T move_words(T value, Move move) {
    static_assert(sizeof(T) % 4 == 0);
    u32 words[sizeof(T) / 4];
    memcpy(words, &value, sizeof(T));
    SSD_UNROLL
    for (u32& word : words) word = move(word);
    memcpy(&value, words, sizeof(T));
    return value;
}

template <class T>
__device__ __forceinline__ T from_lane_above(T value, int distance) {
    return move_words(value, [=](u32 w) { return __shfl_down_sync(kAllLanes, w, distance); });
}

template <class T>
__device__ __forceinline__ T from_lane_below(T value, int distance) {
    return move_words(value, [=](u32 w) { return __shfl_up_sync(kAllLanes, w, distance); });
}

class DeviceContext : public Reductions<DeviceContext> {
   public:
    __device__ int thread_index() const { return int(threadIdx.x); }
    __device__ int num_threads() const { return int(blockDim.x); }
    __device__ int block_index() const { return int(blockIdx.x); }
    __device__ int num_blocks() const { return int(gridDim.x); }
    __device__ void sync() { __syncthreads(); }

    template <class T>
    __device__ __forceinline__ T& shared() {
        __shared__ alignas(alignof(T)) u8 bytes[sizeof(T)];
        return *reinterpret_cast<T*>(bytes);
    }

    // The first sync of a later call stands between the last read of `result` here and the next
    // write to it, the second sync here between the reads of `partial` and its next writes.
    template <class T, class Op>
    __device__ __forceinline__ T reduce(T value, T identity, Op op) {
        auto& scratch = shared<Scratch<T>>();
        value = fold_warp(value, op);
        if (lane() == 0) scratch.partial[warp()] = value;
        sync();
        if (warp() == 0) {
            value = lane() < num_warps() ? scratch.partial[lane()] : identity;
            value = fold_warp(value, op);
            if (lane() == 0) scratch.result = value;
        }
        sync();
        return scratch.result;
    }

    template <class T>
    __device__ __forceinline__ T exclusive_scan(T value, T* total) {
        auto& scratch = shared<Scratch<T>>();
        const T inclusive = scan_warp(value);
        if (lane() == kWarp - 1) scratch.partial[warp()] = inclusive;
        sync();
        if (warp() == 0) {
            const T sums = scan_warp(lane() < num_warps() ? scratch.partial[lane()] : T(0));
            if (lane() < num_warps()) scratch.partial[lane()] = sums;
            if (lane() == num_warps() - 1) scratch.result = sums;
        }
        sync();
        const T before = warp() == 0 ? T(0) : scratch.partial[warp() - 1];
        T below = from_lane_below(inclusive, 1);
        if (lane() == 0) below = T(0);
        *total = scratch.result;
        sync();  // `partial` was read after the second sync here
        return before + below;
    }

    template <class T>
    __device__ T atomic_add(T* address, T value) {
        if constexpr (sizeof(T) == 8) {
            return T(atomicAdd(reinterpret_cast<u64*>(address), u64(value)));
        } else {
            return atomicAdd(address, value);
        }
    }

    __device__ u32 atomic_or(u32* address, u32 bits) { return atomicOr(address, bits); }

    // Every thread publishes its own writes before the block counts itself in; the fence after
    // the count keeps the last block's reads behind it. atomicInc wraps to zero at n - 1.
    __device__ __forceinline__ bool arrive_last(u32* ticket, int num_arrivals) {
        struct Arrival {
            u32 is_last;
        };
        auto& arrival = shared<Arrival>();
        __threadfence();
        sync();
        if (thread_index() == 0) {
            const u32 last = u32(num_arrivals) - 1;
            arrival.is_last = atomicInc(ticket, last) == last;
        }
        sync();
        const bool is_last = arrival.is_last != 0;
        __threadfence();
        sync();  // a later call may write `arrival` at once
        return is_last;
    }

   private:
    template <class T>
    struct Scratch {
        T partial[kWarp];
        T result;
    };

    __device__ int lane() const { return thread_index() % kWarp; }
    __device__ int warp() const { return thread_index() / kWarp; }
    __device__ int num_warps() const { return num_threads() / kWarp; }

    template <class T, class Op>
    __device__ __forceinline__ T fold_warp(T value, Op op) {
        SSD_UNROLL
        for (int distance = kWarp / 2; distance > 0; distance /= 2)
            value = op(value, from_lane_above(value, distance));
        return value;
    }

    template <class T>
    __device__ __forceinline__ T scan_warp(T value) {
        SSD_UNROLL
        for (int distance = 1; distance < kWarp; distance *= 2) {
            const T below = from_lane_below(value, distance);
            if (lane() >= distance) value = below + value;
        }
        return value;
    }
};

}  // namespace ssd
