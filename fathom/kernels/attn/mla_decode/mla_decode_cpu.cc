#include <algorithm>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/attn/mla_decode/mla_decode_plan.h"
#include "fathom/kernels/attn/mla_decode/mla_decode_split.h"
#include "fathom/kernels/attn/ragged_attention/online_softmax.h"
#include "fathom/kernels/core/row_parallel.h"

namespace fathom {
namespace mla_decode {

MlaDecode::Args with_query_axis(const MlaDecode::Args& a) {
  if (a.q.rank == 4) return a;
  const auto insert_axis = [](View v) {
    for (size_t i = kMaxRank - 1; i > 1; --i) {
      v.dims[i] = v.dims[i - 1];
      v.strides[i] = v.strides[i - 1];
    }
    v.dims[1] = 1;
    v.strides[1] = 0;
    ++v.rank;
    return v;
  };
  MlaDecode::Args out = a;
  out.q = insert_axis(a.q);
  out.o = insert_axis(a.o);
  if (a.lse.present()) out.lse = insert_axis(a.lse);
  return out;
}

}  // namespace mla_decode

namespace {

using mla_decode::visible_keys;
using mla_decode::with_query_axis;

/// Keys of request b; every page of its block table, full, in a dry run.
int64_t keys_of(const MlaDecode::Args& a, int64_t b) {
  if (a.kv_lens.data == nullptr) return a.block_table.dim(1) * a.cache.dim(1);
  return a.kv_lens.as<int32_t>()[b];
}

Cost cost_with_query_axis(const MlaDecode::Args& a) {
  const int64_t Q = a.q.dim(1);
  double pairs = 0;
  for (int64_t b = 0; b < a.q.dim(0); ++b) {
    for (int64_t j = 0; j < Q; ++j) {
      pairs += static_cast<double>(std::max<int64_t>(keys_of(a, b) - Q + j + 1, 0));
    }
  }
  return {.flops = 2.0 * pairs * static_cast<double>(a.q.dim(2) * (a.q.dim(3) + a.o.dim(3)))};
}

Status check_decode(const MlaDecode::Args& a) {
  FATHOM_TRY(check_same_format("q", a.q, "o", a.o));
  FATHOM_TRY(check_scale("kv_scale", a.kv_scale, a.cache.format));
  if (a.kv_lens.data == nullptr || a.block_table.data == nullptr) return {};  // dry run
  const int64_t page_size = a.cache.dim(1);
  const int64_t most = a.block_table.dim(1) * page_size;
  for (int64_t b = 0; b < a.kv_lens.dim(0); ++b) {
    const int64_t keys = a.kv_lens.as<int32_t>()[b];
    if (keys < 0 || keys > most) {
      return invalid_argument(str_cat("kv_lens[", b, "] is ", keys,
                                      " but the block table has room for ", most, " keys"));
    }
    Status pages =
        check_pages(a.block_table.row<int32_t>(b), 0, ceil_div(keys, page_size), a.cache.dim(0));
    if (!pages.ok()) return std::move(pages).add_context(str_cat("block_table[", b, "]"));
  }
  return {};
}

}  // namespace

Cost MlaDecode::cost(const Args& a) {
  return cost_with_query_axis(with_query_axis(a));
}

void MlaDecode::bytes(const Args& a, Cost& cost) {
  const int64_t page_size = a.cache.dim(1);
  int64_t keys = 0;
  int64_t pages = 0;
  for (int64_t b = 0; b < a.kv_lens.dim(0); ++b) {
    keys += keys_of(a, b);
    pages += ceil_div(keys_of(a, b), page_size);
  }
  cost.bytes_read = keys * a.cache.dim(2) * element_bytes(a.cache.format) +
                    a.q.numel() * element_bytes(a.q.format) + (pages + a.kv_lens.dim(0)) * 4;
  cost.bytes_written = a.o.numel() * element_bytes(a.o.format);
  if (a.lse.present()) cost.bytes_written += a.lse.numel() * 4;
}

int64_t MlaDecode::workspace(const Args& a, int num_threads) {
  const MlaDecode::Args with_axis = with_query_axis(a);
  const int64_t sums = num_threads * align_up<int64_t>(with_axis.o.dim(3) * 4, 64);
  return std::max(sums, mla_decode::split_workspace(with_axis, num_threads));
}

Status MlaDecode::check(const Args& a) {
  return check_decode(a);
}

Cost MlaDecodeMulti::cost(const Args& a) {
  return cost_with_query_axis(a);
}

void MlaDecodeMulti::bytes(const Args& a, Cost& cost) {
  MlaDecode::bytes(a, cost);
}

int64_t MlaDecodeMulti::workspace(const Args& a, int num_threads) {
  return MlaDecode::workspace(a, num_threads);
}

Status MlaDecodeMulti::check(const Args& a) {
  return check_decode(a);
}

namespace {

/// Query j of request b, head n. `a` has the query axis.
template <class A, class C>
void decode_row(const MlaDecode::Args& a, int64_t b, int64_t j, int64_t n, float* sums) {
  const int64_t L = a.o.dim(3);
  const int64_t page_size = a.cache.dim(1);
  const int32_t* pages = a.block_table.row<int32_t>(b);
  const auto key_at = [&](int64_t i) -> const C* {
    return slot_data<C>(a.cache, pages[i / page_size] * page_size + i % page_size);
  };
  const SoftmaxState state = attend<MlaDecode::kKeyBlock>(
      a.q.row<A>(b) + j * a.q.stride(1) + n * a.q.stride(2), a.q.dim(3), L, visible_keys(a, b, j),
      a.scale * a.kv_scale, key_at, key_at, sums);
  const float factor = state.inverse_sum() * a.kv_scale;
  A* o = a.o.row<A>(b) + j * a.o.stride(1) + n * a.o.stride(2);
  for (int64_t d = 0; d < L; ++d)
    o[d] = from_float<A>(sums[d] * factor);
  if (a.lse.present()) {
    a.lse.row<float>(b)[j * a.lse.stride(1) + n * a.lse.stride(2)] = state.lse();
  }
}

Status decode_portable(Exec& ex, const MlaDecode::Args& args) {
  const MlaDecode::Args a = with_query_axis(args);
  const int64_t Q = a.q.dim(1);
  const int64_t N = a.q.dim(2);
  const int64_t floats_per_thread = align_up<int64_t>(a.o.dim(3) * 4, 64) / 4;
  with_activation_type(a.q.format, [&]<class A>(A) {
    with_cache_type(a.cache.format, [&]<class C>(C) {
      for_rows_by_thread(ex, a.q.dim(0) * Q * N, a.cache.dim(2) * 256,
                         [&](int thread_id, int64_t begin, int64_t end) {
                           float* sums =
                               static_cast<float*>(ex.workspace) + thread_id * floats_per_thread;
                           for (int64_t row = begin; row < end; ++row) {
                             decode_row<A, C>(a, row / (Q * N), row / N % Q, row % N, sums);
                           }
                         });
    });
  });
  return {};
}

Status decode_avx512(Exec& ex, const MlaDecode::Args& args) {
  mla_decode::run_splits(ex, with_query_axis(args));
  return {};
}

/// The vector variant computes with bf16 queries; f32 caches hold more than it could use.
bool is_bf16(const MlaDecode::Args& a) {
  return a.q.format == Format::kBf16 && a.cache.format != Format::kF32;
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

constinit const VariantTable<MlaDecode> mla_decode_cpu{
    {"avx512_bf16", Isa::kAvx512, "", kTraits, decode_avx512, MathUnit::kBf16, is_bf16},
    {"portable", Isa::kPortable, "", kTraits, decode_portable},
};

constinit const VariantTable<MlaDecodeMulti> mla_decode_multi_cpu{
    {"avx512_bf16", Isa::kAvx512, "", kTraits, decode_avx512, MathUnit::kBf16, is_bf16},
    {"portable", Isa::kPortable, "", kTraits, decode_portable},
};

}  // namespace fathom
