// Tokens drafted one after the other: plugins/chain/__init__.py names the arrays. A thread a row,
// since a row is a few numbers.

#include "plugins/cuda/entry.cuh"

using ssd::i32;
using ssd::i64;
using ssd::u8;

struct ChainArgs {
    const u8* active;
    const i64* length;
    const i64* limit;
    const i64* last_tokens;
    const i64* sample;
    i64* kind;
    i64* num_draft;
    i64* verify_tokens;
    i64* root_tokens;
    i64* root_positions;
    i64* root_write_at;
    i64* root_logit_rows;
    i64* sample_positions;
    i64* step_tokens;
    i64* step_positions;
    i64* step_write_at;
    i64* step_logit_rows;
    i32 num_rows;
    i32 num_wanted;
    i32 max_draft;
    i32 draft_vocab;
    i32 draft_scratch;
    i32 index;
};

// As `Kind` in plugins/lookup/reference.py.
constexpr i64 kNone = 0, kJit = 2;

SSD_DEVICE i64 known(const ChainArgs& args, i64 token) {
    return token >= 0 && token < args.draft_vocab ? token : 0;
}

SSD_DEVICE void root_row(const ChainArgs& args, i32 row) {
    const bool is_active = args.active[row];
    const i64 text = args.length[row];
    i64 count = is_active ? args.limit[row] - text - 1 : 0;
    if (count > args.num_wanted) count = args.num_wanted;
    if (count < 0) count = 0;
    args.num_draft[row] = count;
    args.kind[row] = count > 0 ? kJit : kNone;
    i64* const verify_tokens = args.verify_tokens + i64(row) * (args.max_draft + 1);
    for (i32 i = 1; i <= args.max_draft; ++i) verify_tokens[i] = 0;

    const bool is_whole = is_active && text > 1;  // there are two tokens to feed
    const i64 start = text - 1 - is_whole;
    const i64 last = is_active ? known(args, args.last_tokens[2 * row + 1]) : 0;
    args.root_tokens[2 * row] = is_whole ? known(args, args.last_tokens[2 * row]) : last;
    args.root_tokens[2 * row + 1] = is_whole ? last : 0;
    args.root_positions[2 * row] = start;
    args.root_positions[2 * row + 1] = start + 1;
    args.root_write_at[row] = args.draft_scratch + start;
    args.root_logit_rows[row] = is_whole;
    args.sample_positions[row] = text - 1;
}

SSD_DEVICE void next_row(const ChainArgs& args, i32 row) {
    const i64 token = args.sample[row], position = args.length[row] + args.index;
    args.verify_tokens[i64(row) * (args.max_draft + 1) + 1 + args.index] =
        args.index < args.num_draft[row] ? token : 0;
    if (args.step_tokens == nullptr) return;
    args.step_tokens[row] = known(args, token);
    args.step_positions[row] = position;
    args.step_write_at[row] = args.draft_scratch + position;
    args.step_logit_rows[row] = 0;
}

template <class Ctx, class Visit>
SSD_DEVICE void for_each_row(Ctx& ctx, i32 num_rows, Visit visit) {
    const i32 first = ctx.block_index() * ctx.num_threads() + ctx.thread_index();
    for (i32 row = first; row < num_rows; row += ctx.num_blocks() * ctx.num_threads()) visit(row);
}

template <class Ctx>
SSD_DEVICE void root(Ctx& ctx, const ChainArgs& args) {
    for_each_row(ctx, args.num_rows, [&](i32 row) { root_row(args, row); });
}

template <class Ctx>
SSD_DEVICE void next(Ctx& ctx, const ChainArgs& args) {
    for_each_row(ctx, args.num_rows, [&](i32 row) { next_row(args, row); });
}

SSD_KERNEL_WITH_CALLS(ssd_chain_root, ChainArgs, 128, 4, root)
SSD_KERNEL_WITH_CALLS(ssd_chain_next, ChainArgs, 128, 4, next)
