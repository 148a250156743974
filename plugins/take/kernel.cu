// A proposal's arrival at the target: plugins/take/__init__.py names the arrays. One block a row; a
// block may take several rows.

#include "plugins/cuda/entry.cuh"

using ssd::i32;
using ssd::i64;
using ssd::u8;

struct TakeArgs {
    const i64* sent_generation;
    const i64* sent_kind;
    const i64* sent_num_draft;
    const i64* sent_tokens;
    const i64* generation;
    const u8* active;
    const i64* limit;
    const i64* length;
    i64* verify_tokens;
    i64* num_draft;
    i64* kind;
    i64* tokens;
    i64* positions;
    i64* write_at;
    i64* call_num_draft;
    i64* logit_rows;
    i32 stride;
    i32 tokens_stride;
    i32 num_rows;
    i32 num_tokens;
    i32 max_draft;
    i32 scratch_rows;
};

// Whether the message was written for the text that is in the slot now.
SSD_DEVICE bool is_mine(const TakeArgs& args, i32 row) {
    return args.sent_generation != nullptr && args.active[row] &&
           args.sent_generation[i64(row) * args.stride] == args.generation[row];
}

// How many of its tokens the row takes: m.
SSD_DEVICE i64 count_of(const TakeArgs& args, i32 row) {
    i64 count = args.sent_num_draft[i64(row) * args.stride];
    const i64 room = args.limit[row] - args.length[row] - 1;
    if (count > args.num_tokens - 1) count = args.num_tokens - 1;
    if (count > args.max_draft) count = args.max_draft;
    if (count > room) count = room;
    return count > 0 ? count : 0;
}

template <class Ctx>
SSD_DEVICE void take_row(Ctx& ctx, const TakeArgs& args, i32 row) {
    const bool has_message = is_mine(args, row);
    const i64 count = has_message ? count_of(args, row) : 0, start = args.length[row] - 1;
    i64* const proposal = args.verify_tokens + i64(row) * (args.max_draft + 1);
    const i64 pending = proposal[0];  // no thread writes it
    const i64* const sent = args.sent_tokens + i64(row) * args.tokens_stride;
    auto token = [&](i32 i) -> i64 { return i == 0 ? pending : i <= count ? sent[i - 1] : 0; };

    for (i32 i = 1 + ctx.thread_index(); i <= args.max_draft; i += ctx.num_threads())
        proposal[i] = token(i);
    for (i32 i = ctx.thread_index(); i < args.num_tokens; i += ctx.num_threads()) {
        args.tokens[i64(row) * args.num_tokens + i] = token(i);
        args.positions[i64(row) * args.num_tokens + i] = start + i;
        args.logit_rows[i64(row) * args.num_tokens + i] = i;
    }
    if (ctx.thread_index() != 0) return;
    args.num_draft[row] = args.call_num_draft[row] = count;
    args.kind[row] = has_message ? args.sent_kind[i64(row) * args.stride] : 0;
    args.write_at[row] = args.scratch_rows + start;
}

template <class Ctx>
SSD_DEVICE void take(Ctx& ctx, const TakeArgs& args) {
    for (i32 row = ctx.block_index(); row < args.num_rows; row += ctx.num_blocks())
        take_row(ctx, args, row);
}

SSD_KERNEL(ssd_take, TakeArgs, 32, take)
