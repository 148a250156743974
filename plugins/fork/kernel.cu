// Branches, their inputs, and what is kept of a winner: plugins/fork/__init__.py names the arrays.
// One block a row; a block may take several rows.

#include "plugins/cuda/entry.cuh"

using ssd::i32;
using ssd::i64;
using ssd::u8;

struct ForkArgs {
    const u8* active;
    const i64* length;
    const i64* limit;
    const i64* generation;
    const i64* round;
    const i64* num_draft;
    const i32* fan_out;
    const i64* root_list;
    const i32* winner;
    const i64* branch_lists;
    const i64* chosen;
    i64* candidates;
    i64* fork_tokens;
    i64* lengths;  // written by a fork, read by a step
    i32* cache_branches;
    i32* cache_depth;
    i64* cache_generation;
    i64* cache_round;
    i32* cache_accepted;
    i64* cache_bonus;
    i64* step_tokens;
    i64* step_positions;
    i64* step_write_at;
    i64* step_logit_rows;
    i32 num_rows;
    i32 num_slots;
    i32 num_branches;
    i32 max_draft;
    i32 num_ranks;
    i32 draft_vocab;
    i32 stride;
    i32 depth;  // of the cache for a fork, of the call for a step
};

SSD_DEVICE i32 smaller(i32 a, i32 b) { return a < b ? a : b; }

// An outcome to prepare for: the candidate of this rank after so many accepted tokens.
struct Place {
    i32 accepted, rank;
};

// The outcomes of a row in their order: those after 0 accepted tokens first.
struct Outcomes {
    const i32* counts;
    i32 num_draft, num_ranks;

    // That of this number; rank -1 behind the last.
    SSD_DEVICE Place at(i32 number) const {
        for (i32 accepted = 0; accepted <= num_draft; ++accepted) {
            const i32 count = smaller(counts[accepted], num_ranks);
            if (number < count) return {accepted, number};
            number -= count;
        }
        return {0, -1};
    }

    SSD_DEVICE i32 count() const {
        i32 total = 0;
        for (i32 accepted = 0; accepted <= num_draft; ++accepted)
            total += smaller(counts[accepted], num_ranks);
        return total;
    }
};

template <class Ctx>
SSD_DEVICE void fork_row(Ctx& ctx, const ForkArgs& args, i32 row) {
    const i32 drafted = i32(args.num_draft[row]);
    const i64* const root_list = args.root_list + i64(row) * (args.num_ranks + 1);
    i64* const candidates = args.candidates + i64(row) * (args.max_draft + 1) * args.num_ranks;
    for (i32 rank = ctx.thread_index(); rank < args.num_ranks; rank += ctx.num_threads())
        candidates[drafted * args.num_ranks + rank] = root_list[rank];

    const i64 text = args.length[row];
    const bool is_open = args.active[row] && text + 1 < args.limit[row];
    const Outcomes outcomes = {args.fan_out + drafted * (args.max_draft + 1), drafted,
                               args.num_ranks};
    for (i32 branch = ctx.thread_index(); branch < args.num_branches;
         branch += ctx.num_threads()) {
        const Place place = is_open ? outcomes.at(branch) : Place{0, -1};
        i64 token = -1;
        if (place.rank >= 0) {
            const bool is_last = place.accepted == drafted;  // other threads write it meanwhile
            token = is_last ? root_list[place.rank]
                            : candidates[place.accepted * args.num_ranks + place.rank];
        }
        const i64 at = i64(row) * args.num_branches + branch;
        args.cache_accepted[at] = place.accepted;
        args.cache_bonus[at] = token;
        args.fork_tokens[at] = token >= 0 ? token : 0;
        args.lengths[at] = token >= 0 ? text + place.accepted : 0;
    }
    if (ctx.thread_index() != 0) return;
    args.cache_branches[row] = is_open ? smaller(outcomes.count(), args.num_branches) : 0;
    args.cache_depth[row] = args.depth;
    args.cache_generation[row] = args.generation[row];
    args.cache_round[row] = args.round[row];
}

template <class Ctx>
SSD_DEVICE void step_row(Ctx& ctx, const ForkArgs& args, i32 row) {
    for (i32 branch = ctx.thread_index(); branch < args.num_branches;
         branch += ctx.num_threads()) {
        const i64 at = i64(row) * args.num_branches + branch;
        const i64 token = args.chosen[at];
        args.step_tokens[at] = token >= 0 && token < args.draft_vocab ? token : 0;
        args.step_positions[at] = args.lengths[at] + args.depth;
        args.step_logit_rows[at] = branch;
    }
    if (ctx.thread_index() == 0) args.step_write_at[row] = i64(args.depth) * args.stride;
}

template <class Ctx>
SSD_DEVICE void keep_row(Ctx& ctx, const ForkArgs& args, i32 row) {
    const i32 branch = args.winner[row];
    if (branch < 0) return;
    const i32 count = i32(args.num_draft[row]) * args.num_ranks;
    i64* const candidates = args.candidates + i64(row) * (args.max_draft + 1) * args.num_ranks;
    for (i32 i = ctx.thread_index(); i < count; i += ctx.num_threads()) {
        const i64 slot = i64(i / args.num_ranks) * args.num_slots + row;
        const i64 list = slot * args.num_branches + branch;
        candidates[i] = args.branch_lists[list * (args.num_ranks + 1) + 1 + i % args.num_ranks];
    }
}

template <class Ctx>
SSD_DEVICE void fork(Ctx& ctx, const ForkArgs& args) {
    for (i32 row = ctx.block_index(); row < args.num_rows; row += ctx.num_blocks())
        fork_row(ctx, args, row);
}

template <class Ctx>
SSD_DEVICE void step(Ctx& ctx, const ForkArgs& args) {
    for (i32 row = ctx.block_index(); row < args.num_rows; row += ctx.num_blocks())
        step_row(ctx, args, row);
}

template <class Ctx>
SSD_DEVICE void keep(Ctx& ctx, const ForkArgs& args) {
    for (i32 row = ctx.block_index(); row < args.num_rows; row += ctx.num_blocks())
        keep_row(ctx, args, row);
}

SSD_KERNEL_WITH_CALLS(ssd_fork, ForkArgs, 128, 4, fork)
SSD_KERNEL_WITH_CALLS(ssd_fork_step, ForkArgs, 128, 4, step)
SSD_KERNEL_WITH_CALLS(ssd_fork_keep, ForkArgs, 128, 4, keep)
