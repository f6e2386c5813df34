#include "fathom/os/sha256_blocks.h"

#include <bit>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace fathom {
namespace {

// FIPS 180-4, 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64
// primes.
alignas(16) constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load_big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

void compress(Sha256State& state, const uint8_t* block) {
  uint32_t w[64];
  for (int t = 0; t < 16; ++t)
    w[t] = load_big_endian(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int t = 0; t < 64; ++t) {
    const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t t1 = h + sum1 + choice + kRound[static_cast<size_t>(t)] + w[t];
    const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + sum0 + majority;
  }
  const Sha256State add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i)
    state[i] += add[i];
}

}  // namespace

void sha256_blocks_portable(Sha256State& state, const uint8_t* data, size_t num_blocks) {
  for (size_t i = 0; i < num_blocks; ++i)
    compress(state, data + 64 * i);
}

#if defined(__x86_64__)

bool has_sha_instructions() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  const bool has_sha = (ebx >> 29 & 1) != 0;
  return has_sha && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 19 & 1) != 0;
}

// Intel Architecture Instruction Set Extensions, chapter on SHA: the eight words are kept as
// (A, B, E, F) and (C, D, G, H), and one instruction does two rounds.
__attribute__((target("sha,sse4.1"))) void sha256_blocks_x86(Sha256State& state,
                                                             const uint8_t* data,
                                                             size_t num_blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  auto* words = reinterpret_cast<__m128i*>(state.data());
  const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (; num_blocks > 0; --num_blocks, data += 64) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i w[4];  // the last 16 words of the message schedule
    for (int i = 0; i < 4; ++i) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i);
      w[i] = _mm_shuffle_epi8(bytes, big_endian);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {  // four rounds; unrolled so that w stays in registers
      const auto* constants = reinterpret_cast<const __m128i*>(kRound.data()) + i;
      __m128i sum = _mm_add_epi32(w[i & 3], _mm_load_si128(constants));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      sum = _mm_shuffle_epi32(sum, 0x0e);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, sum);
      const __m128i seventh = _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4);
      const __m128i partial =
          _mm_add_epi32(_mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]), seventh);
      w[i & 3] = _mm_sha256msg2_epu32(partial, w[(i + 3) & 3]);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
}

#else

bool has_sha_instructions() {
  return false;
}

void sha256_blocks_x86(Sha256State& state, const uint8_t* data, size_t num_blocks) {
  sha256_blocks_portable(state, data, num_blocks);
}

#endif

void sha256_blocks(Sha256State& state, const uint8_t* data, size_t num_blocks) {
  static const bool use_x86 = has_sha_instructions();
  (use_x86 ? sha256_blocks_x86 : sha256_blocks_portable)(state, data, num_blocks);
}

}  // namespace fathom
