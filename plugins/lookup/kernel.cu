// The lookup of an outcome among prepared branches: plugins/lookup/__init__.py names the arrays.
// One block a row; a block may take several rows.

#include "plugins/cuda/block.cuh"

using ssd::i32;
using ssd::i64;
using ssd::u8;

struct LookupArgs {
    const i64* accepted;
    const i64* bonus;
    i32* cache_branches;
    const i32* cache_depth;
    const i64* cache_generation;
    const i64* cache_round;
    const i32* cache_accepted;
    const i64* cache_bonus;
    const i64* cache_tokens;
    const i64* generation;
    const i64* limit;
    i64* round;
    u8* active;
    i64* length;
    i64* kind;
    i64* verify_tokens;
    i64* verify_positions;
    i64* verify_write_at;
    i64* num_draft;
    i64* root_tokens;
    i64* root_positions;
    i64* root_write_at;
    i32* winner;
    i64* commit_at;
    i64* outcome;
    i32 num_rows;
    i32 num_branches;
    i32 max_draft;
    i32 draft_vocab;
    i32 target_scratch;
    i32 draft_scratch;
};

// As `Kind` and the columns of `outcome` in plugins/lookup/reference.py.
constexpr i64 kNone = 0, kHit = 1, kSkip = 4;
constexpr i32 kGeneration = 0, kKind = 1, kCount = 2, kAccepted = 3, kEmitted = 4;

// The last branch prepared for the row's outcome, or -1. The same in every thread.
template <class Ctx>
SSD_DEVICE i32 find_branch(Ctx& ctx, const LookupArgs& args, i32 row) {
    const bool is_fresh = args.cache_generation[row] == args.generation[row] &&
                          args.cache_round[row] == args.round[row];
    const i32 count = is_fresh ? args.cache_branches[row] : 0;
    const i32* accepted = args.cache_accepted + i64(row) * args.num_branches;
    const i64* bonus = args.cache_bonus + i64(row) * args.num_branches;
    i32 found = -1;
    for (i32 branch = ctx.thread_index(); branch < count; branch += ctx.num_threads())
        if (accepted[branch] == args.accepted[row] && bonus[branch] == args.bonus[row])
            found = branch;
    return ctx.max(found);
}

template <class Ctx>
SSD_DEVICE void lookup_row(Ctx& ctx, const LookupArgs& args, i32 row) {
    const i32 width = args.max_draft + 1;
    i64* const verify_tokens = args.verify_tokens + i64(row) * width;
    i64* const message = args.outcome + i64(row) * (kEmitted + width);
    const bool was_active = args.active[row];
    const i32 branch = find_branch(ctx, args, row);
    const i32 num_emitted = was_active ? i32(args.accepted[row]) + 1 : 0;
    const i64 text = args.length[row] + num_emitted;
    const i64 room = args.limit[row] - text - 1;  // for drafts: the bonus token takes a place too
    const bool is_active = was_active && room >= 0;
    const bool is_hit = is_active && branch >= 0;
    i32 depth = is_hit ? args.cache_depth[row] : 0;
    if (is_hit && room < depth) depth = i32(room);
    const bool has_ended = was_active && !is_active;
    const i64 start = has_ended ? 0 : text - 1;
    const i64* const drafted =
        args.cache_tokens + (i64(row) * args.num_branches + (is_hit ? branch : 0)) * args.max_draft;

    // (t*, x1 .. xK), zeros for what there is not.
    auto next_token = [&](i32 i) -> i64 {
        if (i > 0) return i <= depth ? drafted[i - 1] : 0;
        return is_active ? args.bonus[row] : 0;
    };

    for (i32 i = ctx.thread_index(); i < width; i += ctx.num_threads()) {
        i64 token = 0;
        if (i + 1 < num_emitted) token = verify_tokens[i + 1];
        if (i + 1 == num_emitted) token = args.bonus[row];
        message[kEmitted + i] = token;
    }
    ctx.sync();  // everything that is overwritten below has been read
    for (i32 i = ctx.thread_index(); i < width; i += ctx.num_threads()) {
        verify_tokens[i] = next_token(i);
        args.verify_positions[i64(row) * width + i] = start + i;
    }
    if (ctx.thread_index() != 0) return;

    message[kGeneration] = args.generation[row];
    message[kKind] = was_active ? args.kind[row] : kSkip;
    message[kCount] = was_active ? args.num_draft[row] : 0;
    message[kAccepted] = was_active ? num_emitted - 1 : 0;
    const i64 last = next_token(depth);
    args.verify_write_at[row] = args.target_scratch + start;
    args.kind[row] = is_hit ? kHit : kNone;
    args.num_draft[row] = depth;
    args.root_tokens[row] = last < args.draft_vocab ? last : 0;
    args.root_positions[row] = start + depth;
    args.root_write_at[row] = args.draft_scratch + start + depth;
    args.winner[row] = depth > 0 ? branch : -1;
    args.commit_at[row] = args.draft_scratch + start;
    args.length[row] = start + 1;
    args.active[row] = is_active;
    args.round[row] += 1;
    if (was_active) args.cache_branches[row] = 0;
}

template <class Ctx>
SSD_DEVICE void lookup(Ctx& ctx, const LookupArgs& args) {
    for (i32 row = ctx.block_index(); row < args.num_rows; row += ctx.num_blocks())
        lookup_row(ctx, args, row);
}

SSD_KERNEL(ssd_lookup, LookupArgs, 128, lookup)
