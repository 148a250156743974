// Drafted tokens, for each type of logits.

#include "plugins/sample/greedy.cuh"
#include "plugins/sample/sampler.cuh"

// The law's first pass, for batches in which a row may truncate.
template <class T, class Ctx>
SSD_DEVICE void find_sample_brackets(Ctx& ctx, const ssd::SampleArgs& args) {
    ssd::find_brackets<T>(ctx, args.scan);
}

SSD_KERNEL(ssd_sample_brackets_f32, ssd::SampleArgs, 256, find_sample_brackets<float>)
SSD_KERNEL(ssd_sample_brackets_f16, ssd::SampleArgs, 256, find_sample_brackets<ssd::Half>)
SSD_KERNEL(ssd_sample_brackets_bf16, ssd::SampleArgs, 256, find_sample_brackets<ssd::BFloat16>)
SSD_KERNEL(ssd_sample_f32, ssd::SampleArgs, 128, ssd::sample<float>)
SSD_KERNEL(ssd_sample_f16, ssd::SampleArgs, 128, ssd::sample<ssd::Half>)
SSD_KERNEL(ssd_sample_bf16, ssd::SampleArgs, 128, ssd::sample<ssd::BFloat16>)
SSD_KERNEL(ssd_sample_best_f32, ssd::SampleArgs, 256, ssd::best_of_slice<float>)
SSD_KERNEL(ssd_sample_best_f16, ssd::SampleArgs, 256, ssd::best_of_slice<ssd::Half>)
SSD_KERNEL(ssd_sample_best_bf16, ssd::SampleArgs, 256, ssd::best_of_slice<ssd::BFloat16>)
SSD_KERNEL(ssd_sample_take, ssd::SampleArgs, 256, ssd::take_best)
