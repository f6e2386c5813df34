#include "fathom/kernels/act/doubled/doubled.h"
#include "fathom/kernels/core/row_parallel.h"

namespace fathom {
namespace {

Status doubled_rows(Exec& ex, const Doubled::Args& a) {
  for_rows(ex, a.x.dim(0), 8 * a.x.dim(1), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t d = 0; d < a.x.dim(1); ++d)
        a.y.row<float>(t)[d] = 2 * a.x.row<float>(t)[d];
    }
  });
  return {};
}

}  // namespace

constinit const VariantTable<Doubled> doubled_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, doubled_rows},
};

}  // namespace fathom
