// The order of E2M1 codes in which products on a GPU read rows of NVFP4.
//
// A row stays where it is, K/2 bytes long, and so do its block scales. Inside 32 codes (sixteen
// bytes, four little-endian words) word t = 0 .. 3 has what lane t of a quad needs as operand of
// the tensor cores, four pairs of neighbours:
//
//   word t:  pair 0: k 2t, 2t+1    pair 1: 8 + the same    pair 2: 16 + it    pair 3: 24 + it
//
// and the bits of a word lie so that four masks find the pairs as bf16 (times 2^-126, the lower k
// in the lower half):
//
//   M      = 0x81C081C0              sign, two bits of exponent, one of mantissa, twice
//   pair 0 = w                & M
//   pair 1 = (w << 3)         & M
//   pair 2 = u                & M        where u = rotl(w, 6)
//   pair 3 = (u & L) * F      & M        where L = 0x001B001B, F = 2^2 + 2^7 + 2^12
//
// (bits 4, 0, 1 and 3 of each half of u times F lie at 6, 7, 8 and 15, and no sum has a carry).
// Eight operations for eight weights, six of them for the pipe of masks and rotations. Seven would
// take four rotations of M that cover a word, and there are none. Codes that follow each other take
// fifteen, and lanes of tiles would use two of every eight. Every bit has one place, so that the
// order can be undone.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "fathom/base/host_device.h"

namespace fathom {

inline constexpr uint32_t kPairMask = 0x81C081C0u;
inline constexpr int kPairRotation = 6;                   ///< left, for pairs 2 and 3
inline constexpr uint32_t kLastPairMask = 0x001B001Bu;    ///< of the rotated word
inline constexpr uint32_t kLastPairFactor = 0x00001084u;  ///< modulo 2^32

inline constexpr int kPairedCodes = 32;  ///< that change places among themselves
inline constexpr size_t kPairedBytes = 16;

/// Where bit `bit` (3: sign, 0: mantissa) of the lower (0) or upper (1) code of a pair lies in its
/// word.
constexpr int place_of_pair_bit(int pair, int upper, int bit) {
  constexpr std::array<int, 4> kInPair{6, 7, 8, 15};
  constexpr std::array<int, 4> kInLastPair{4, 0, 1, 3};  // of the rotated word
  constexpr std::array<int, 4> kRotation{0, 3, kPairRotation, kPairRotation};
  const auto& places = pair == 3 ? kInLastPair : kInPair;
  const int rotated = places[static_cast<size_t>(bit)] + 16 * upper;
  return (rotated - kRotation[static_cast<size_t>(pair)] + 32) % 32;
}

/// Bits of a word that move by the same distance.
struct BitMove {
  uint32_t from = 0;
  int left = 0;  ///< to the right where negative
};

struct BitMoves {
  std::array<BitMove, 63> moves{};
  size_t count = 0;
};

/// From words whose byte p holds pair p to the places of the layout, or back.
constexpr BitMoves find_pair_moves(bool back) {
  BitMoves out;
  for (int left = -31; left <= 31; ++left) {
    uint32_t from = 0;
    for (int code = 0; code < 8; ++code) {
      for (int bit = 0; bit < 4; ++bit) {
        const int plain = 4 * code + bit;
        const int placed = place_of_pair_bit(code / 2, code % 2, bit);
        if ((back ? plain - placed : placed - plain) == left)
          from |= uint32_t{1} << (back ? placed : plain);
      }
    }
    if (from != 0) out.moves[out.count++] = {from, left};
  }
  return out;
}

template <bool kBack>
inline constexpr BitMoves kPairMoves = find_pair_moves(kBack);

template <bool kBack, size_t i>
FATHOM_HD constexpr uint32_t move_bits(uint32_t word) {
  constexpr BitMove kMove = kPairMoves<kBack>.moves[i];
  if constexpr (kMove.left >= 0) {
    return (word & kMove.from) << kMove.left;
  } else {
    return (word & kMove.from) >> -kMove.left;
  }
}

template <bool kBack, size_t... i>
FATHOM_HD constexpr uint32_t move_all_bits(uint32_t word, std::index_sequence<i...>) {
  return (move_bits<kBack, i>(word) | ...);
}

/// A word whose byte p holds pair p, in the layout; or (kBack) the opposite.
template <bool kBack = false>
FATHOM_HD constexpr uint32_t paired_word(uint32_t word) {
  return move_all_bits<kBack>(word, std::make_index_sequence<kPairMoves<kBack>.count>());
}

/// Brings rows of codes, two in a byte, the lower k in the low nibble, into that order; size() must
/// be a multiple of kPairedBytes, as K must be one of 32.
void pair_codes(std::span<std::byte> rows);

/// The opposite.
void unpair_codes(std::span<std::byte> rows);

}  // namespace fathom
