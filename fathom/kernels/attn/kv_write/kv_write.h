// The paged cache of multi-head latent attention: writing the keys of new tokens, and reading the
// keys of one request back in order.
//
// A page holds S tokens, a token D = L + R numbers: the normalised latent c (L), then the rotated
// shared key k_pe (R). Page i of a request holds its tokens i*S .. i*S+S-1.
//
//   cache[page][offset]:  c_0 ........ c_{L-1} | k_0 ... k_{R-1}      slot = page * S + offset
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Writes the latent key of each token to its slot.
///
///   cache[slot(t)] = convert( [ c[t] | k_pe[t] ] / scale )
///
/// k_pe is rotated already. slots[t] = page * S + offset, -1 skips the token; two tokens must not
/// share a slot. Only those slots are written. The cache is bf16, f32 or e4m3. To e4m3 the value is
/// divided by `scale` in float32, rounded to nearest even and saturated at +-448; other formats
/// take scale 1 only. Inputs may be strided; of the cache the page stride is free.
/// One rounding, exact if the formats agree. Deterministic; tokens are independent.
/// Errors: InvalidArgument for slots outside [-1, M*S), unequal formats of c and k_pe, a scale that
/// is not finite and positive, or a scale with a format that has none.
/// Source: DeepSeek-V2 technical report, section 2.1 (what is cached); vLLM.
struct KvWrite {
  static constexpr KernelInfo kInfo{
      .name = "kv_write",
      .signature =
          "c[T,L]:bf16|f32 k_pe[T,R]:bf16|f32 slots[T]:i64 -> "
          "cache[M,S,D]:bf16|f32|e4m3",
      .limits = "D==L+R",
      .equation = "cache[slot[t]] = [c[t] | k_pe[t]] / scale",
      .source = "DeepSeek-V2 report, 2.1",
      .flops = "0",
  };

  struct Args {
    View c, k_pe, slots, cache;
    float scale = 1.0f;  ///< value = code * scale
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.c, &a.k_pe, &a.slots, &a.cache};
  }

  static Cost cost(const Args&) { return {}; }

  /// One slot a token.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

/// Reads tokens begin .. begin+T-1 of one request from the cache.
///
///   [ c[t] | k_pe[t] ] = cache[ pages[(begin+t) / S] ][ (begin+t) % S ] * scale
///
/// pages[i] is the physical page of the request's i-th page; entries that no token falls into are
/// not read and may hold anything. Outputs may be strided and have one format.
/// Exact from bf16 to bf16 or f32 and from f32 to f32; otherwise one rounding. Deterministic.
/// Errors: InvalidArgument if the tokens exceed the B pages, a page number lies outside [0, M), the
/// formats of c and k_pe differ, or a scale is given with a format that has none.
/// Source: chunked prefix attention, SGLang and vLLM (gather of the latent cache).
struct KvGather {
  static constexpr KernelInfo kInfo{
      .name = "kv_gather",
      .signature = "cache[M,S,D]:bf16|f32|e4m3 pages[B]:i32 -> c[T,L]:bf16|f32 k_pe[T,R]:bf16|f32",
      .limits = "D==L+R",
      .equation = "[c[t] | k_pe[t]] = cache[pages[(begin+t)/S]][(begin+t)%S] * scale",
      .source = "chunked prefix attention of SGLang and vLLM",
      .flops = "0",
  };

  struct Args {
    View cache, pages, c, k_pe;
    int64_t begin = 0;
    float scale = 1.0f;  ///< value = code * scale
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.cache, &a.pages, &a.c, &a.k_pe};
  }

  static Cost cost(const Args&) { return {}; }

  /// One slot a token.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

extern const VariantTable<KvWrite> kv_write_cpu;
extern const VariantTable<KvWrite> kv_write_cuda;
extern const VariantTable<KvGather> kv_gather_cpu;
extern const VariantTable<KvGather> kv_gather_cuda;

}  // namespace fathom
