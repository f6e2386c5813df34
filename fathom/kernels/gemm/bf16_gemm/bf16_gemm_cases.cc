#include "fathom/kernels/gemm/bf16_gemm/bf16_gemm.h"
#include "fathom/kernels/gemm/product_cases.h"

namespace fathom {
namespace {

void add_bf16_gemm_shapes(CaseList& list) {
  add_small_product_cases<Bf16Gemm>(list, Format::kBf16, 300, {Format::kBf16, Format::kF32});
  // Lengths of k that fill no pair, and weights in float32.
  for (int64_t k : {1, 2, 3, 255, 257}) {
    add_product_case<Bf16Gemm>(list, {.t = 2, .n = 17, .k = k, .y = Format::kF32});
    add_product_case<Bf16Gemm>(list, {.t = 9, .n = 17, .k = k});
  }
  add_product_case<Bf16Gemm>(list, {.t = 20, .n = 17, .k = 257});
  for (Format x : {Format::kBf16, Format::kF32}) {
    add_product_case<Bf16Gemm>(list, {.t = 7,
                                      .n = 37,
                                      .k = 101,
                                      .weight = Format::kF32,
                                      .x = x,
                                      .y = Format::kF32,
                                      .layout = WeightLayout::kRowMajor});
  }
  // Taken row by row on a GPU: rows and k that fill no whole block or load.
  for (int64_t t : {1, 2})
    add_product_case<Bf16Gemm>(list, {.t = t, .n = 777, .k = 2312, .x_gap = 8});
  for (int64_t t : {1, 8, 512}) {
    const auto bench = [&](const char* op, int64_t n, int64_t k, Format y = Format::kBf16) {
      add_product_case<Bf16Gemm>(list, {.t = t, .n = n, .k = k, .y = y, .op = op});
    };
    bench("r1_q_b_proj", 24576, 1536);
    bench("r1_kv_b_proj", 32768, 512);
    bench("r1_fused_qkv_a_proj", 2112, 7168);
    bench("v2lite_q_proj", 3072, 2048);
    bench("v2lite_o_proj", 2048, 2048);
    if (t <= 8) bench("r1_lm_head", 129280, 7168, Format::kF32);
    if (t <= 8) bench("v2lite_lm_head", 102400, 2048, Format::kF32);
  }
}

void add_bf16_bmm_shapes(CaseList& list) {
  for (int64_t t : {0, 1, 2, 5, 9, 33}) {
    for (Format a : {Format::kBf16, Format::kF32}) {
      add_product_case<Bf16Bmm>(list, {.t = t, .n = 32, .k = 48, .x = a, .y = a, .heads = 3});
      add_product_case<Bf16Bmm>(list, {.t = t, .n = 16, .k = 130, .x = a, .y = a, .heads = 2});
    }
  }
  for (int64_t t : {1, 7, 70}) {
    const WeightLayout layout = WeightLayout::kRowMajor;
    add_product_case<Bf16Bmm>(list, {.t = t, .n = 21, .k = 132, .layout = layout, .heads = 3});
    add_product_case<Bf16Gemm>(list, {.t = t, .n = 81, .k = 4, .layout = layout});
    add_product_case<Bf16Gemm>(list, {.t = t, .n = 129, .k = 300, .layout = layout});
  }
  for (Format w : {Format::kBf16, Format::kF32}) {
    add_product_case<Bf16Bmm>(
        list,
        {.t = 4, .n = 21, .k = 33, .weight = w, .layout = WeightLayout::kRowMajor, .heads = 3});
  }
  for (int64_t t : {1, 8, 128}) {
    // The grouped output projection of DeepSeek-V4: 8 or 16 groups of 8 heads of 512.
    add_product_case<Bf16Bmm>(
        list, {.t = t, .n = 1024, .k = 4096, .op = "v4_flash_o_a_proj", .heads = 8});
    add_product_case<Bf16Bmm>(list,
                              {.t = t, .n = 1024, .k = 4096, .op = "v4_pro_o_a_proj", .heads = 16});
    add_product_case<Bf16Bmm>(list, {.t = t, .n = 512, .k = 128, .op = "r1_w_kc", .heads = 128});
    add_product_case<Bf16Bmm>(list, {.t = t, .n = 128, .k = 512, .op = "r1_w_vc", .heads = 128});
    add_product_case<Bf16Bmm>(list, {.t = t, .n = 512, .k = 128, .op = "v2lite_w_kc", .heads = 16});
    add_product_case<Bf16Bmm>(list, {.t = t, .n = 128, .k = 512, .op = "v2lite_w_vc", .heads = 16});
  }
}

}  // namespace

void add_bf16_gemm_cases(CaseList& list) {
  add_bf16_gemm_shapes(list);
  add_bf16_bmm_shapes(list);
  const ReferenceLimit limit{.least_tokens = 17,
                             .most_tokens = 2048,
                             .why = "not of the 23; runs from 17 to 2,048 tokens of the layer"};
  add_reference_products<Bf16Gemm>(list, "fused_qkv_a_proj", {.n = 2112, .k = 7168}, limit);
  add_reference_products<Bf16Gemm>(list, "gate", {.n = 256, .k = 7168, .y = Format::kF32}, limit);
  list.serve_calls("bf16_gemm", add_product_call<Bf16Gemm>);
  list.serve_calls("bf16_bmm", add_product_call<Bf16Bmm>);
}

}  // namespace fathom
