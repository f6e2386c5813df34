#include "fathom/kernels/gemm/product_cases.h"
#include "fathom/kernels/moe/mxfp8_group_gemm/mxfp8_group_gemm.h"

namespace fathom {

void add_mxfp8_group_gemm_cases(CaseList& list) {
  const auto add = [&](GroupedShape s) {
    s.weight = Format::kMxfp8;
    add_grouped_case<Mxfp8GroupGemm>(list, s);
  };
  add_small_grouped_cases<Mxfp8GroupGemm>(list, Format::kMxfp8);
  add({.counts = {1, 0, 2, 3}, .n = 48, .k = 33, .y = Format::kF32});
  add({.counts = {0, 5, 0, 70}, .n = 32, .k = 1056, .before = 1, .after = 2});
  // R1's experts, few of them, for a token, eight and 128.
  for (const std::vector<int64_t>& counts :
       std::initializer_list<std::vector<int64_t>>{{1, 1, 1, 1, 1, 1, 1, 1},
                                                   {8, 9, 6, 10, 8, 5, 7, 11},
                                                   {128, 135, 117, 130, 127, 120, 131, 136}}) {
    const auto timed = [&](const char* op, int64_t n, int64_t k) {
      add({.counts = counts, .n = n, .k = k, .top_k = 8, .op = op});
    };
    timed("r1_experts_gate_up", 4096, 7168);
    timed("r1_experts_down", 7168, 2048);
  }
  list.serve_calls("mxfp8_group_gemm", add_grouped_call<Mxfp8GroupGemm>);
}

}  // namespace fathom
