#include "fathom/kernels/act/doubled/doubled.h"
#include "fathom/kernels/conformance/kernel_case.h"

namespace fathom {

void add_doubled_cases(CaseList& list) {
  add_case<Doubled>(list, {.name = "t5_d3"}, [](CaseBuilder<Doubled>& c) {
    c.set_batch(5);
    const RowPlacement rows{.row_gap = 2, .rows_per_batch = 1};
    const Tensor x = c.input({5, 3}, Format::kF32, {}, rows);
    const Tensor y = c.output({5, 3}, Format::kF32, rows);
    c.bind([=](const Binding& at) { return Doubled::Args{.x = at(x), .y = at(y)}; });
    c.expect_each(y, {.rel_l2 = 0}, [=](int64_t i, int64_t j) { return 2 * x.at(i, j); });
  });
}

}  // namespace fathom
