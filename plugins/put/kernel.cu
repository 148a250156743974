// Small values of the host in device memory: plugins/put/__init__.py names the fields. One block.

#include "plugins/cuda/entry.cuh"

using ssd::i32;
using ssd::i64;
using ssd::u8;

struct PutArgs {
    u8* base;
    i64 offsets[32];
    i32 ends[32];
    u8 bytes[3072];
    i32 num_segments;
};

template <class Ctx>
SSD_DEVICE void put(Ctx& ctx, const PutArgs& args) {
    if (ctx.block_index() != 0) return;
    i32 start = 0;
    for (i32 segment = 0; segment < args.num_segments; ++segment) {
        // Through an integer: an offset from no base is an address.
        u8* const to = reinterpret_cast<u8*>(reinterpret_cast<i64>(args.base) + args.offsets[segment]);
        const i32 end = args.ends[segment];
        for (i32 i = start + ctx.thread_index(); i < end; i += ctx.num_threads())
            to[i - start] = args.bytes[i];
        start = end;
    }
}

SSD_KERNEL_WITH_CALLS(ssd_put, PutArgs, 128, 1, put)
