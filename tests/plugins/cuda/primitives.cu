// Small kernels that use one thing of the block context each.

#include "plugins/cuda/rows.cuh"

using ssd::i32;
using ssd::i64;
using ssd::u32;
using ssd::u64;

// What the fields mean differs from entry to entry; test_block_primitives.py says it.
struct ProbeArgs {
    const void* in;
    void* out;
    void* workspace;
    u32* tickets;
    i32 count;
    i32 blocks_per_row;
};

// Numbers [blocks, threads] -> per block and thread: sum, max, min, any(> 0), exclusive sum, total.
template <class T, class Ctx>
SSD_DEVICE void reductions(Ctx& ctx, const ProbeArgs& args) {
    const i32 place = ctx.block_index() * ctx.num_threads() + ctx.thread_index();
    const T value = static_cast<const T*>(args.in)[place];
    T* out = static_cast<T*>(args.out) + place * 6;
    out[0] = ctx.sum(value);
    out[1] = ctx.max(value);
    out[2] = ctx.min(value);
    out[3] = T(ctx.any(value > T(0)));
    out[4] = ctx.exclusive_scan(value, &out[5]);
    ctx.sum(out[4]);  // a reduction right after a scan may not disturb it
}
SSD_KERNEL(probe_reductions_i32, ProbeArgs, 1024, reductions<i32>)
SSD_KERNEL(probe_reductions_u64, ProbeArgs, 1024, reductions<u64>)
SSD_KERNEL(probe_reductions_f32, ProbeArgs, 1024, reductions<float>)

// A row of numbers [rows, count] over several blocks -> its best id, and its sum.
struct PartialRow {
    ssd::Best best;
    i32 num_visited;
    float sum;
};

template <class T, class Ctx>
SSD_DEVICE void row_best(Ctx& ctx, const ProbeArgs& args) {
    const i32 row = ctx.block_index() / args.blocks_per_row;
    const i32 part = ctx.block_index() % args.blocks_per_row;
    const T* values = static_cast<const T*>(args.in) + i64(row) * args.count;
    const ssd::Range range = ssd::part_of(args.count, part, args.blocks_per_row, 8);
    auto* partial = static_cast<PartialRow*>(args.workspace) + row * args.blocks_per_row;

    PartialRow mine{ssd::no_best(), 0, 0.0f};
    ssd::for_each(ctx, values, range, [&](i32 id, float value) {
        mine.best = ssd::better(mine.best, {value, id});
        ++mine.num_visited;
        mine.sum += value;
    });
    mine = {ctx.arg_max(mine.best), ctx.sum(mine.num_visited), ctx.sum(mine.sum)};
    if (ctx.thread_index() == 0) partial[part] = mine;
    if (!ctx.arrive_last(args.tickets + row, args.blocks_per_row)) return;

    mine = {ssd::no_best(), 0, 0.0f};
    for (i32 i = ctx.thread_index(); i < args.blocks_per_row; i += ctx.num_threads()) {
        mine.best = ssd::better(mine.best, partial[i].best);
        mine.num_visited += partial[i].num_visited;
        mine.sum += partial[i].sum;
    }
    mine = {ctx.arg_max(mine.best), ctx.sum(mine.num_visited), ctx.sum(mine.sum)};
    if (ctx.thread_index() == 0) static_cast<PartialRow*>(args.out)[row] = mine;
}
SSD_KERNEL(probe_row_best_f32, ProbeArgs, 1024, row_best<float>)
SSD_KERNEL(probe_row_best_f16, ProbeArgs, 1024, row_best<ssd::Half>)
SSD_KERNEL(probe_row_best_bf16, ProbeArgs, 1024, row_best<ssd::BFloat16>)

// Numbers below 16 [count] -> how many of each, and all their bits: shared and global atomics.
struct Histogram {
    u32 counts[16];
};

template <class Ctx>
SSD_DEVICE void histogram(Ctx& ctx, const ProbeArgs& args) {
    auto& local = ctx.template shared<Histogram>();
    for (i32 i = ctx.thread_index(); i < 16; i += ctx.num_threads()) local.counts[i] = 0;
    ctx.sync();
    const i32 stride = ctx.num_blocks() * ctx.num_threads();
    for (i32 i = ctx.block_index() * ctx.num_threads() + ctx.thread_index(); i < args.count;
         i += stride) {
        const u32 value = static_cast<const u32*>(args.in)[i];
        ctx.atomic_add(&local.counts[value], 1u);
        ctx.atomic_or(static_cast<u32*>(args.workspace), value);
    }
    ctx.sync();
    auto* counts = static_cast<u32*>(args.out);
    for (i32 i = ctx.thread_index(); i < 16; i += ctx.num_threads())
        ctx.atomic_add(&counts[i], local.counts[i]);
}
SSD_KERNEL(probe_histogram, ProbeArgs, 1024, histogram)

// All 65,536 halves of a kind -> floats.
template <class T, class Ctx>
SSD_DEVICE void widen(Ctx& ctx, const ProbeArgs& args) {
    for (i32 i = ctx.thread_index(); i < args.count; i += ctx.num_threads())
        static_cast<float*>(args.out)[i] = ssd::to_float(static_cast<const T*>(args.in)[i]);
}
SSD_KERNEL(probe_widen_f16, ProbeArgs, 1024, widen<ssd::Half>)
SSD_KERNEL(probe_widen_bf16, ProbeArgs, 1024, widen<ssd::BFloat16>)

// Floats [count] -> their order keys; the floats again go to the workspace.
template <class Ctx>
SSD_DEVICE void order(Ctx& ctx, const ProbeArgs& args) {
    for (i32 i = ctx.thread_index(); i < args.count; i += ctx.num_threads()) {
        const u32 key = ssd::order_key(static_cast<const float*>(args.in)[i]);
        static_cast<u32*>(args.out)[i] = key;
        static_cast<float*>(args.workspace)[i] = ssd::from_order_key(key);
    }
}
SSD_KERNEL(probe_order, ProbeArgs, 1024, order)

// Pairs of 64-bit words [count, 2] -> the upper halves of their products.
template <class Ctx>
SSD_DEVICE void products(Ctx& ctx, const ProbeArgs& args) {
    const u64* pairs = static_cast<const u64*>(args.in);
    for (i32 i = ctx.thread_index(); i < args.count; i += ctx.num_threads())
        static_cast<u64*>(args.out)[i] = ssd::multiply_high(pairs[2 * i], pairs[2 * i + 1]);
}
SSD_KERNEL(probe_products, ProbeArgs, 1024, products)
