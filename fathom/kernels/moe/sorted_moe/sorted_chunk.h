// The work of sorted_moe_gemm, a chunk of slots at a time: rows are gathered into scratch memory,
// multiplied by the loops of the grouped GEMMs, weighted and scattered. The copies stay in the
// second-level cache, and a layer needs no buffer of the size of all slots. A chunk may span
// experts, so that a decode step is one region.
#pragma once

#include <cstddef>

#include "fathom/kernels/cpu/products/decoded_rows.h"
#include "fathom/kernels/moe/sorted_moe/sorted_moe.h"

namespace fathom {

/// What multiplies rows, and how it reads them.
struct SortedLoop {
  ProductLoop loop = nullptr;
  bool decodes = false;  ///< rows are decoded as they are gathered, to `type`
  ElementType type = ElementType::kBf16;
};

/// Bytes of workspace of a SortedChunk.
int64_t sorted_chunk_workspace(const SortedMoeGemm::Args& a, int num_threads);

/// One chunk: slots in the order of their experts.
class SortedChunk {
 public:
  SortedChunk(Exec& ex, const SortedMoeGemm::Args& a, const SortedLoop& loop);

  /// Adds a slot, whose result goes to row `row` of y; multiplies first what is there if the chunk
  /// is full or the order of experts ends.
  Status add(int32_t slot, int32_t expert, int32_t row);

  /// Multiplies and scatters what is there.
  Status multiply();

 private:
  /// The scratch memory of a call.
  struct Memory {
    std::byte* x = nullptr;      // [chunk] rows as they are or decoded
    float* y = nullptr;          // [chunk, N] of float32, or of the format of y
    int32_t* slots = nullptr;    // [chunk]
    int32_t* experts = nullptr;  // [chunk]
    int32_t* rows = nullptr;     // [chunk], of y
    int32_t* offsets = nullptr;  // [E + 1]
    std::byte* products = nullptr;
    int64_t bytes = 0;

    Memory(const SortedMoeGemm::Args& a, int num_threads, void* memory);
  };

  friend int64_t sorted_chunk_workspace(const SortedMoeGemm::Args& a, int num_threads);

  Status run(Products& p);
  void gather();
  void decode(int64_t r, std::byte* out) const;
  void scatter();
  void finish_row(int64_t r);

  Exec& ex_;
  const SortedMoeGemm::Args& a_;
  SortedLoop loop_;
  Memory memory_;
  DecodedRow row_;
  int64_t capacity_;
  bool finishes_;  // sums become results in scatter(), not in the loop
  int64_t count_ = 0;
  int32_t first_expert_ = 0;
  int32_t last_expert_ = 0;
};

}  // namespace fathom
