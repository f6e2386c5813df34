#include <cstring>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/embed/embedding/embedding.h"

namespace fathom {

void Embed::bytes(const Args& a, Cost& cost) {
  cost.bytes_read = a.y.numel() * element_bytes(a.table.format) + a.ids.dim(0) * 4;
  cost.bytes_written = a.y.numel() * element_bytes(a.y.format);
}

Status Embed::check(const Args& a) {
  if (!a.ids.readable()) return {};
  for (int64_t t = 0; t < a.ids.dim(0); ++t) {
    const int64_t id = a.ids.as<int32_t>()[t];
    if (id >= 0 && id < a.table.dim(0)) continue;
    return invalid_argument(
        str_cat("ids[", t, "] is ", id, " but the table has rows 0..", a.table.dim(0) - 1));
  }
  return {};
}

namespace {

template <class From, class To>
void convert_row(const From* from, To* to, int64_t H) {
  for (int64_t d = 0; d < H; ++d)
    to[d] = from_float<To>(to_float(from[d]));
}

template <class T>
void convert_row(const T* from, T* to, int64_t H) {
  std::memcpy(to, from, static_cast<size_t>(H) * sizeof(T));
}

Status embed_portable(Exec& ex, const Embed::Args& a) {
  const int64_t H = a.y.dim(1);
  with_activation_type(a.table.format, [&]<class From>(From) {
    with_activation_type(a.y.format, [&]<class To>(To) {
      for_rows(ex, a.ids.dim(0), 8 * H, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          convert_row(a.table.row<From>(a.ids.as<int32_t>()[t]), a.y.row<To>(t), H);
        }
      });
    });
  });
  return {};
}

}  // namespace

constinit const VariantTable<Embed> embed_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, embed_portable},
};

}  // namespace fathom
