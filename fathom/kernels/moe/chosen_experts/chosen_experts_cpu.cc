#include <algorithm>
#include <cmath>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/moe/chosen_experts/chosen_experts.h"

namespace fathom {
namespace {

/// Of one shape at a time; the sums of sixteen lanes are added up in their order.
template <class T>
float dot(const T* a, const T* b, int64_t n) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] += to_float(a[i + lane]) * to_float(b[i + lane]);
  }
  float sum = 0.0f;
  for (float lane : lanes)
    sum += lane;
  for (; i < n; ++i)
    sum += to_float(a[i]) * to_float(b[i]);
  return sum;
}

float silu(float g) {
  return g / (1.0f + std::exp(-g));
}

template <class T>
const T* matrix_row(const View& experts, int32_t e, int64_t row) {
  return experts.as<const T>() + e * experts.stride(0) + row * experts.stride(1);
}

template <class T>
void gate_up_columns(const ChosenExpertsGateUp::Args& a, int64_t begin, int64_t end) {
  const int64_t H = a.x.dim(1);
  const int64_t I = a.experts.dim(1) / 2;
  const int64_t K = a.ids.dim(1);
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    const T* x = a.x.row<const T>(t);
    const int32_t* ids = a.ids.row<const int32_t>(t);
    T* y = a.y.row<T>(t);
    for (int64_t c = begin; c < end; ++c) {
      const bool is_shared = c >= K * I;
      const int32_t e = is_shared ? 0 : ids[c / I];
      if (e < 0) {
        y[c] = from_float<T>(0.0f);
        continue;
      }
      const T* gate =
          is_shared ? a.shared.row<const T>(c - K * I) : matrix_row<T>(a.experts, e, c % I);
      const T* up = is_shared ? a.shared.row<const T>(c - K * I + a.shared.dim(0) / 2)
                              : matrix_row<T>(a.experts, e, I + c % I);
      y[c] = from_float<T>(silu(dot(x, gate, H)) * dot(x, up, H));
    }
  }
}

Status gate_up(Exec& ex, const ChosenExpertsGateUp::Args& a) {
  with_activation_type(a.x.format, [&]<class T>(T) {
    for_rows(ex, a.y.dim(1), a.x.numel() * 2 * element_bytes(a.x.format),
             [&](int64_t begin, int64_t end) { gate_up_columns<T>(a, begin, end); });
  });
  return {};
}

template <class T>
void down_columns(const ChosenExpertsDown::Args& a, int64_t begin, int64_t end) {
  const int64_t I = a.experts.dim(2);
  const int64_t K = a.ids.dim(1);
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    const T* x = a.x.row<const T>(t);
    const int32_t* ids = a.ids.row<const int32_t>(t);
    const float* weights = a.weights.row<const float>(t);
    for (int64_t n = begin; n < end; ++n) {
      float sum = 0.0f;
      if (a.shared.present()) sum = dot(x + K * I, a.shared.row<const T>(n), a.shared.dim(1));
      for (int64_t k = 0; k < K; ++k) {
        if (ids[k] < 0) continue;
        sum += weights[k] * dot(x + k * I, matrix_row<T>(a.experts, ids[k], n), I);
      }
      a.y.row<T>(t)[n] = from_float<T>(sum);
    }
  }
}

Status down(Exec& ex, const ChosenExpertsDown::Args& a) {
  with_activation_type(a.x.format, [&]<class T>(T) {
    for_rows(ex, a.y.dim(1), a.x.numel() * element_bytes(a.x.format),
             [&](int64_t begin, int64_t end) { down_columns<T>(a, begin, end); });
  });
  return {};
}

Status check_width(const char* name, int64_t found, int64_t K, int64_t I, int64_t S) {
  if (found == K * I + S) return {};
  return invalid_argument(str_cat(name, " has ", found, " columns, expected ", K, " * ", I, " + ",
                                  S, " = ", K * I + S,
                                  " (those of the chosen experts and of the shared one)"));
}

Status check_formats(const View& x, const View& experts, const View& shared, const View& y) {
  FATHOM_TRY(check_same_format("x", x, "experts", experts));
  if (shared.present()) FATHOM_TRY(check_same_format("x", x, "shared", shared));
  return check_same_format("x", x, "y", y);
}

/// Chosen matrices of `rows` times `cols`.
int64_t chosen_bytes(const View& ids, const View& experts) {
  const int64_t matrices = std::min(ids.numel(), experts.dim(0));
  return matrices * bytes_for(experts.format, experts.dim(1), experts.dim(2));
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Cost ChosenExpertsGateUp::cost(const Args& a) {
  return {.flops = 4.0 * static_cast<double>(a.y.numel()) * static_cast<double>(a.x.dim(1))};
}

void ChosenExpertsGateUp::bytes(const Args& a, Cost& cost) {
  cost.bytes_read = operand_bytes(a.x) + operand_bytes(a.ids) + operand_bytes(a.shared) +
                    chosen_bytes(a.ids, a.experts);
  cost.bytes_written = operand_bytes(a.y);
}

Status ChosenExpertsGateUp::check(const Args& a) {
  FATHOM_TRY(check_formats(a.x, a.experts, a.shared, a.y));
  const int64_t shared = a.shared.present() ? a.shared.dim(0) : 0;
  if (a.experts.dim(1) % 2 != 0 || shared % 2 != 0) {
    return invalid_argument(str_cat("gate and up rows are as many: experts have ", a.experts.dim(1),
                                    " rows, shared has ", shared, ", expected even numbers"));
  }
  FATHOM_TRY(check_width("y", a.y.dim(1), a.ids.dim(1), a.experts.dim(1) / 2, shared / 2));
  return check_indices("ids", a.ids, a.experts.dim(0));
}

Cost ChosenExpertsDown::cost(const Args& a) {
  return {.flops = 2.0 * static_cast<double>(a.x.numel()) * static_cast<double>(a.y.dim(1))};
}

void ChosenExpertsDown::bytes(const Args& a, Cost& cost) {
  cost.bytes_read = operand_bytes(a.x) + operand_bytes(a.ids) + operand_bytes(a.weights) +
                    operand_bytes(a.shared) + chosen_bytes(a.ids, a.experts);
  cost.bytes_written = operand_bytes(a.y);
}

Status ChosenExpertsDown::check(const Args& a) {
  FATHOM_TRY(check_formats(a.x, a.experts, a.shared, a.y));
  const int64_t shared = a.shared.present() ? a.shared.dim(1) : 0;
  FATHOM_TRY(check_width("x", a.x.dim(1), a.ids.dim(1), a.experts.dim(2), shared));
  return check_indices("ids", a.ids, a.experts.dim(0));
}

constinit const VariantTable<ChosenExpertsGateUp> chosen_experts_gate_up_cpu{
    {"portable", Isa::kPortable, "", kTraits, gate_up},
};

constinit const VariantTable<ChosenExpertsDown> chosen_experts_down_cpu{
    {"portable", Isa::kPortable, "", kTraits, down},
};

}  // namespace fathom
