// The latent row of DeepSeek-V3.2, whose cache is in FP8 with four scales a row.
#pragma once

#include <array>

#include "fathom/kernels/attn/cache_row.h"
#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Quantises the latent of each token and writes it with the rotated key to its slot.
///
///   scale g = max(amax / 448, 2^-126), amax = max |c| over channels 128g .. 128g+127, or with
///             kPowerOfTwo 2^ceil(log2(max(amax, 1e-4) / 448))
///   values[slot(t)] = e4m3(c[t] / scale)    rope[slot(t)] = bf16(k_pe[t])
///
/// The fields are those of a row of cache_row.h with f32 scales: 656 bytes, [ values 512 | scales
/// 4 x f32 | rope 64 x bf16 ], as views with strides. k_pe is rotated already. slots[t] = page * S
/// + row, -1 skips the token; two tokens must not share a slot. Only those rows are written. Inputs
/// may be strided. c is rounded to bf16 first, then once to its code. Readers take either rule for
/// scales. Rows in bf16 or f32 are those of kv_write.
/// Deterministic; tokens are independent.
/// Errors: InvalidArgument for slots outside [-1, M*S) or unequal formats of c and k_pe.
/// Source: vLLM (concat_and_cache_ds_mla); FlashMLA, tests/quant.py.
struct MlaSparseKvWrite {
  static constexpr KernelInfo kInfo{
      .name = "mla_sparse_kv_write",
      .signature =
          "c[T,L]:bf16|f32 k_pe[T,R]:bf16|f32 slots[T]:i64 -> "
          "values[M,S,L]:e4m3 rope[M,S,R]:bf16 scales[M,S,G]:f32",
      .limits = "G*128==L, G>=1",
      .equation = "values[slot] = e4m3(c / scale), scale = amax / 448 per 128; rope[slot] = k_pe",
      .source = "vLLM; FlashMLA",
      .flops = "3*T*L",
  };

  struct Args {
    View c, k_pe, slots, values, rope, scales;
    CacheScale scale = CacheScale::kAmax;

    CacheFields fields() const { return {.values = values, .rope = rope, .scales = scales}; }
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.c, &a.k_pe, &a.slots, &a.values, &a.rope, &a.scales};
  }

  static Cost cost(const Args& a);

  /// One row a token.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);

  /// A row in float32, for each thread.
  static int64_t workspace(const Args& a, int num_threads);
};

extern const VariantTable<MlaSparseKvWrite> mla_sparse_kv_write_cpu;
extern const VariantTable<MlaSparseKvWrite> mla_sparse_kv_write_cuda;

}  // namespace fathom
