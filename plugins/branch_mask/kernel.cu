// Attention masks from lengths: plugins/branch_mask/__init__.py names the arrays. One block for
// each token of each batch row; a block may take several.

#include "plugins/cuda/rows.cuh"

using ssd::i32;
using ssd::i64;
using ssd::u32;
using ssd::u64;
using ssd::u8;

struct BranchMaskArgs {
    const i64* positions;  // trunk: write_at [B], branch: lengths [B, T]
    u8* mask;
    i32 num_rows;
    i32 num_tokens;
    i32 num_attended;
    i32 scratch_rows;
    i32 num_branches;
    i32 depth;
};

// Rows [first, end) of the text, and `branch`'s own rows of depths up to `depth`; -1 for none.
struct Attended {
    i64 first, end;
    i32 branch, depth, num_branches;

    SSD_DEVICE bool operator()(i32 row) const {
        if (row >= first) return row < end;
        return row % num_branches == branch && row / num_branches <= depth;
    }
};

// One token's mask, 16 bytes a store but for a head and a tail: L need not be a multiple of 16.
template <class Ctx>
SSD_DEVICE void write_mask(Ctx& ctx, u8* mask, i32 count, const Attended& attended) {
    const i32 misaligned = i32((16 - (u64(mask) & 15)) & 15);
    const i32 head = misaligned < count ? misaligned : count;
    const i32 num_vectors = (count - head) / 16;
    const i32 tail = head + num_vectors * 16;
    for (i32 i = ctx.thread_index(); i < head; i += ctx.num_threads()) mask[i] = attended(i);
    for (i32 i = tail + ctx.thread_index(); i < count; i += ctx.num_threads())
        mask[i] = attended(i);
    for (i32 vector = ctx.thread_index(); vector < num_vectors; vector += ctx.num_threads()) {
        const i32 first = head + vector * 16;
        ssd::Vec16 bytes;
        SSD_UNROLL
        for (i32 word = 0; word < 4; ++word) {
            bytes.words[word] = 0;
            SSD_UNROLL
            for (i32 byte = 0; byte < 4; ++byte)
                bytes.words[word] |= u32(attended(first + word * 4 + byte)) << (8 * byte);
        }
        ssd::store16(mask + first, bytes);
    }
}

template <class Ctx>
SSD_DEVICE void trunk_mask(Ctx& ctx, const BranchMaskArgs& args) {
    for (i32 i = ctx.block_index(); i < args.num_rows * args.num_tokens; i += ctx.num_blocks()) {
        const i32 row = i / args.num_tokens, token = i % args.num_tokens;
        const i64 end = args.positions[row] + token + 1;
        write_mask(ctx, args.mask + i64(i) * args.num_attended, args.num_attended,
                   {args.scratch_rows, end, -1, 0, 1});
    }
}

template <class Ctx>
SSD_DEVICE void branch_mask(Ctx& ctx, const BranchMaskArgs& args) {
    for (i32 i = ctx.block_index(); i < args.num_rows * args.num_tokens; i += ctx.num_blocks()) {
        const i64 end = args.scratch_rows + args.positions[i];
        write_mask(ctx, args.mask + i64(i) * args.num_attended, args.num_attended,
                   {args.scratch_rows, end, i % args.num_tokens, args.depth, args.num_branches});
    }
}

SSD_KERNEL(ssd_trunk_mask, BranchMaskArgs, 256, trunk_mask)
SSD_KERNEL(ssd_branch_mask, BranchMaskArgs, 256, branch_mask)
