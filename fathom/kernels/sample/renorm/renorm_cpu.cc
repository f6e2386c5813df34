#include <cmath>

#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sample/parameters.h"
#include "fathom/kernels/sample/renorm/renorm.h"
#include "fathom/kernels/sample/renorm/renorm_rows.h"

namespace fathom {
namespace {

template <const RowKernels& kRows>
Status softmax_temperature(Exec& ex, const SoftmaxTemperature::Args& a) {
  const int64_t V = a.logits.dim(1);
  for_rows(ex, a.logits.dim(0), 12 * V, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto* z = a.logits.row<const float>(t);
      const float temperature = a.temperature.as<const float>()[t];
      softmax_row(kRows, z, kRows.find_peak(z, V), temperature, a.probs.row<float>(t), V);
    }
  });
  return {};
}

/// Calls filter(t, p, y, room) for every row.
template <class Filter>
void for_filtered(Exec& ex, const View& probs, const View& y, Filter filter) {
  const int64_t V = probs.dim(1);
  auto* workspace = static_cast<float*>(ex.workspace);
  for_rows_by_thread(ex, probs.dim(0), kScanWorkPerToken * V,
                     [&](int thread, int64_t begin, int64_t end) {
                       float* room = workspace + thread * threshold_room(V);
                       for (int64_t t = begin; t < end; ++t)
                         filter(t, probs.row<const float>(t), y.row<float>(t), room);
                     });
}

template <const RowKernels& kRows>
Status renorm_top_k(Exec& ex, const RenormTopK::Args& a) {
  const int64_t V = a.probs.dim(1);
  for_filtered(ex, a.probs, a.y, [&](int64_t t, const float* p, float* y, float* room) {
    renorm_top_k_row(kRows, p, parameter(a.k, a.k_all, t), y, V, room);
  });
  return {};
}

template <const RowKernels& kRows>
Status renorm_top_p(Exec& ex, const RenormTopP::Args& a) {
  const int64_t V = a.probs.dim(1);
  for_filtered(ex, a.probs, a.y, [&](int64_t t, const float* p, float* y, float* room) {
    renorm_top_p_row(kRows, p, double{parameter(a.p, a.p_all, t)}, y, V, room);
  });
  return {};
}

int64_t room_bytes(const View& probs, int num_threads) {
  return num_threads * threshold_room(probs.dim(1)) * static_cast<int64_t>(sizeof(float));
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Status SoftmaxTemperature::check(const Args& a) {
  return check_each("temperature", a.temperature, 0.0f, "a finite number from 0 on",
                    [](float value) { return !(value >= 0 && std::isfinite(value)); });
}

Status RenormTopK::check(const Args& a) {
  return check_each("k", a.k, a.k_all, "at least 1", [](int32_t k) { return k < 1; });
}

Status RenormTopP::check(const Args& a) {
  return check_each("p", a.p, a.p_all, "a positive number", [](float p) { return !(p > 0); });
}

int64_t RenormTopK::workspace(const Args& a, int num_threads) {
  return room_bytes(a.probs, num_threads);
}

int64_t RenormTopP::workspace(const Args& a, int num_threads) {
  return room_bytes(a.probs, num_threads);
}

constinit const VariantTable<SoftmaxTemperature> softmax_temperature_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, softmax_temperature<kAvx512Rows>},
    {"portable", Isa::kPortable, "", kTraits, softmax_temperature<kPortableRows>},
};

constinit const VariantTable<RenormTopK> renorm_top_k_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, renorm_top_k<kAvx512Rows>},
    {"portable", Isa::kPortable, "", kTraits, renorm_top_k<kPortableRows>},
};

constinit const VariantTable<RenormTopP> renorm_top_p_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, renorm_top_p<kAvx512Rows>},
    {"portable", Isa::kPortable, "", kTraits, renorm_top_p<kPortableRows>},
};

}  // namespace fathom
