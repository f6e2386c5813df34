// What the rows of a step are sampled with, as arrays in one block of bytes: the host packs it, and
// kernels read it where it is or in a copy on a GPU.
//
//   temperature, top_k, top_p, min_p, uniform, presence, frequency, repetition   [rows] each
//   mask_of_row: which mask, -1 for none                                         [rows]
//   token_offsets, bias_offsets                                                  [rows + 1] each
//   bias_tokens, bias_values                                                     [biased] each
//   tokens, counts                                                               [listed] each
//   mask                                                      [masked, words of num_ids bits]
//
// Places depend on the room of a block alone, not on what is packed, so a captured graph that reads
// a block reads the next step's as well. Everything that varies is in the block: numbers, the
// lengths of lists, and whether a row asks for anything at all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fathom/runtime/sample/params.h"
#include "fathom/runtime/sample/penalties.h"
#include "fathom/tensor/view.h"

namespace fathom {

/// What one row of logits is sampled with. Everything pointed to lives during the call.
struct SampleRow {
  const SamplingParams* params = nullptr;
  const TokenCounts* counts = nullptr;
  std::span<const int32_t> banned{};  ///< tokens that may not come now, such as end tokens
  /// Tokens that may come, a bit each, as TokenConstraint::next() writes them; empty: all.
  std::span<const uint32_t> mask{};
  /// The most probable token is taken, whatever the temperature.
  bool most_probable = false;
  uint64_t seed = 0;
  uint64_t stream = 0;
  int64_t position = 0;  ///< of the new token in its sequence
  /// Log-probabilities are those of this token instead of the one that is chosen; -1: not.
  int32_t scored = -1;

  bool greedy() const { return most_probable || params->greedy(); }
};

/// Words of a mask for so many ids.
constexpr int64_t mask_words(int64_t num_ids) {
  return (num_ids + 31) / 32;
}

/// How much a block holds.
struct SampleRoom {
  int64_t rows = 0;    ///< of a step, padding included
  int64_t listed = 0;  ///< tokens with counts, of all rows together
  int64_t biased = 0;  ///< biases and banned tokens, of all rows together
  int64_t words = 0;   ///< of masks, of all rows together

  /// 44 rows + 8 (listed + biased) + 4 words + 8, and alignment.
  int64_t bytes() const;

  bool holds(const SampleRoom& other) const {
    return rows >= other.rows && listed >= other.listed && biased >= other.biased &&
           words >= other.words;
  }
};

/// What these rows need at least.
SampleRoom room_of(std::span<const SampleRow> rows);

/// A packed block: views on it, and what its rows ask for.
struct SampleBatch {
  static constexpr int64_t kAlignment = 16;  ///< of a block, and of the arrays in it

  int64_t num_ids = 0;   ///< ids from here on are padding of the vocabulary: never looked at
  bool altered = false;  ///< some row has penalties, a bias or banned tokens
  bool masked = false;   ///< some row has a mask
  bool drawn = false;    ///< some row is not greedy
  View temperature{}, top_k{}, top_p{}, min_p{}, uniform{};   // [rows]
  View presence{}, frequency{}, repetition{}, mask_of_row{};  // [rows]
  View token_offsets{}, bias_offsets{};                       // [rows + 1]
  View tokens{}, counts{};                                    // as many as are listed
  View bias_tokens{}, bias_values{};                          // as many as there are
  View mask{};                                                // [masked, mask_words(num_ids)]

  int64_t num_rows() const { return temperature.dim(0); }

  /// Rows [begin, begin + count) of it.
  SampleBatch rows(int64_t begin, int64_t count) const;

  /// The same of a copy of the block at `base`, which may be null in a dry run.
  SampleBatch in_copy(const std::byte* block, std::byte* base, bool on_device) const;

  /// Bytes of the block that hold something: the arrays of rows, and of each list what is used. One
  /// range where there are no lists; the others are empty then.
  struct Range {
    int64_t offset = 0;
    int64_t bytes = 0;
  };

  std::array<Range, 6> used(const std::byte* block) const;
};

/// Packs rows into a block of room.bytes(). num_rows >= rows.size(): rows behind those given are
/// greedy and ask for nothing, for steps that are padded. `room` holds them all. Takes no memory.
SampleBatch pack_samples(std::byte* block,
                         const SampleRoom& room,
                         std::span<const SampleRow> rows,
                         int64_t num_rows,
                         int64_t num_ids);

}  // namespace fathom
