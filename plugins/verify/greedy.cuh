// Greedy verification as the layer ssd::Verify needs it: in two kernels, since the scratch memory
// that an engine lends is neither zero at first nor kept between runs.

#pragma once

#include "plugins/verify/verdict.cuh"

namespace ssd {

// The best id of each slice of each row that counts.
template <class T, class Ctx>
SSD_DEVICE void best_of_rows(Ctx& ctx, const VerifyArgs& args) {
    const i64 number = ctx.block_index() / args.scan.num_slices;
    const int part = ctx.block_index() % args.scan.num_slices;
    const Row<T> row = row_at<T>(args.scan.rows, args.scan.law, int(number));
    if (!row.is_live()) return;
    const Range slice = slice_of(ctx, row.vocab_size, part, args.scan.num_slices);
    Best best = no_best();
    for_each(ctx, row.logits, slice,
             [&](int id, float logit) { best = better(best, {logit, id}); });
    best = ctx.arg_max(best);
    if (ctx.thread_index() == 0) args.partials[number * args.scan.num_slices + part].best = best;
}

// One block a sequence: the drafts that equal the best ids. Blocks beyond have nothing to do.
template <class T, class Ctx>
SSD_DEVICE void accept_best(Ctx& ctx, const VerifyArgs& args) {
    const int sequence = ctx.block_index();
    if (sequence >= args.scan.rows.num_sequences) return;
    const i64 first = i64(sequence) * args.scan.rows.rows_each;
    for (int place = 0;; ++place) {
        const Row<T> row = row_at<T>(args.scan.rows, args.scan.law, int(first) + place);
        const i32 id = best_of_slices(ctx, args, first + place).best.id;
        const i64 token = id < row.vocab_size ? id : 0;  // nothing above -inf: the lowest id
        if (place < row.num_draft && row.drafts[place] == token) continue;
        if (ctx.thread_index() == 0) {
            args.accepted[sequence] = place;
            args.next[sequence] = token;
        }
        return;
    }
}

}  // namespace ssd
