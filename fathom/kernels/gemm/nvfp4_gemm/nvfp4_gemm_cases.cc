#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"
#include "fathom/kernels/gemm/product_cases.h"

namespace fathom {

void add_nvfp4_gemm_cases(CaseList& list) {
  add_small_product_cases<Nvfp4Gemm>(list, Format::kNvfp4, 300, {Format::kBf16, Format::kF32});
  add_product_case<Nvfp4Gemm>(list, {.t = 9, .n = 17, .k = 16448, .weight = Format::kNvfp4});
  for (int64_t t : {1, 8, 512}) {
    const auto bench = [&](const char* op, int64_t n, int64_t k) {
      add_product_case<Nvfp4Gemm>(list,
                                  {.t = t, .n = n, .k = k, .weight = Format::kNvfp4, .op = op});
    };
    bench("r1_o_proj", 7168, 16384);
    bench("r1_q_b_proj", 24576, 1536);
    bench("r1_shared_gate_up_proj", 4096, 7168);
    bench("r1_shared_down_proj", 7168, 2048);
    bench("v2lite_o_proj", 2048, 2048);
    bench("v2lite_shared_gate_up_proj", 5632, 2048);
  }
}

}  // namespace fathom
