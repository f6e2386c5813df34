// Intrinsics stand here, and not behind kernels/simd, because a peak is about one instruction: no
// loads, no wrapper, twelve chains that do not wait for each other. Functions carry their
// instruction set as an attribute, so the rest of the program does not.
#include "fathom/bench/machine/peak_loops.h"

#include <immintrin.h>

namespace fathom {
namespace {

// Twelve chains and two operands fit the sixteen registers of AVX2; a multiply-add takes four to
// six cycles and two start in each. Every loop over chains is unrolled whole, the first one too:
// otherwise the array lives in memory and the loop measures stores.
constexpr int kChains = 12;

#define FATHOM_TARGET_AVX2 __attribute__((target("avx2,fma")))
#define FATHOM_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")))
#define FATHOM_TARGET_AMX __attribute__((target("amx-tile,amx-bf16,amx-int8")))

double f32_portable(int64_t rounds) {
  float chain[kChains];
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c)
    chain[c] = static_cast<float>(c);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      chain[c] = chain[c] * 0.999f + 0.5f;
      asm volatile("" : "+x"(chain[c]));
    }
  }
  return static_cast<double>(rounds) * kChains * 2;
}

// One chain: the next addition waits for the last.
double sum_of_products(int64_t rounds) {
  float sum = 0;
  float x = 0.5f;
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+x"(x));
    sum += x * 0.999f;
    asm volatile("" : "+x"(sum));
  }
  return static_cast<double>(rounds) * 2;
}

FATHOM_TARGET_AVX2 double f32_avx2(int64_t rounds) {
  __m256 chain[kChains];
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c)
    chain[c] = _mm256_set1_ps(static_cast<float>(c));
  const __m256 a = _mm256_set1_ps(0.999f);
  const __m256 b = _mm256_set1_ps(0.5f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      chain[c] = _mm256_fmadd_ps(chain[c], a, b);
      asm volatile("" : "+x"(chain[c]));
    }
  }
  return static_cast<double>(rounds) * kChains * 8 * 2;
}

FATHOM_TARGET_AVX512 double f32_avx512(int64_t rounds) {
  __m512 chain[kChains];
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c)
    chain[c] = _mm512_set1_ps(static_cast<float>(c));
  const __m512 a = _mm512_set1_ps(0.999f);
  const __m512 b = _mm512_set1_ps(0.5f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      chain[c] = _mm512_fmadd_ps(chain[c], a, b);
      asm volatile("" : "+v"(chain[c]));
    }
  }
  return static_cast<double>(rounds) * kChains * 16 * 2;
}

FATHOM_TARGET_AVX512 double bf16_avx512(int64_t rounds) {
  __m512 chain[kChains];
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c)
    chain[c] = _mm512_setzero_ps();
  const __m512bh a = (__m512bh)_mm512_set1_epi16(0x3F80);  // 1.0
  const __m512bh b = (__m512bh)_mm512_set1_epi16(0x3C00);  // a small positive number
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      chain[c] = _mm512_dpbf16_ps(chain[c], a, b);
      asm volatile("" : "+v"(chain[c]));
    }
  }
  return static_cast<double>(rounds) * kChains * 32 * 2;
}

FATHOM_TARGET_AVX512 double int8_avx512(int64_t rounds) {
  __m512i chain[kChains];
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c)
    chain[c] = _mm512_setzero_si512();
  const __m512i a = _mm512_set1_epi8(3);
  const __m512i b = _mm512_set1_epi8(-2);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      chain[c] = _mm512_dpbusd_epi32(chain[c], a, b);
      asm volatile("" : "+v"(chain[c]));
    }
  }
  return static_cast<double>(rounds) * kChains * 64 * 2;
}

// All eight tiles: 16 rows of 64 bytes. Layout of LDTILECFG's operand.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

static_assert(sizeof(TileConfig) == 64, "LDTILECFG reads 64 bytes");

