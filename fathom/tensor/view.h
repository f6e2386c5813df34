// View: a typed, strided window on memory that somebody else owns. Passed by value.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "fathom/base/check.h"
#include "fathom/formats/format.h"

namespace fathom {

inline constexpr int kMaxRank = 4;

/// Pointer, shape, strides (in elements) and format; rank at most 4.
///
/// For quantised formats the shape is the logical one ([N, K] values), `data` holds the packed
/// values and the scales live in the QuantView around it. A dry run uses views whose data is null.
/// `axes` names the dimensions for people, such as "T,Nh*Dq"; it points to static text or is null.
struct View {
  void* data = nullptr;
  std::array<int64_t, kMaxRank> dims{};
  std::array<int64_t, kMaxRank> strides{};
  int rank = 0;
  Format format = Format::kNone;
  bool on_device = false;  ///< data is memory of a GPU, which the host cannot read
  const char* axes = nullptr;

  /// True for an operand that is given; false for an optional one left out.
  bool present() const { return format != Format::kNone; }

  /// True if the host may look at the elements: false in a dry run and for memory of a GPU.
  bool readable() const { return data != nullptr && !on_device; }

  int64_t dim(int i) const { return dims[static_cast<size_t>(i)]; }

  int64_t stride(int i) const { return strides[static_cast<size_t>(i)]; }

  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i)
      n *= dim(i);
    return n;
  }

  bool contiguous() const {
    int64_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (dim(i) != 1 && stride(i) != expected) return false;
      expected *= dim(i);
    }
    return true;
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }

  /// Pointer to row i of the first dimension; T is the element type.
  template <class T>
  T* row(int64_t i) const {
    return static_cast<T*>(data) + i * stride(0);
  }

  View with_axes(const char* text) const {
    View v = *this;
    v.axes = text;
    return v;
  }
};

/// A contiguous row-major view. Dense formats only where data is not null.
View make_view(void* data,
               std::initializer_list<int64_t> dims,
               Format format,
               const char* axes = nullptr);

/// Bytes of one element of a dense format.
int64_t element_bytes(Format format);

/// Rows [begin, begin + count) of the first dimension of a dense view.
View slice_rows(const View& v, int64_t begin, int64_t count);

/// Columns [begin, begin + count) of the last dimension of a dense view.
View slice_cols(const View& v, int64_t begin, int64_t count, const char* axes = nullptr);

/// The same memory as another contiguous shape of equal element count; v is dense and contiguous,
/// or splits its last (contiguous) dimension: [T, A*B] -> [T, A, B] keeps the row stride.
View reshape(const View& v, std::initializer_list<int64_t> dims, const char* axes = nullptr);

/// "[16, 7168] bf16", for messages.
std::string describe(const View& v);

}  // namespace fathom
