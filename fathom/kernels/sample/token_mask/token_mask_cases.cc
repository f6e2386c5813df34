#include <cmath>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/sample/token_mask/token_mask.h"

namespace fathom {
namespace {

/// `masks` masks for `tokens` rows: row t has mask t, those behind have none.
void add(CaseList& list, int64_t tokens, int64_t V, int64_t masks, bool bench = false) {
  const CaseSpec spec{.name = str_cat("t", tokens, "_v", V, "_masks", masks),
                      .op = "sampler",
                      .bench = bench,
                      .phase = bench ? "decode" : "",
                      .columns = str_cat("M=", tokens, ";N=", V)};
  add_case<ApplyTokenMask>(list, spec, [=](CaseBuilder<ApplyTokenMask>& c) {
    const int64_t words = (V + 31) / 32;
    const Tensor logits = c.inout({tokens, V}, Format::kF32, {.scale = 4}, {.row_gap = 3});
    const Tensor mask = c.input({masks, words}, Format::kI32, {}, {.row_gap = 1});
    const Tensor mask_of_row = c.input({tokens}, Format::kI32);
    // Words of every kind: none, all, and mixtures with the first or the last bit.
    const auto word = [](int64_t i) -> int64_t {
      switch (i * 7 % 5) {
        case 0:
          return 0;
        case 1:
          return -1;
        case 2:
          return static_cast<int32_t>(0x80000000u | static_cast<uint32_t>(i));
        case 3:
          return static_cast<int32_t>(0x7FFFFFFEu & static_cast<uint32_t>(i * 2654435761));
        default:
          return static_cast<int32_t>(static_cast<uint32_t>(i * 40503) | 1u);
      }
    };
    mask.fill([&](int64_t i) { return static_cast<double>(word(i)); });
    mask_of_row.fill([&](int64_t t) { return static_cast<double>(t < masks ? t : -1); });
    c.bind([=](const Binding& at) {
      return ApplyTokenMask::Args{
          .logits = at(logits), .mask = at(mask), .mask_of_row = at(mask_of_row)};
    });
    c.expect_rows(logits, gates::exact(), [=](int64_t t, std::span<double> out) {
      const std::vector<double> row = logits.row(t);
      for (size_t v = 0; v < row.size(); ++v) {
        const bool allowed =
            t >= masks ||
            (static_cast<uint32_t>(word(t * words + static_cast<int64_t>(v) / 32)) >> v % 32 & 1);
        out[v] = allowed ? row[v] : -HUGE_VAL;
      }
    });
  });
}

}  // namespace

void add_token_mask_cases(CaseList& list) {
  for (int64_t v : {1, 31, 32, 33, 101})
    add(list, 2, v, 2);
  for (int64_t t : {0, 1, 2, 3, 7})
    add(list, t, 997, (t + 1) / 2);
  add(list, 3, 20'011, 0);
  add(list, 2, 20'011, 1);
  for (int64_t t : {1, 8, 32, 64})
    add(list, t, 129'280, t, true);
}

}  // namespace fathom
