#include <algorithm>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_heads.cuh"
#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_lists.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/launch_cuda.h"

namespace fathom {
namespace {

using namespace sparse_mla;  // the parts of these kernels

/// As many heads as share a row, and as many rows at once, as leave room for a second block on the
/// multiprocessor; else as fit.
BlockSize block_size(const Call& c) {
  constexpr int64_t kMostHeads = 8;
  constexpr int64_t kFloats = 24 << 10;
  BlockSize size{.heads = static_cast<int>(std::min(c.q.dim(1), kMostHeads)), .rows = kBlock};
  while (size.rows > 8 && BlockMemory::floats(c, size) > kFloats)
    size.rows /= 2;
  while (size.heads > 1 && BlockMemory::floats(c, size) > kFloats)
    size.heads = (size.heads + 1) / 2;
  while (size.rows > 1 && BlockMemory::floats(c, size) > kFloats)
    size.rows /= 2;
  return size;
}

template <class Args>
Status run_heads(Exec& ex, const Args& a) {
  const Call c = make_call(a);
  if (c.q.dim(0) == 0 || c.q.dim(1) == 0) return {};
  const BlockSize size = block_size(c);
  const LaunchShape shape{.blocks = c.q.dim(0) * ceil_div<int64_t>(c.q.dim(1), size.heads),
                          .threads = kHeadsThreads,
                          .shared_bytes = BlockMemory::floats(c, size) * 4};
  return with_activation_type(c.q.format, [&]<class Q>(Q) {
    return launch_kernel(ex, attend_heads<Q>, shape, device_call(c), size);
  });
}

template <class Args>
bool takes_lists_sm100(const Args& a) {
  return takes_operands(make_call(a));
}

/// 227 KB of shared memory hold a query, its sums and a row of so many channels.
constexpr const char* kHeadsLimits = "D<=16384";
constexpr uint32_t kHeadsTraits = kDeterministic | kBatchInvariant | kGraphSafe;
constexpr const char* kListsLimits = "L==512";
constexpr uint32_t kListsTraits = kDeterministic | kGraphSafe;
constexpr uint32_t kUncutTraits = kListsTraits | kBatchInvariant;

}  // namespace

constinit const VariantTable<SparseMlaDecode> sparse_mla_decode_cuda{
#ifdef FATHOM_SM100
    {"tcgen05_never_run", sm(100), kListsLimits, kListsTraits, run_lists_sm100, MathUnit::kBf16,
     takes_lists_sm100, lists_workspace},
    {"tcgen05_uncut_never_run", sm(100), kListsLimits, kUncutTraits, run_uncut_lists_sm100,
     MathUnit::kBf16, takes_lists_sm100},
#endif
    {"few_rows", sm(90), kListsLimits, kListsTraits, run_few_lists, MathUnit::kBf16,
     takes_few_lists},
    {"wgmma", sm(90), kListsLimits, kListsTraits, run_lists, MathUnit::kBf16, takes_lists,
     lists_workspace},
    {"uncut", sm(90), kListsLimits, kUncutTraits, run_uncut_lists, MathUnit::kBf16, takes_lists},
    {"heads", sm(90), kHeadsLimits, kHeadsTraits, run_heads<SparseMlaDecode::Args>},
};

constinit const VariantTable<SparseMlaPrefill> sparse_mla_prefill_cuda{
#ifdef FATHOM_SM100
    {"tcgen05_never_run", sm(100), kListsLimits, kUncutTraits, run_lists_sm100, MathUnit::kBf16,
     takes_lists_sm100},
#endif
    {"wgmma", sm(90), kListsLimits, kUncutTraits, run_lists, MathUnit::kBf16, takes_lists},
    {"heads", sm(90), kHeadsLimits, kHeadsTraits, run_heads<SparseMlaPrefill::Args>},
};

}  // namespace fathom
