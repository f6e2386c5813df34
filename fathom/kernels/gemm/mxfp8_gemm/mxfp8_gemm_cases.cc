#include "fathom/kernels/gemm/mxfp8_gemm/mxfp8_gemm.h"
#include "fathom/kernels/gemm/product_cases.h"

namespace fathom {
namespace {

using K = Mxfp8Gemm;

/// What the shapes of all products leave out: odd K, partial blocks and super-tiles at every place.
void add_block_cases(CaseList& list) {
  const auto add = [&](ProductShape s) {
    s.weight = Format::kMxfp8;
    add_product_case<K>(list, s);
  };
  for (int64_t k : {1, 3, 31, 33, 95, 96, 97, 160, 224, 255, 257, 1000}) {
    add({.t = 2, .n = 17, .k = k, .y = Format::kF32});
    add({.t = 19, .n = 33, .k = k});
  }
  add({.t = 5, .n = 19, .k = 37, .layout = WeightLayout::kRowMajor});
  add({.t = 70, .n = 80, .k = 1056, .x = Format::kF32, .y = Format::kF32});
}

}  // namespace

void add_mxfp8_gemm_cases(CaseList& list) {
  add_small_product_cases<K>(list, Format::kMxfp8, 300,
                             {Format::kBf16, Format::kF32, Format::kF16});
  add_product_case<K>(list, {.t = 9, .n = 17, .k = 8448, .weight = Format::kMxfp8});
  add_block_cases(list);
  for (int64_t t : {1, 8, 16, 512}) {
    const auto timed = [&](const char* op, int64_t n, int64_t k) {
      add_product_case<K>(list, {.t = t, .n = n, .k = k, .weight = Format::kMxfp8, .op = op});
    };
    timed("r1_o_proj", 7168, 16384);
    timed("r1_q_b_proj", 24576, 1536);
    timed("r1_shared_gate_up_proj", 4096, 7168);
    timed("r1_shared_down_proj", 7168, 2048);
  }
  list.serve_calls("mxfp8_gemm", add_product_call<K>);
}

}  // namespace fathom
