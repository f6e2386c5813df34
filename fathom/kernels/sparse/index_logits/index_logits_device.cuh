// A call of either contract as the kernels of the GPU see it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fathom/formats/format.h"
#include "fathom/kernels/attn/tree_keys.h"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/sparse/request_offsets.cuh"

namespace fathom::index_logits {

/// Rows of bytes with two axes before them, strides in bytes.
struct ByteRows {
  const std::byte* data = nullptr;
  int64_t outer = 0;
  int64_t inner = 0;

  __device__ const std::byte* at(int64_t i, int64_t j) const {
    return data + i * outer + j * inner;
  }
};

/// A call as the kernels see it. A contiguous tensor of keys is one page.
struct Call {
  ByteRows q, q_scales;
  cuda::Rows<const float> w;
  int T = 0;
  int H = 0;
  int D = 0;
  ByteRows keys, key_scales;
  Format q_format, key_format;
  cuda::Rows<const int32_t> block_table;  ///< no data: one page
  int num_pages = 0;
  int room = 0;  ///< keys that a request's pages hold
  cuda::FastDivide page_size;
  const int32_t* q_offsets = nullptr;  ///< null: all tokens belong to request 0
  int num_requests = 1;
  const int32_t* starts = nullptr;  ///< null: 0
  const int32_t* ends = nullptr;
  const int64_t* tree_masks = nullptr;  ///< null: keys lie in the order of their numbers
  cuda::Rows<float> logits;
  int columns = 0;

  /// The request of a token, num_requests if none owns it. By a whole warp. Where there is one, it
  /// has all tokens: those that it does not own see no key.
  __device__ int request_of(int t) const {
    if (num_requests <= 1) return 0;
    // One token each is what a step of decoding has. Both offsets are asked for at once.
    if (t < num_requests) {
      const int begin = q_offsets[t];
      const int next = q_offsets[t + 1];
      if ((begin == t) & (next > t)) return t;
    }
    return cuda::request_by_warp(q_offsets, num_requests, t);
  }

  /// The pages of a request; null where keys are one page.
  __device__ const int32_t* pages_of(int request) const {
    return block_table.data == nullptr ? nullptr : block_table[request];
  }

  /// Where key j of some pages lies. Entries of a table are values of GPU memory that the host
  /// cannot check: a page that does not exist is not followed.
  struct Place {
    int page;
    int row;
  };

  __device__ Place place(const int32_t* pages, int j) const {
    if (pages == nullptr) return {0, j};
    const auto index = static_cast<int>(page_size.of(static_cast<uint32_t>(j)));
    const int page = pages[index];
    const int row = j - index * static_cast<int>(page_size.divisor);
    return {page >= 0 && page < num_pages ? page : 0, row};
  }

  /// A token of a tree that sees so many keys.
  __device__ TreeToken tree_token(int t, int seen) const {
    return tree_token_of(seen, tree_masks[t]);
  }

  /// The place of key i of a token of a tree, among those that the pages hold.
  __device__ int place_in_tree(const TreeToken& token, int i) const {
    const int64_t place = place_of_seen(token, i);
    return static_cast<int>(min(max(place, int64_t{0}), int64_t{room - 1}));
  }

  /// Keys that a token of a request sees.
  struct Range {
    int first;
    int end;

    __device__ bool sees(int j) const { return j >= first && j < end; }
  };

  /// What token t of a request sees. `end_of_token` is ends[t], which a block can ask for before it
  /// knows the request.
  __device__ Range range(int request, int t, int end_of_token) const {
    if (request < 0 || request >= num_requests) return {0, 0};
    const int most = min(columns, room);
    const int first = starts == nullptr ? 0 : max(starts[t], 0);
    const int end = min(end_of_token, most);
    return end > first ? Range{first, end} : Range{0, 0};
  }

  __device__ Range range(int request, int t) const { return range(request, t, ends[t]); }
};

}  // namespace fathom::index_logits
