// The layer ssd::Sample, in two kernels: the scratch memory that an engine lends is neither zero at
// first nor kept between runs, so no block can tell that it is the last of its row.

#pragma once

#include "plugins/sample/args.cuh"
#include "plugins/sample/top_list.cuh"

namespace ssd {

// lists[row, slice]: the best id of a slice.
template <class T, class Ctx>
SSD_DEVICE void best_of_slice(Ctx& ctx, const SampleArgs& args) {
    const i64 number = ctx.block_index() / args.scan.num_slices;
    const int slice = ctx.block_index() % args.scan.num_slices;
    const LogitRows& rows = args.scan.rows;
    const T* const logits = static_cast<const T*>(rows.logits) + number * rows.pitch;
    u64 best = kNoKey;
    for_each(ctx, logits, slice_of(ctx, rows.vocab_size, slice, args.scan.num_slices),
             [&](int id, float logit) {
                 const u64 key = list_key(true, logit, id);
                 best = key < best ? key : best;
             });
    best = ctx.min(best);
    if (ctx.thread_index() == 0) args.lists[number * args.scan.num_slices + slice] = best;
}

// The best of each row's slices, as a target id. A block takes several rows where there are fewer
// blocks than rows.
template <class Ctx>
SSD_DEVICE void take_best(Ctx& ctx, const SampleArgs& args) {
    const int num_rows = args.scan.rows.num_sequences * args.scan.rows.rows_each;
    for (int row = ctx.block_index(); row < num_rows; row += ctx.num_blocks()) {
        const u64* const bests = args.lists + i64(row) * args.scan.num_slices;
        u64 best = kNoKey;
        for (int i = ctx.thread_index(); i < args.scan.num_slices; i += ctx.num_threads())
            best = bests[i] < best ? bests[i] : best;
        best = ctx.min(best);
        if (ctx.thread_index() == 0) args.sample[row] = args.layer_map[id_of(best)];
    }
}

}  // namespace ssd
