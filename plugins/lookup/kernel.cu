// The lookup of an outcome among prepared branches: plugins/lookup/__init__.py names the arrays.
// One block a row; a block may take several rows.

#include "plugins/cuda/entry.cuh"

using ssd::i32;
using ssd::i64;
using ssd::u8;

struct LookupArgs {
    const i64* accepted;
    const i64* bonus;
    const i32* status;      // null: 0 everywhere
    const i64* candidates;  // null: no ranks
    i32* cache_branches;    // null: nothing is ever prepared
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
    i64* last_tokens;
    i64* verify_tokens;
    i64* verify_positions;
    i64* verify_write_at;
    i64* num_draft;
    i64* root_tokens;  // null: no draft; what is the draft's is not written
    i64* root_positions;
    i64* root_write_at;
    i32* winner;
    i64* commit_at;
    i64* outcome;
    i32 num_rows;
    i32 num_slots;
    i32 num_ranks;
    i32 num_branches;
    i32 max_draft;
    i32 draft_vocab;
    i32 target_scratch;
    i32 draft_scratch;
};

// As `Kind` and the columns of `outcome` in plugins/lookup/reference.py.
constexpr i64 kNone = 0, kHit = 1, kSkip = 4;
constexpr i32 kGeneration = 0, kKind = 1, kCount = 2, kAccepted = 3, kEmitted = 4;
constexpr i32 kPrepared = 0, kRank = 1, kStatus = 2, kNumExtra = 3;  // behind the tokens

// Branches prepared for the row's text in this round.
SSD_DEVICE i32 num_prepared(const LookupArgs& args, i32 row) {
    if (args.cache_branches == nullptr) return 0;
    const bool is_fresh = args.cache_generation[row] == args.generation[row] &&
                          args.cache_round[row] == args.round[row];
    return is_fresh ? args.cache_branches[row] : 0;
}

// The last of `count` branches that was prepared for the row's outcome, or -1. The same in every
// thread.
template <class Ctx>
SSD_DEVICE i32 find_branch(Ctx& ctx, const LookupArgs& args, i32 row, i32 count) {
    const i32* accepted = args.cache_accepted + i64(row) * args.num_branches;
    const i64* bonus = args.cache_bonus + i64(row) * args.num_branches;
    i32 found = -1;
    for (i32 branch = ctx.thread_index(); branch < count; branch += ctx.num_threads())
        if (accepted[branch] == args.accepted[row] && bonus[branch] == args.bonus[row])
            found = branch;
    return ctx.max(found);
}

// The place of the bonus token among the candidates after `accepted` tokens, or -1.
template <class Ctx>
SSD_DEVICE i32 rank_of_bonus(Ctx& ctx, const LookupArgs& args, i32 row, i32 accepted) {
    i32 found = -1;
    if (args.candidates != nullptr) {
        const i64* const candidates =
            args.candidates + (i64(row) * (args.max_draft + 1) + accepted) * args.num_ranks;
        for (i32 rank = ctx.thread_index(); rank < args.num_ranks; rank += ctx.num_threads())
            if (candidates[rank] == args.bonus[row]) found = rank;
    }
    return ctx.max(found);
}

template <class Ctx>
SSD_DEVICE void lookup_row(Ctx& ctx, const LookupArgs& args, i32 row) {
    const i32 width = args.max_draft + 1;
    i64* const verify_tokens = args.verify_tokens + i64(row) * width;
    i64* const message = args.outcome + i64(row) * (kEmitted + width + kNumExtra);
    const bool was_active = args.active[row];
    const i32 prepared = was_active ? num_prepared(args, row) : 0;
    const i32 branch = find_branch(ctx, args, row, prepared);
    const i32 accepted = was_active ? i32(args.accepted[row]) : 0;
    const i32 rank = rank_of_bonus(ctx, args, row, accepted);
    const i32 num_emitted = was_active ? accepted + 1 : 0;
    const i64 text = args.length[row] + num_emitted;
    const i64 room = args.limit[row] - text - 1;  // for drafts: the bonus token takes a place too
    const bool is_active = was_active && room >= 0;
    const bool is_hit = is_active && branch >= 0;
    i32 depth = is_hit ? args.cache_depth[row] : 0;
    if (is_hit && room < depth) depth = i32(room);
    const bool has_ended = was_active && !is_active;
    const i64 start = has_ended ? 0 : text - 1;
    const i64 slab = i64(args.num_slots) * args.num_branches;
    const i64 place = i64(row) * args.num_branches + branch;

    // (t*, x1 .. xK), zeros for what there is not.
    auto next_token = [&](i32 i) -> i64 {
        if (i > 0) return i <= depth ? args.cache_tokens[(i - 1) * slab + place] : 0;
        return is_active ? args.bonus[row] : 0;
    };
    const i64 before_bonus = is_active ? verify_tokens[accepted] : 0;

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
    message[kAccepted] = accepted;
    i64* const extra = message + kEmitted + width;
    extra[kPrepared] = prepared > 0 ? branch >= 0 : -1;
    extra[kRank] = was_active ? rank : -1;
    extra[kStatus] = was_active && args.status ? args.status[row] : 0;
    const i64 last = next_token(depth);
    args.verify_write_at[row] = args.target_scratch + start;
    args.kind[row] = is_hit ? kHit : kNone;
    args.num_draft[row] = depth;
    args.length[row] = start + 1;
    args.active[row] = is_active;
    args.round[row] += 1;
    if (args.root_tokens == nullptr) return;  // no draft
    args.last_tokens[2 * row] = before_bonus;
    args.last_tokens[2 * row + 1] = next_token(0);
    args.root_tokens[row] = last < args.draft_vocab ? last : 0;
    args.root_positions[row] = start + depth;
    args.root_write_at[row] = args.draft_scratch + start + depth;
    args.winner[row] = depth > 0 ? branch : -1;
    args.commit_at[row] = args.draft_scratch + start;
    if (was_active && args.cache_branches != nullptr) args.cache_branches[row] = 0;
}

template <class Ctx>
SSD_DEVICE void lookup(Ctx& ctx, const LookupArgs& args) {
    for (i32 row = ctx.block_index(); row < args.num_rows; row += ctx.num_blocks())
        lookup_row(ctx, args, row);
}

SSD_KERNEL_WITH_CALLS(ssd_lookup, LookupArgs, 128, 4, lookup)
