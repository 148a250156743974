// Where the rows of a batch are cut: the first pass, and a second pass that does nothing else.

#include "plugins/law/cut.cuh"
#include "plugins/law/entry.cuh"

#define ENTRY(name, ...) SSD_KERNEL_WITH_CALLS(name, ssd::LawArgs, 256, 4, __VA_ARGS__)

ENTRY(ssd_law_brackets_f32, ssd::find_brackets<float>)
ENTRY(ssd_law_brackets_f16, ssd::find_brackets<ssd::Half>)
ENTRY(ssd_law_brackets_bf16, ssd::find_brackets<ssd::BFloat16>)
ENTRY(ssd_law_cuts_f32, ssd::find_cuts<float>)
ENTRY(ssd_law_cuts_f16, ssd::find_cuts<ssd::Half>)
ENTRY(ssd_law_cuts_bf16, ssd::find_cuts<ssd::BFloat16>)
