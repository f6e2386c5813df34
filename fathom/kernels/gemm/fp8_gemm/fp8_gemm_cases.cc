#include "fathom/kernels/gemm/fp8_gemm/fp8_gemm.h"
#include "fathom/kernels/gemm/product_cases.h"

namespace fathom {

void add_fp8_gemm_cases(CaseList& list) {
  const std::vector<Format> y_types{Format::kBf16, Format::kF32};
  add_small_product_cases<Fp8BlockGemm>(list, Format::kFp8Block, 300, y_types);
  for (int64_t t : {2, 9}) {
    for (WeightLayout layout : {WeightLayout::kRows16, WeightLayout::kRowMajor}) {
      // Partial blocks at the ends of N and K, and lengths that fill no quad of k.
      for (int64_t k : {2, 131, 300}) {
        add_product_case<Fp8BlockGemm>(
            list, {.t = t, .n = 150, .k = k, .weight = Format::kFp8BlockUe8m0, .layout = layout});
      }
    }
  }
  for (int64_t t : {1, 8, 512}) {
    const auto bench = [&](const char* op, int64_t n, int64_t k) {
      add_product_case<Fp8BlockGemm>(
          list, {.t = t, .n = n, .k = k, .weight = Format::kFp8Block, .op = op});
    };
    bench("r1_fused_qkv_a_proj", 2112, 7168);
    bench("r1_q_b_proj", 24576, 1536);
    bench("r1_o_proj", 7168, 16384);
    bench("r1_shared_gate_up_proj", 4096, 7168);
    bench("r1_shared_down_proj", 7168, 2048);
  }
}

}  // namespace fathom
