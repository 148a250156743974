// Rows of the winning branches from scratch to trunk: plugins/kv_commit/__init__.py names the
// arrays. One block for each cache and batch row; a block may take several such pairs.

#include "plugins/cuda/rows.cuh"

using ssd::i32;
using ssd::i64;
using ssd::u16;
using ssd::u32;
using ssd::u64;
using ssd::u8;
using ssd::Vec16;

struct KvCommitArgs {
    u8* const* caches;
    const i32* winner;
    const i64* num_draft;
    const i64* commit_at;
    i32 num_caches;
    i32 num_rows;
    i32 num_heads;
    i32 cache_rows;
    i32 row_bytes;
    i32 num_branches;
};

SSD_DEVICE void copy(u8* to, const u8* from, const Vec16&) {
    ssd::store16(to, ssd::load16(from));
}

template <class Unit>
SSD_DEVICE void copy(u8* to, const u8* from, const Unit&) {
    *reinterpret_cast<Unit*>(to) = *reinterpret_cast<const Unit*>(from);
}

// Copies in units of one size; neighbouring threads take neighbouring units.
template <class Unit, class Ctx>
SSD_DEVICE void move_rows(Ctx& ctx, const KvCommitArgs& args, u8* slot, i32 depth, i32 branch,
                          i64 first) {
    const i32 units = args.row_bytes / i32(sizeof(Unit));
    const i32 total = args.num_heads * depth * units;  // of one slot: far below 2**31
    for (i32 i = ctx.thread_index(); i < total; i += ctx.num_threads()) {
        const i32 unit = i % units;
        const i32 step = i / units % depth;
        const i64 head_start = i64(i / units / depth) * args.cache_rows;
        const i64 from = head_start + i64(step) * args.num_branches + branch;
        const i64 to = head_start + first + step;
        const i64 offset = i64(unit) * i32(sizeof(Unit));
        copy(slot + to * args.row_bytes + offset, slot + from * args.row_bytes + offset, Unit{});
    }
}

template <class Ctx>
SSD_DEVICE void kv_commit(Ctx& ctx, const KvCommitArgs& args) {
    const i64 slot_bytes = i64(args.num_heads) * args.cache_rows * args.row_bytes;
    for (i32 pair = ctx.block_index(); pair < args.num_caches * args.num_rows;
         pair += ctx.num_blocks()) {
        const i32 row = pair % args.num_rows;
        const i32 branch = args.winner[row];
        const i32 depth = i32(args.num_draft[row]);
        if (branch < 0 || depth == 0) continue;
        u8* const slot = args.caches[pair / args.num_rows] + row * slot_bytes;
        const i64 first = args.commit_at[row];
        const u64 alignment = u64(slot) | u64(args.row_bytes);
        if (alignment % 16 == 0) {
            move_rows<Vec16>(ctx, args, slot, depth, branch, first);
        } else if (alignment % 4 == 0) {
            move_rows<u32>(ctx, args, slot, depth, branch, first);
        } else if (alignment % 2 == 0) {
            move_rows<u16>(ctx, args, slot, depth, branch, first);
        } else {
            move_rows<u8>(ctx, args, slot, depth, branch, first);
        }
    }
}

SSD_KERNEL(ssd_kv_commit, KvCommitArgs, 256, kv_commit)
