// What a model keeps of the tokens it has seen, as data: groups of rows that the runtime allocates,
// hands out and describes without knowing what they mean.
//
// A group is one kind of row in some of the layers. Two questions decide how it is kept:
//
//   extent       how many rows a sequence needs, as it grows
//     tokens     a row for each `tokens_per_row` tokens, for ever: MLA latents (1), compressed
//                entries (4 or 128), keys of an indexer
//     window     the rows of the last `window` tokens, in a ring: sliding-window attention,
//                partial sums of a compressor
//     state      a fixed number of rows that each step replaces
//   codec        what the bytes of a page are
//
// Tokens are cut into blocks of `block_tokens`. A group that grows has one page a block, so that a
// block number finds the page in every layer of every such group: one pool of blocks and one table
// a sequence serve them all, and a prefix is found in all of them or in none. What does not grow
// lies in a slot a sequence; a slot number, too, means the same in every group.
//
//   sequence of 150 tokens, blocks of 64      blocks  [ 7 | 2 | 9 . ]     slot  [ 3 ]
//     group "latent", 1 token a row            64 rows  64   22
//     group "csa", 4 tokens a row              16 rows  16    5
//     group "window", 128 tokens                                            128 + slack rows
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/base/status.h"
#include "fathom/tensor/view.h"

namespace fathom {

/// Numbers of one kind in each row of a page.
struct PageField {
  std::string name;  ///< "latent"
  Format format = Format::kBf16;
  int64_t width = 0;           ///< numbers a row
  const char* axes = nullptr;  ///< of the view [pages, rows, width], for records
  int plane = 0;
  int64_t offset = 0;  ///< bytes from the start of a row of the plane
};

/// How rows become bytes. A page is one or more planes, one behind the other; a plane holds a piece
/// of each row; a field is part of such a piece. So rows may mix formats, and scales may lie apart:
///
///   planes {576, 8} of B rows:  [ row 0: 576 | ... | row B-1 ][ row 0: 8 | ... | row B-1 ][ pad ]
///     field "values" e4m3 x 448 at plane 0, byte 0;  "rope" bf16 x 64 at plane 0, byte 448
///     field "scales" ue8m0 x 7 at plane 1, byte 0
struct PageCodec {
  std::string name;                  ///< "mla latent bf16"
  std::vector<int64_t> plane_bytes;  ///< of a row in each plane
  std::vector<PageField> fields;
  int64_t alignment = 1;  ///< a page is padded to a multiple of so many bytes

  /// One plane with one field: rows of `width` numbers.
  static PageCodec dense(std::string name, Format format, int64_t width, const char* axes);

  int64_t row_bytes() const;
  int64_t page_bytes(int64_t rows) const;

  /// Field `index` of `num_pages` pages of `rows` rows from `base` on: [num_pages, rows, width],
  /// strided. `base` may be null. The sizes of the codec are multiples of the field's element.
  View view(size_t index, std::byte* base, int64_t num_pages, int64_t rows) const;
};

enum class CacheExtent : uint8_t { kTokens, kWindow, kState };

struct CacheGroup {
  std::string name;         ///< "latent"
  std::vector<int> layers;  ///< those that have it, draft layers included; rows lie in this order
  CacheExtent extent = CacheExtent::kTokens;
  int64_t tokens_per_row = 1;  ///< kTokens
  /// kWindow: tokens that a query sees behind it. The ring has `rows` rows; what it has beyond the
  /// window is how far a sequence may be cut back.
  int64_t window = 0;
  int64_t rows = 0;  ///< of a page (kTokens), or of a slot
  /// kWindow: its layers write a step in pieces that fit the ring, or the last of it alone, so
  /// every token has a slot there; else only the last `rows` tokens of a step have.
  bool in_pieces = false;
  /// kTokens: a row is pooled from the last `pool_entries` tokens when its last token comes; those
  /// before the step are in the ring of group `pool_ring`. -1: rows are written as they are.
  int pool_ring = -1;
  int64_t pool_entries = 0;
  PageCodec codec;

  bool grows() const { return extent == CacheExtent::kTokens; }

  /// Of a page or a slot in all layers of the group.
  int64_t bytes() const { return static_cast<int64_t>(layers.size()) * codec.page_bytes(rows); }
};

/// The memory of a cache group: its fields in each of its layers, [pages, rows, width] each.
struct GroupRows {
  std::vector<View> views;  ///< field by field of the first layer, then of the second, ...
  size_t num_fields = 1;

  const View& at(size_t layer, size_t field = 0) const { return views[layer * num_fields + field]; }
};

/// All groups of a model. A model without a cache has none.
struct CacheLayout {
  int64_t block_tokens = 64;
  std::vector<CacheGroup> groups;

  /// Errors: Internal for a group that contradicts itself or its block, naming it.
  Status validate() const;

  /// Of a block: a page of each group that grows.
  int64_t bytes_per_block() const;

  /// What a sequence takes besides, however long it is.
  int64_t bytes_per_slot() const;

  bool has_slots() const { return bytes_per_slot() > 0; }

  int64_t blocks_for(int64_t tokens) const { return ceil_div(tokens, block_tokens); }

  /// Blocks that hold all that a tree of `rows` tokens behind `before` others may write: in a group
  /// that pools its rows each of them may complete one.
  int64_t blocks_for_tree(int64_t before, int64_t rows) const;

  /// Tokens by which a sequence may be cut back without a snapshot; INT64_MAX if all groups grow.
  int64_t slack() const;

  /// Whether all groups keep a row of each token, or pool their rows from those of others, so that
  /// a row may move to another token's place. Trees of tokens need that.
  bool keeps_rows() const;

  /// "latent: mla latent bf16, 61 layers x 576 x 2 bytes = 70272 bytes per token, 64 tokens per
  /// page", or "... bytes per sequence".
  std::string describe(const CacheGroup& group) const;

  /// What the bytes mean, for keys of prefixes: equal texts, equal pages.
  std::string fingerprint() const;
};

/// Bytes of the memory of all groups: `num_blocks` pages of each that grows, `num_slots` of each
/// other; each layer begins at a multiple of 64 bytes. Errors: InvalidArgument where the number
/// does not fit 63 bits.
Result<int64_t> cache_bytes(const CacheLayout& layout, int64_t num_blocks, int64_t num_slots);

/// The views of such a memory; `base` may be null.
std::vector<GroupRows> cache_views(const CacheLayout& layout,
                                   std::byte* base,
                                   int64_t num_blocks,
                                   int64_t num_slots,
                                   bool on_device);

}  // namespace fathom
