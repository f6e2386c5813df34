#include "fathom/kernels/gemm/product_cases.h"
#include "fathom/kernels/gemm/skinny_gemm/skinny_gemm.h"

namespace fathom {
namespace {

/// The shapes of the reference calls, with the weight as they pass it.
void add_reference_cases(CaseList& list) {
  constexpr WeightLayout kRowMajor = WeightLayout::kRowMajor;
  for (int64_t t : {1, 8, 16}) {
    add_product_case<LatentDownGemm>(
        list,
        {.t = t, .n = 2112, .k = 7168, .layout = kRowMajor, .op = "fused_qkv_a_proj_with_mqa"});
    for (Format y : {Format::kBf16, Format::kF32}) {
      for (int64_t experts : {256, 384}) {
        add_product_case<RouterGemm>(
            list, {.t = t, .n = experts, .k = 7168, .y = y, .layout = kRowMajor, .op = "r1_gate"});
      }
    }
  }
}

}  // namespace

void add_skinny_gemm_cases(CaseList& list) {
  const std::vector<Format> y_types{Format::kBf16, Format::kF32};
  add_small_product_cases<LatentDownGemm>(list, Format::kBf16, 16, y_types);
  add_small_product_cases<RouterGemm>(list, Format::kBf16, 16, y_types);
  for (int64_t t = 0; t <= 16; ++t) {
    add_product_case<LatentDownGemm>(
        list, {.t = t, .n = 66, .k = 224, .layout = WeightLayout::kRowMajor});
    add_product_case<RouterGemm>(
        list, {.t = t, .n = 24, .k = 224, .y = Format::kF32, .layout = WeightLayout::kRowMajor});
  }
  // So many rows of w and k that one or two rows of x are multiplied row by row of w; ends of k
  // that fill no warp, and of rows that fill none.
  for (int64_t t : {1, 2}) {
    for (int64_t k : {1024, 1336}) {
      for (Format y : y_types) {
        add_product_case<LatentDownGemm>(
            list,
            {.t = t, .n = 515, .k = k, .y = y, .layout = WeightLayout::kRowMajor, .x_gap = 8});
      }
    }
  }
  for (int64_t t : {1, 8, 16}) {
    add_product_case<LatentDownGemm>(
        list, {.t = t, .n = 2112, .k = 7168, .op = "fused_qkv_a_proj_with_mqa"});
    add_product_case<RouterGemm>(list,
                                 {.t = t, .n = 256, .k = 7168, .y = Format::kF32, .op = "r1_gate"});
    add_product_case<RouterGemm>(
        list, {.t = t, .n = 64, .k = 2048, .y = Format::kF32, .op = "v2lite_gate"});
  }
  add_reference_cases(list);
  const ReferenceLimit few{.most_tokens = 16,
                           .why = "the contract takes at most 16 tokens; bf16_gemm runs above"};
  add_reference_products<LatentDownGemm>(list, "fused_qkv_a_proj", {.n = 2112, .k = 7168}, few);
  add_reference_products<RouterGemm>(list, "gate", {.n = 256, .k = 7168, .y = Format::kF32}, few);
  list.serve_calls("latent_down_gemm", add_product_call<LatentDownGemm>);
  list.serve_calls("router_gemm", add_product_call<RouterGemm>);
}

}  // namespace fathom
