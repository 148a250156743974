// Kernels that break the rules of the block context, each in one way.

#include "plugins/cuda/rows.cuh"

struct FaultyArgs {
    int* out;
};

struct Cell {
    int value;
};

// Every thread writes the same cell, and one reads it with no sync in between.
template <class Ctx>
SSD_DEVICE void racy(Ctx& ctx, const FaultyArgs& args) {
    auto& cell = ctx.template shared<Cell>();
    cell.value = ctx.thread_index();
    if (ctx.thread_index() == 0) args.out[ctx.block_index()] = cell.value;
}
SSD_KERNEL(faulty_racy, FaultyArgs, 1024, racy)

// Blocks that meet in global memory without a ticket.
template <class Ctx>
SSD_DEVICE void racy_blocks(Ctx& ctx, const FaultyArgs& args) {
    if (ctx.thread_index() == 0) args.out[0] += 1;
}
SSD_KERNEL(faulty_racy_blocks, FaultyArgs, 1024, racy_blocks)

template <class Ctx>
SSD_DEVICE void diverging(Ctx& ctx, const FaultyArgs&) {
    if (ctx.thread_index() == 0) ctx.sync();
}
SSD_KERNEL(faulty_diverging, FaultyArgs, 1024, diverging)

struct TooLarge {
    int values[16 * 1024];
};

template <class Ctx>
SSD_DEVICE void greedy(Ctx& ctx, const FaultyArgs& args) {
    args.out[0] = ctx.template shared<TooLarge>().values[0];
}
SSD_KERNEL(faulty_greedy, FaultyArgs, 1024, greedy)

// A GPU stops a whole process for this; x86 would load it.
template <class Ctx>
SSD_DEVICE void misaligned(Ctx& ctx, const FaultyArgs& args) {
    if (ctx.thread_index() == 0) args.out[0] = int(ssd::load16((char*)args.out + 4).words[0]);
    ctx.sync();
}
SSD_KERNEL(faulty_misaligned, FaultyArgs, 1024, misaligned)

// Shared memory before anything was written there.
template <class Ctx>
SSD_DEVICE void unwritten(Ctx& ctx, const FaultyArgs& args) {
    args.out[0] = ctx.template shared<Cell>().value;
    ctx.sync();
    ctx.template shared<Cell>().value = 0;
}
SSD_KERNEL(faulty_unwritten, FaultyArgs, 4, unwritten)
