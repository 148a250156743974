// Verification of drafted blocks, for each type of logits.

#include "plugins/law/entry.cuh"
#include "plugins/verify/coupled.cuh"
#include "plugins/verify/greedy.cuh"
#include "plugins/verify/ratio.cuh"

// The law's first pass, for batches in which a row truncates.
template <class T, class Ctx>
SSD_DEVICE void find_verify_brackets(Ctx& ctx, const ssd::VerifyArgs& args) {
    ssd::find_brackets<T>(ctx, args.scan);
}

// The noise takes more registers than 64, and fewer than the 85 of three blocks each.
#define ENTRY(name, blocks_each, ...) \
    SSD_KERNEL_WITH_CALLS(name, ssd::VerifyArgs, 256, blocks_each, __VA_ARGS__)

ENTRY(ssd_verify_brackets_f32, 4, find_verify_brackets<float>)
ENTRY(ssd_verify_brackets_f16, 4, find_verify_brackets<ssd::Half>)
ENTRY(ssd_verify_brackets_bf16, 4, find_verify_brackets<ssd::BFloat16>)
ENTRY(ssd_verify_coupled_f32, 3, ssd::verify_coupled<float>)
ENTRY(ssd_verify_coupled_f16, 3, ssd::verify_coupled<ssd::Half>)
ENTRY(ssd_verify_coupled_bf16, 3, ssd::verify_coupled<ssd::BFloat16>)
ENTRY(ssd_verify_ratio_f32, 4, ssd::verify_ratio<float>)
ENTRY(ssd_verify_ratio_f16, 4, ssd::verify_ratio<ssd::Half>)
ENTRY(ssd_verify_ratio_bf16, 4, ssd::verify_ratio<ssd::BFloat16>)
SSD_KERNEL(ssd_best_rows_f32, ssd::VerifyArgs, 256, ssd::best_of_rows<float>)
SSD_KERNEL(ssd_best_rows_f16, ssd::VerifyArgs, 256, ssd::best_of_rows<ssd::Half>)
SSD_KERNEL(ssd_best_rows_bf16, ssd::VerifyArgs, 256, ssd::best_of_rows<ssd::BFloat16>)
SSD_KERNEL(ssd_accept_best, ssd::VerifyArgs, 256, ssd::accept_best<float>)
