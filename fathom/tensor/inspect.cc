#include "fathom/tensor/inspect.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Codes of quantised formats and bytes without a number format are taken as unsigned bytes.
double number_at(const std::byte* at, Format format) {
  switch (format) {
    case Format::kF32:
      return static_cast<double>(load<float>(at));
    case Format::kF64:
      return load<double>(at);
    case Format::kF16:
      return static_cast<double>(to_float(F16{load<uint16_t>(at)}));
    case Format::kBf16:
      return static_cast<double>(to_float(Bf16{load<uint16_t>(at)}));
    case Format::kE4m3:
      return static_cast<double>(to_float(E4m3{load<uint8_t>(at)}));
    case Format::kE5m2:
      return static_cast<double>(to_float(E5m2{load<uint8_t>(at)}));
    case Format::kUe8m0:
      return static_cast<double>(to_float(Ue8m0{load<uint8_t>(at)}));
    case Format::kI8:
      return static_cast<double>(load<int8_t>(at));
    case Format::kI32:
      return static_cast<double>(load<int32_t>(at));
    case Format::kI64:
      return static_cast<double>(load<int64_t>(at));
    default:
      return static_cast<double>(load<uint8_t>(at));
  }
}

// Calls row(first byte, elements) for each run of the last dimension.
template <class F>
void for_runs(const View& v, int64_t bytes, F&& row) {
  if (v.data == nullptr || v.numel() == 0) return;
  const auto* base = static_cast<const std::byte*>(v.data);
  if (v.rank == 0) return row(base, int64_t{1});
  const int64_t length = v.dim(v.rank - 1);
  const int64_t runs = v.numel() / length;
  for (int64_t r = 0; r < runs; ++r) {
    int64_t rest = r;
    int64_t offset = 0;
    for (int d = v.rank - 2; d >= 0; --d) {
      offset += rest % v.dim(d) * v.stride(d);
      rest /= v.dim(d);
    }
    row(base + offset * bytes, length);
  }
}

// A quantised view as the bytes of its values.
View stored(const View& v) {
  if (!is_quantised(v.format)) return v;
  int64_t rows = 1;
  for (int d = 0; d + 1 < v.rank; ++d)
    rows *= v.dim(d);
  const int64_t k = v.rank > 0 ? v.dim(v.rank - 1) : 1;
  return make_view(v.data, {value_bytes_for(v.format, rows, k)}, Format::kU8);
}

}  // namespace

TensorStatistics statistics_of(const View& view) {
  const View v = stored(view);
  TensorStatistics out;
  double sum = 0;
  double squares = 0;
  int64_t count = 0;
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  const int64_t bytes = element_bytes(v.format);
  for_runs(v, bytes, [&](const std::byte* run, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      const double x = number_at(run + i * bytes, v.format);
      if (!std::isfinite(x)) {
        ++out.non_finite;
        continue;
      }
      ++count;
      sum += x;
      squares += x * x;
      least = std::min(least, x);
      most = std::max(most, x);
    }
  });
  if (count == 0) return out;
  out.min = least;
  out.max = most;
  out.mean = sum / static_cast<double>(count);
  out.l2 = std::sqrt(squares);
  return out;
}

}  // namespace fathom
