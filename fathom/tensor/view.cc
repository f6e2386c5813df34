#include "fathom/tensor/view.h"

#include "fathom/base/str_cat.h"

namespace fathom {

View make_view(void* data, std::initializer_list<int64_t> dims, Format format, const char* axes) {
  FATHOM_CHECK(dims.size() <= kMaxRank, "rank above 4");
  View v;
  v.data = data;
  v.format = format;
  v.axes = axes;
  v.rank = static_cast<int>(dims.size());
  size_t i = 0;
  for (int64_t d : dims)
    v.dims[i++] = d;
  int64_t stride = 1;
  for (int r = v.rank - 1; r >= 0; --r) {
    v.strides[static_cast<size_t>(r)] = stride;
    stride *= v.dim(r);
  }
  return v;
}

int64_t element_bytes(Format format) {
  FATHOM_CHECK(!is_quantised(format), "a quantised format has no element size");
  return format_info(format).bits / 8;
}

namespace {

void* advance(void* data, int64_t elements, Format format) {
  if (data == nullptr) return nullptr;
  return static_cast<std::byte*>(data) + elements * element_bytes(format);
}

}  // namespace

View slice_rows(const View& v, int64_t begin, int64_t count) {
  FATHOM_CHECK(v.rank >= 1 && begin >= 0 && count >= 0 && begin + count <= v.dim(0),
               str_cat("rows ", begin, "+", count, " of ", describe(v)));
  View out = v;
  out.dims[0] = count;
  out.data = advance(v.data, begin * v.stride(0), v.format);
  return out;
}

View slice_cols(const View& v, int64_t begin, int64_t count, const char* axes) {
  const int last = v.rank - 1;
  FATHOM_CHECK(v.rank >= 1 && begin >= 0 && count >= 0 && begin + count <= v.dim(last),
               str_cat("columns ", begin, "+", count, " of ", describe(v)));
  View out = v;
  out.dims[static_cast<size_t>(last)] = count;
  out.data = advance(v.data, begin * v.stride(last), v.format);
  out.axes = axes;
  return out;
}

View reshape(const View& v, std::initializer_list<int64_t> dims, const char* axes) {
  View out = make_view(v.data, dims, v.format, axes);
  out.on_device = v.on_device;
  FATHOM_CHECK(out.numel() == v.numel(),
               str_cat("reshape of ", describe(v), " to ", describe(out)));
  if (v.contiguous()) return out;
  // Only the last dimension may be split: the rows keep their distances.
  const int kept = v.rank - 1;
  FATHOM_CHECK(kept >= 1 && out.rank >= v.rank && v.stride(kept) == 1,
               str_cat("reshape of a strided view: ", describe(v)));
  for (int i = 0; i < kept; ++i) {
    FATHOM_CHECK(out.dim(i) == v.dim(i), str_cat("reshape of a strided view: ", describe(v)));
    out.strides[static_cast<size_t>(i)] = v.strides[static_cast<size_t>(i)];
  }
  return out;
}

std::string describe(const View& v) {
  std::string out = "[";
  for (int i = 0; i < v.rank; ++i) {
    if (i > 0) out += ", ";
    str_append(out, v.dim(i));
  }
  return str_cat(out, "] ", format_name(v.format));
}

}  // namespace fathom
