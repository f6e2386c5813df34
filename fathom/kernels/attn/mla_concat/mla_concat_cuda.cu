#include "fathom/kernels/attn/mla_concat/mla_concat.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

/// Heads of tokens as units of one size: sixteen bytes, or single elements.
struct Heads {
  std::byte* data;
  int64_t token_stride;  // in units, as the next two
  int64_t head_stride;
  int width;
};

struct Concat {
  Heads first;
  Heads second;
  Heads out;
  FastDivide per_head;
};

/// Where a unit of the output comes from and goes to.
template <class Unit>
struct UnitPlace {
  const Unit* from = nullptr;  // null past the end
  Unit* to = nullptr;

  __device__ UnitPlace(const Concat& c, const ItemPlace& at) {
    if (!at.exists) return;
    const auto head = static_cast<int>(c.per_head.of(static_cast<uint32_t>(at.item)));
    const int unit = at.item - head * c.out.width;
    const bool in_first = unit < c.first.width;
    const Heads& source = in_first ? c.first : c.second;
    from = reinterpret_cast<const Unit*>(source.data) + at.row * source.token_stride +
           head * source.head_stride + (in_first ? unit : unit - c.first.width);
    to = reinterpret_cast<Unit*>(c.out.data) + at.row * c.out.token_stride +
         head * c.out.head_stride + unit;
  }
};

// Items are units of the output; a row of them is one token with all its heads.
template <class Unit, int kEach>
__global__ void __launch_bounds__(kFlatThreads) concat_units(Concat c, FlatItems items) {
  let_next_start();
  wait_for_previous();
  Unit held[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const UnitPlace<Unit> at(c, items.mine<kEach>(i));
    if (at.from != nullptr) held[i] = *at.from;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const UnitPlace<Unit> at(c, items.mine<kEach>(i));
    if (at.to != nullptr) *at.to = held[i];
  }
}

Heads heads_of(const View& v, int64_t head_stride, int64_t unit_elements) {
  return {.data = v.as<std::byte>(),
          .token_stride = v.stride(0) / unit_elements,
          .head_stride = head_stride / unit_elements,
          .width = static_cast<int>(v.dim(v.rank - 1) / unit_elements)};
}

/// `unit_elements` elements are one unit.
template <class Unit>
Status run_units(
    Exec& ex, const View& first, const View& second, int64_t second_head_stride, const View& out) {
  const int64_t unit = static_cast<int64_t>(sizeof(Unit)) / element_bytes(out.format);
  const Concat c{.first = heads_of(first, first.stride(1), unit),
                 .second = heads_of(second, second_head_stride, unit),
                 .out = heads_of(out, out.stride(1), unit),
                 .per_head = FastDivide(out.dim(2) / unit)};
  const FlatItems items = flat_items(out.dim(0), out.dim(1) * c.out.width);
  return with_items_each(ex, items, [&]<int kEach>(const LaunchShape& shape) {
    return launch_kernel(ex, concat_units<Unit, kEach>, shape, c, items);
  });
}

Status run_elements(
    Exec& ex, const View& first, const View& second, int64_t second_head_stride, const View& out) {
  switch (element_bytes(out.format)) {
    case 1:
      return run_units<uint8_t>(ex, first, second, second_head_stride, out);
    case 2:
      return run_units<uint16_t>(ex, first, second, second_head_stride, out);
    default:
      return run_units<uint32_t>(ex, first, second, second_head_stride, out);
  }
}

/// True if every head begins at a multiple of sixteen bytes and has a multiple of them.
bool is_aligned(const View& v) {
  const int64_t element = element_bytes(v.format);
  if (reinterpret_cast<uintptr_t>(v.data) % 16 != 0) return false;
  if (v.dim(v.rank - 1) * element % 16 != 0) return false;
  for (int i = 0; i + 1 < v.rank; ++i) {
    if (v.stride(i) * element % 16 != 0) return false;
  }
  return true;
}

Status concat_k_vectors(Exec& ex, const ConcatK::Args& a) {
  return run_units<uint4>(ex, a.k_nope, a.k_pe, 0, a.k);
}

Status concat_k_elements(Exec& ex, const ConcatK::Args& a) {
  return run_elements(ex, a.k_nope, a.k_pe, 0, a.k);
}

bool concat_k_is_aligned(const ConcatK::Args& a) {
  return is_aligned(a.k_nope) && is_aligned(a.k_pe) && is_aligned(a.k);
}

Status concat_q_vectors(Exec& ex, const ConcatAbsorbedQ::Args& a) {
  return run_units<uint4>(ex, a.q_lat, a.q_pe, a.q_pe.stride(1), a.q);
}

Status concat_q_elements(Exec& ex, const ConcatAbsorbedQ::Args& a) {
  return run_elements(ex, a.q_lat, a.q_pe, a.q_pe.stride(1), a.q);
}

bool concat_q_is_aligned(const ConcatAbsorbedQ::Args& a) {
  return is_aligned(a.q_lat) && is_aligned(a.q_pe) && is_aligned(a.q);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<ConcatK> concat_k_cuda{
    {"vectors", sm(90), "", kTraits, concat_k_vectors, MathUnit::kF32, concat_k_is_aligned},
    {"elements", sm(90), "", kTraits, concat_k_elements},
};

constinit const VariantTable<ConcatAbsorbedQ> concat_absorbed_q_cuda{
    {"vectors", sm(90), "", kTraits, concat_q_vectors, MathUnit::kF32, concat_q_is_aligned},
    {"elements", sm(90), "", kTraits, concat_q_elements},
};

}  // namespace fathom