// GCC's intrinsic tells the compiler that eight bytes are read; without the barrier the other
// stores into a local configuration are dropped as dead, and the processor faults on what is there
// instead.
FATHOM_TARGET_AMX void load_config(const TileConfig& config) {
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

// A tile product is 16 x 16 outputs over 64 bytes of k.
constexpr double kTileOps = 16 * 16 * 64 * 2;

FATHOM_TARGET_AMX double bf16_amx(int64_t rounds) {
  const TileConfig config;
  alignas(64) static const uint8_t zeros[16 * 64] = {};
  load_config(config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, zeros, 64);
  _tile_loadd(5, zeros, 64);
  for (int64_t r = 0; r < rounds; ++r) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
  return static_cast<double>(rounds) * 4 * kTileOps / 2;  // two bytes a value
}

FATHOM_TARGET_AMX double int8_amx(int64_t rounds) {
  const TileConfig config;
  alignas(64) static const uint8_t zeros[16 * 64] = {};
  load_config(config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, zeros, 64);
  _tile_loadd(5, zeros, 64);
  for (int64_t r = 0; r < rounds; ++r) {
    _tile_dpbssd(0, 4, 5);
    _tile_dpbssd(1, 4, 5);
    _tile_dpbssd(2, 4, 5);
    _tile_dpbssd(3, 4, 5);
  }
  _tile_release();
  return static_cast<double>(rounds) * 4 * kTileOps;
}

}  // namespace

ComputeLoop f32_loop(Isa isa) {
  if (isa >= Isa::kAvx512) return {"vfmadd zmm", f32_avx512};
  if (isa == Isa::kAvx2) return {"vfmadd ymm", f32_avx2};
  return {"mulss addss", f32_portable};
}

ComputeLoop bf16_loop(Isa isa) {
  if (isa == Isa::kAmx) return {"tdpbf16ps", bf16_amx};
  if (isa == Isa::kAvx512) return {"vdpbf16ps zmm", bf16_avx512};
  return {};
}

ComputeLoop int8_loop(Isa isa) {
  if (isa == Isa::kAmx) return {"tdpbssd", int8_amx};
  if (isa == Isa::kAvx512) return {"vpdpbusd zmm", int8_avx512};
  return {};
}

namespace {

// One line in eight words; eight sums, which compilers turn into vectors.
uint64_t read_portable(const uint64_t* words, size_t lines) {
  uint64_t sum[8] = {};
  for (size_t i = 0; i < lines; ++i) {
    for (size_t j = 0; j < 8; ++j)
      sum[j] += words[8 * i + j];
  }
  uint64_t total = 0;
  for (uint64_t s : sum)
    total += s;
  return total;
}

// A core alone keeps too few lines in flight; asking for lines far ahead is what a kernel does too.
FATHOM_TARGET_AVX512 uint64_t read_avx512(const uint64_t* words, size_t lines) {
  constexpr size_t kAheadLines = 64;
  __m512i sum[4];
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c)
    sum[c] = _mm512_setzero_si512();
  size_t i = 0;
  for (; i + 4 <= lines; i += 4) {
#pragma GCC unroll 4
    for (size_t c = 0; c < 4; ++c) {
      const uint64_t* line = words + 8 * (i + c);
      _mm_prefetch(reinterpret_cast<const char*>(line + 8 * kAheadLines), _MM_HINT_T0);
      sum[c] = _mm512_add_epi64(sum[c], _mm512_loadu_si512(line));
    }
  }
  const __m512i all =
      _mm512_add_epi64(_mm512_add_epi64(sum[0], sum[1]), _mm512_add_epi64(sum[2], sum[3]));
  alignas(64) uint64_t parts[8];
  _mm512_store_si512(parts, all);
  uint64_t total = read_portable(words + 8 * i, lines - i);
  for (uint64_t p : parts)
    total += p;
  return total;
}

}  // namespace

ComputeLoop plain_loop() {
  return {"mulss, addss", sum_of_products};
}

uint64_t read_words(std::span<const uint64_t> words) {
  const size_t lines = words.size() / 8;
  uint64_t total = best_isa() >= Isa::kAvx512 ? read_avx512(words.data(), lines)
                                              : read_portable(words.data(), lines);
  for (size_t i = lines * 8; i < words.size(); ++i)
    total += words[i];
  return total;
}

}  // namespace fathom
