#include <algorithm>
#include <bit>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sparse/hadamard/hadamard.h"
#include "fathom/kernels/sparse/hadamard/hadamard_rows.h"

namespace fathom {
namespace {

template <class T>
void hadamard_rows(const HadamardRows<T>& rows) {
  const int64_t padded = hadamard_width(rows.width);
  float* v = rows.room;
  for (int64_t n = 0; n < rows.count; ++n) {
    const T* x = rows.x + n * rows.x_stride;
    T* y = rows.y + n * rows.y_stride;
    std::fill_n(v, padded, 0.0f);
    for (int64_t i = 0; i < rows.width; ++i)
      v[i] = to_float(x[i]);
    for (int64_t stride = 1; stride < padded; stride *= 2) {
      for (int64_t begin = 0; begin < padded; begin += 2 * stride) {
        for (int64_t i = begin; i < begin + stride; ++i) {
          const float a = v[i];
          const float b = v[i + stride];
          v[i] = a + b;
          v[i + stride] = a - b;
        }
      }
    }
    for (int64_t i = 0; i < rows.width; ++i)
      y[i] = from_float<T>(v[i] * rows.scale);
  }
}

struct Portable {
  template <class T>
  static void run(const HadamardRows<T>& rows) {
    hadamard_rows(rows);
  }
};

struct Avx512 {
  template <class T>
  static void run(const HadamardRows<T>& rows) {
    avx512::hadamard_rows(rows);
  }
};

template <class Loops>
Status hadamard(Exec& ex, const Hadamard::Args& a) {
  const int64_t width = a.x.dim(1);
  auto* workspace = static_cast<float*>(ex.workspace);
  with_float_type(a.x.format, [&]<class T>(T) {
    const int64_t row_bytes = 2 * width * static_cast<int64_t>(sizeof(T));
    for_rows_by_thread(ex, a.x.dim(0), row_bytes, [&](int thread, int64_t begin, int64_t end) {
      Loops::run(HadamardRows<T>{.x = a.x.row<const T>(begin),
                                 .x_stride = a.x.stride(0),
                                 .y = a.y.row<T>(begin),
                                 .y_stride = a.y.stride(0),
                                 .count = end - begin,
                                 .width = width,
                                 .scale = a.scale,
                                 .room = workspace + thread * hadamard_width(width)});
    });
  });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Cost Hadamard::cost(const Args& a) {
  const auto width = static_cast<uint64_t>(a.x.dim(1));
  const auto stages = static_cast<double>(std::bit_width(std::bit_ceil(width)) - 1);
  return {.flops = static_cast<double>(a.x.numel()) * stages};
}

Status Hadamard::check(const Args& a) {
  return check_same_format("x", a.x, "y", a.y);
}

int64_t Hadamard::workspace(const Args& a, int num_threads) {
  return num_threads * hadamard_width(a.x.dim(1)) * static_cast<int64_t>(sizeof(float));
}

constinit const VariantTable<Hadamard> hadamard_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, hadamard<Avx512>},
    {"portable", Isa::kPortable, "", kTraits, hadamard<Portable>},
};

}  // namespace fathom
