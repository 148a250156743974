// One kernel source, two forms: CUDA on a device, threads on the host.
//
// A kernel is a body over a context, and an entry for each type that it is wanted in:
//
//     struct ScaleArgs { const float* in; float* out; float by; int count; };
//
//     template <class Ctx>
//     SSD_DEVICE void scale(Ctx& ctx, const ScaleArgs& args) {
//         for (int i = ctx.thread_index(); i < args.count; i += ctx.num_threads())
//             args.out[i] = args.in[i] * args.by;
//     }
//     SSD_KERNEL(ssd_scale, ScaleArgs, 256, scale)
//
// `Args` is a plain struct of pointers and numbers, passed by value: fixed when a graph is
// captured. Whatever changes from round to round stands in memory that the pointers name.
// 256 is the largest block that the entry may be launched with. The last argument may be an
// instance of a template: `verify<ssd::Half>`.
//
// A context has
//
//     thread_index() num_threads() block_index() num_blocks()    int
//     sync()                       all threads of the block, or none
//     shared<T>()                  T& in the block's shared memory, one for each type T, garbage at
//                                  first; T has no constructor. All threads ask, in the same order
//     reduce(v, identity, op)      op over the block's values, the same in every thread; op is
//                                  associative and commutative, T a multiple of 4 bytes
//     sum(v) max(v) min(v)         reduce for numbers
//     any(flag)                    bool
//     arg_max(Best{score, id})     the largest score, of equal ones the lowest id
//     exclusive_scan(v, &total)    sum of the values of lower threads; total of all
//     atomic_add(p, v)             i32, u32, u64, in shared or global memory; the old value
//     atomic_or(p, bits)           u32. Both are relaxed: they order nothing else
//     arrive_last(ticket, n)       "the last of n blocks finishes": true, in all its threads, in
//                                  the block that is the n-th to call it with this ticket. It then
//                                  sees what the others wrote to global memory before they called.
//                                  The ticket (u32, zero before the first launch) is zero again
//                                  afterwards, so a captured graph can be replayed. A launch owns
//                                  its tickets until it has ended: two at a time never share them
//
// All of these but thread_index..num_blocks, and the atomics, are called by all threads of a block
// together. reduce, sum, ... and arrive_last synchronise the block; a block may use them back to
// back. On the device num_threads is a multiple of 32, at most 1024; on the host any number.
//
// A float sum rounds by the order of its terms. Both forms fold a block's values in the same order
// (trees of 32, then the partial results in a tree), so with equally many threads they round alike.
//
// The host form starts one thread for each thread of a block; `num_concurrent` blocks run at a
// time. It shows a missing `sync` to ThreadSanitizer; an unequal number of them in the threads of a
// block and a misaligned 16-byte access are errors; shared memory starts as garbage. It cannot show
// what hangs on warps, the device's memory model or its occupancy.

#pragma once

#include "plugins/cuda/types.cuh"

namespace ssd {

struct Best {
    float score;
    i32 id;
};

SSD_DEVICE Best no_best() { return {-infinity(), 0x7FFFFFFF}; }

SSD_DEVICE Best better(Best a, Best b) {
    return b.score > a.score || (b.score == a.score && b.id < a.id) ? b : a;
}

// What follows from a context's `reduce`.
template <class Ctx>
struct Reductions {
    template <class T>
    SSD_DEVICE T sum(T value) {
        return self().reduce(value, T(0), [](T a, T b) { return a + b; });
    }

    // A value met twice changes neither maximum nor minimum, so any value is an identity.
    template <class T>
    SSD_DEVICE T max(T value) {
        return self().reduce(value, value, [](T a, T b) { return b > a ? b : a; });
    }

    template <class T>
    SSD_DEVICE T min(T value) {
        return self().reduce(value, value, [](T a, T b) { return b < a ? b : a; });
    }

    SSD_DEVICE bool any(bool flag) { return max(i32(flag)) != 0; }

    SSD_DEVICE Best arg_max(Best value) {
        return self().reduce(value, no_best(), [](Best a, Best b) { return better(a, b); });
    }

   private:
    SSD_DEVICE Ctx& self() { return static_cast<Ctx&>(*this); }
};

}  // namespace ssd

#if SSD_ON_DEVICE

#include "plugins/cuda/device_context.cuh"

#define SSD_KERNEL(name, Args, max_threads, ...)                                      \
    extern "C" __global__ void __launch_bounds__(max_threads) name(const Args args) { \
        ssd::DeviceContext ctx;                                                       \
        __VA_ARGS__(ctx, args);                                                       \
    }

#else

#include "plugins/cuda/host_context.cuh"

#define SSD_KERNEL(name, Args, max_threads, ...)                                                 \
    extern "C" int name(const Args* args, int num_blocks, int num_threads, int num_concurrent) { \
        if (num_threads > (max_threads)) return ssd::kTooManyThreads;                            \
        return ssd::run_blocks(num_blocks, num_threads, num_concurrent,                          \
                               [&](ssd::HostContext& ctx) { __VA_ARGS__(ctx, *args); });         \
    }                                                                                            \
    extern "C" int name##_args_size() { return sizeof(Args); }

#endif
