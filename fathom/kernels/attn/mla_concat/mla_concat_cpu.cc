#include <algorithm>
#include <cstring>

#include "fathom/kernels/attn/mla_concat/mla_concat.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"

namespace fathom {

Status ConcatK::check(const Args& a) {
  FATHOM_TRY(check_same_format("k", a.k, "k_nope", a.k_nope));
  return check_same_format("k", a.k, "k_pe", a.k_pe);
}

Status ConcatAbsorbedQ::check(const Args& a) {
  FATHOM_TRY(check_same_format("q", a.q, "q_lat", a.q_lat));
  return check_same_format("q", a.q, "q_pe", a.q_pe);
}

namespace {

/// Asks for `bytes` from p on, which may lie past the end of what there is.
void ask_for(const std::byte* p, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64)
    __builtin_prefetch(p + i);
}

/// out[t,n] = [ first[t,n] | second ], where second has its own head stride (0: shared by all
/// heads).
void concat_heads(
    Exec& ex, const View& first, const View& second, int64_t second_head_stride, const View& out) {
  const int64_t size = element_bytes(out.format);
  const auto first_bytes = static_cast<size_t>(first.dim(2) * size);
  const auto second_bytes = static_cast<size_t>((out.dim(2) - first.dim(2)) * size);
  const auto at = [size](const View& v, int64_t t, int64_t n, int64_t head_stride) {
    return v.as<std::byte>() + (t * v.stride(0) + n * head_stride) * size;
  };
  // Heads so far ahead that memory answers in time; past the last one those of the next token.
  const int64_t ahead = std::max<int64_t>(1, 4096 / std::max<int64_t>(1, out.dim(2) * size));
  for_rows(ex, out.dim(0), 2 * out.dim(1) * out.dim(2) * size, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t n = 0; n < out.dim(1); ++n) {
        std::byte* to = at(out, t, n, out.stride(1));
        ask_for(at(first, t, n + ahead, first.stride(1)), first_bytes);
        ask_for(at(out, t, n + ahead, out.stride(1)), first_bytes + second_bytes);
        std::memcpy(to, at(first, t, n, first.stride(1)), first_bytes);
        std::memcpy(to + first_bytes, at(second, t, n, second_head_stride), second_bytes);
      }
    }
  });
}

Status concat_k_portable(Exec& ex, const ConcatK::Args& a) {
  concat_heads(ex, a.k_nope, a.k_pe, 0, a.k);
  return {};
}

Status concat_absorbed_q_portable(Exec& ex, const ConcatAbsorbedQ::Args& a) {
  concat_heads(ex, a.q_lat, a.q_pe, a.q_pe.stride(1), a.q);
  return {};
}

}  // namespace

constinit const VariantTable<ConcatK> concat_k_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, concat_k_portable},
};

constinit const VariantTable<ConcatAbsorbedQ> concat_absorbed_q_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, concat_absorbed_q_portable},
};

}  // namespace fathom
