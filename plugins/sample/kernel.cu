// Drafted tokens, for each type of logits.

#include "plugins/law/entry.cuh"
#include "plugins/sample/greedy.cuh"
#include "plugins/sample/sampler.cuh"

SSD_KERNEL_WITH_CALLS(ssd_sample_brackets_f32, ssd::SampleArgs, 256, 4,
                      ssd::find_sample_brackets<float>)
SSD_KERNEL_WITH_CALLS(ssd_sample_brackets_f16, ssd::SampleArgs, 256, 4,
                      ssd::find_sample_brackets<ssd::Half>)
SSD_KERNEL_WITH_CALLS(ssd_sample_brackets_bf16, ssd::SampleArgs, 256, 4,
                      ssd::find_sample_brackets<ssd::BFloat16>)
SSD_KERNEL_WITH_CALLS(ssd_sample_f32, ssd::SampleArgs, 128, 6, ssd::sample<float>)
SSD_KERNEL_WITH_CALLS(ssd_sample_f16, ssd::SampleArgs, 128, 6, ssd::sample<ssd::Half>)
SSD_KERNEL_WITH_CALLS(ssd_sample_bf16, ssd::SampleArgs, 128, 6, ssd::sample<ssd::BFloat16>)
SSD_KERNEL(ssd_sample_best_f32, ssd::SampleArgs, 256, ssd::best_of_slice<float>)
SSD_KERNEL(ssd_sample_best_f16, ssd::SampleArgs, 256, ssd::best_of_slice<ssd::Half>)
SSD_KERNEL(ssd_sample_best_bf16, ssd::SampleArgs, 256, ssd::best_of_slice<ssd::BFloat16>)
SSD_KERNEL(ssd_sample_take, ssd::SampleArgs, 256, ssd::take_best)
