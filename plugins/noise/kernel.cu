// The noise written out, one block a position, for the comparison with its specification.

#include "plugins/cuda/block.cuh"
#include "plugins/noise/noise.cuh"

struct NoiseArgs {
    const ssd::u64* seed;       // [N]
    const ssd::i64* position;   // [N]
    ssd::u32* bits;             // [N, V]
    float* gumbel;              // [N, V]
    double* uniform;            // [N, 4], by purpose
    int vocab_size;
};

template <class Ctx>
SSD_DEVICE void write_noise(Ctx& ctx, const NoiseArgs& args) {
    const int row = ctx.block_index();
    const ssd::u64 seed = args.seed[row], position = ssd::u64(args.position[row]);
    ssd::u32* const bits = args.bits + ssd::i64(row) * args.vocab_size;
    float* const gumbel = args.gumbel + ssd::i64(row) * args.vocab_size;

    const int stride = ssd::kIdsPerBlock * ctx.num_threads();
    for (int first = ssd::kIdsPerBlock * ctx.thread_index(); first < args.vocab_size;
         first += stride) {
        const auto block = ssd::philox(seed, position, ssd::Purpose::kToken, first / 8);
        float noise[ssd::kIdsPerBlock];
        ssd::gumbel8(seed, position, first, noise);
        for (int i = 0; i < ssd::kIdsPerBlock && first + i < args.vocab_size; ++i) {
            bits[first + i] = ssd::bits_of(block, i);
            gumbel[first + i] = noise[i];
        }
    }
    for (int purpose = ctx.thread_index(); purpose < 4; purpose += ctx.num_threads())
        args.uniform[row * 4 + purpose] =
            ssd::uniform53(seed, position, static_cast<ssd::Purpose>(purpose));
}

SSD_KERNEL(ssd_noise, NoiseArgs, 256, write_noise)
