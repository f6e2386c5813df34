// What DeepSeek-V4 keeps of its tokens. Per layer: a ring of rows, the window; rows of 4 or 128
// tokens, which grow; the indexer's keys beside rows of 4; and for each compressor a ring of what
// it pools from.
#include <numeric>
#include <utility>

#include "fathom/base/checked_math.h"
#include "fathom/models/deepseek/v4/deepseek_v4.h"

namespace fathom {
namespace {

constexpr int64_t kSparse = static_cast<int64_t>(CompressRatio::kSparse);
constexpr int64_t kHeavy = static_cast<int64_t>(CompressRatio::kHeavy);

// Rows of a ring beyond those that a token looks back at: tokens that may be taken back, and of the
// window also the tokens of a step that attends by way of the ring.
constexpr int64_t kWindowSlack = 128;
constexpr int64_t kStateSlack = 16;

// How the axes of a group's rows are called: pages of rows, or a ring a sequence.
struct RowAxes {
  const char* row;
  const char* codes;
  const char* fp4_codes;
  const char* rope;
  const char* scales;
  const char* fp4_scales;
  const char* one_scale;
};

constexpr RowAxes kPageAxes{"pages,page_rows,D",  "pages,page_rows,Dn",    "pages,page_rows,Dn/2",
                            "pages,page_rows,Dr", "pages,page_rows,Dn/64", "pages,page_rows,Dn/16",
                            "pages,page_rows,1"};
constexpr RowAxes kRingAxes{"sequences,ring,D",  "sequences,ring,Dn",    "sequences,ring,Dn/2",
                            "sequences,ring,Dr", "sequences,ring,Dn/64", "sequences,ring,Dn/16",
                            "sequences,ring,1"};

// e4m3: FlashMLA's rows, 584 bytes for 448 + 64 channels; nvfp4: 384. A page is the rows, then
// their scales.
PageCodec row_codec(Format format, int64_t channels, int64_t rotary, const RowAxes& axes) {
  if (format != Format::kE4m3 && format != Format::kNvfp4) {
    return PageCodec::dense(str_cat("row ", format_name(format)), format, channels, axes.row);
  }
  const bool fp4 = format == Format::kNvfp4;
  constexpr int64_t kGroup = 64;
  const int64_t codes = channels - rotary;
  const int64_t bytes = fp4 ? codes / 2 : codes;
  const int64_t scales = fp4 ? codes / 16 : codes % kGroup == 0 ? codes / kGroup : 1;
  PageCodec codec;
  codec.name = str_cat(fp4 ? "row nvfp4 " : "row fp8_ds_mla ", channels, "/", rotary);
  codec.plane_bytes = {bytes + 2 * rotary, align_up<int64_t>(scales, 8)};
  codec.fields = {{.name = "values",
                   .format = fp4 ? Format::kU8 : Format::kE4m3,
                   .width = bytes,
                   .axes = fp4 ? axes.fp4_codes : axes.codes},
                  {.name = "rope",
                   .format = Format::kBf16,
                   .width = rotary,
                   .axes = axes.rope,
                   .offset = bytes},
                  {.name = "scales",
                   .format = fp4 ? Format::kE4m3 : Format::kUe8m0,
                   .width = scales,
                   .axes = fp4           ? axes.fp4_scales
                           : scales == 1 ? axes.one_scale
                                         : axes.scales,
                   .plane = 1}};
  codec.alignment = fp4 ? 2 : codec.plane_bytes[0];
  return codec;
}

PageCodec key_codec(Format format, int64_t width) {
  if (format != Format::kE4m3 && format != Format::kMxfp4) {
    return PageCodec::dense(str_cat("indexer key ", format_name(format)), format, width,
                            "pages,page_rows,Di");
  }
  const bool fp4 = format == Format::kMxfp4;
  PageCodec codec;
  codec.name = str_cat("indexer key ", format_name(format));
  codec.plane_bytes = {fp4 ? width / 2 : width, fp4 ? width / 32 : 4};
  codec.fields = {{.name = "keys",
                   .format = fp4 ? Format::kU8 : format,
                   .width = codec.plane_bytes[0],
                   .axes = fp4 ? "pages,page_rows,Di/2" : "pages,page_rows,Di"},
                  {.name = "scales",
                   .format = fp4 ? Format::kUe8m0 : Format::kF32,
                   .width = fp4 ? width / 32 : 1,
                   .axes = fp4 ? "pages,page_rows,Di/32" : "pages,page_rows,1",
                   .plane = 1}};
  return codec;
}

CacheGroup state_group(
    std::string name, std::vector<int> layers, int64_t entries, int64_t width, const char* axes) {
  PageCodec codec;
  codec.name = str_cat("compressor state f32 x ", 2 * width);
  codec.plane_bytes = {8 * width};
  codec.fields = {
      {.name = "u", .format = Format::kF32, .width = width, .axes = axes},
      {.name = "z", .format = Format::kF32, .width = width, .axes = axes, .offset = 4 * width}};
  return {.name = std::move(name),
          .layers = std::move(layers),
          .extent = CacheExtent::kWindow,
          .window = entries,
          .rows = entries + kStateSlack,
          .codec = std::move(codec)};
}

CacheGroup pooled_group(std::string name,
                        std::vector<int> layers,
                        int64_t tokens_per_row,
                        int64_t block_tokens,
                        size_t ring,
                        int64_t entries,
                        PageCodec codec) {
  return {.name = std::move(name),
          .layers = std::move(layers),
          .tokens_per_row = tokens_per_row,
          .rows = block_tokens / tokens_per_row,
          .pool_ring = static_cast<int>(ring),
          .pool_entries = entries,
          .codec = std::move(codec)};
}

CacheFields fields_of(const GroupRows& group, size_t layer) {
  if (group.num_fields == 1) return {.values = group.at(layer)};
  if (group.num_fields == 2) return {.values = group.at(layer, 0), .scales = group.at(layer, 1)};
  return {.values = group.at(layer, 0), .rope = group.at(layer, 1), .scales = group.at(layer, 2)};
}

CompressorRows compressor_rows(const Batch& batch, size_t rows, size_t state, size_t layer) {
  const PooledRows& pooled = batch.pooled[rows];
  return {.state_u = batch.cache[state].at(layer, 0),
          .state_z = batch.cache[state].at(layer, 1),
          .state_slots = batch.slots[state],
          .gather = pooled.gather,
          .positions = pooled.positions,
          .slots = pooled.slots,
          .tree_masks = pooled.tree_masks,
          .fields = fields_of(batch.cache[rows], layer)};
}

}  // namespace

CacheLayout v4_cache_layout(const ModelConfig& c, const ModelOptions& o, bool draft, V4Groups& at) {
  const Format format = o.cache_format();
  const int64_t D = c.head_dim;
  std::vector<int> all(static_cast<size_t>(c.num_hidden_layers + (draft ? 1 : 0)));
  std::iota(all.begin(), all.end(), 0);
  std::vector<int> sparse;
  std::vector<int> heavy;
  for (const int i : all) {
    if (c.compress_ratio(i) == CompressRatio::kSparse) sparse.push_back(i);
    if (c.compress_ratio(i) == CompressRatio::kHeavy) heavy.push_back(i);
  }
  CacheLayout layout{.block_tokens = o.page_size * kSparse, .groups = {}};
  const auto add = [&](CacheGroup group) {
    layout.groups.push_back(std::move(group));
    return layout.groups.size() - 1;
  };
  at = {};
  at.window = add({.name = "window",
                   .layers = all,
                   .extent = CacheExtent::kWindow,
                   .window = c.sliding_window,
                   .rows = c.sliding_window + kWindowSlack,
                   .in_pieces = true,
                   .codec = row_codec(format, D, c.qk_rope_head_dim, kRingAxes)});
  if (!sparse.empty()) {
    const int64_t entries = 2 * kSparse;
    at.sparse_state = add(state_group("csa state", sparse, entries, 2 * D, "sequences,ring,2*D"));
    at.index_state = add(
        state_group("index state", sparse, entries, 2 * c.index_head_dim, "sequences,ring,2*Di"));
    at.sparse = add(pooled_group("csa", sparse, kSparse, layout.block_tokens, at.sparse_state,
                                 entries, row_codec(format, D, c.qk_rope_head_dim, kPageAxes)));
    at.index = add(pooled_group("index", sparse, kSparse, layout.block_tokens, at.index_state,
                                entries, key_codec(o.index_format(c), c.index_head_dim)));
  }
  if (!heavy.empty()) {
    at.heavy_state = add(state_group("hca state", heavy, kHeavy, D, "sequences,ring,D"));
    at.heavy = add(pooled_group("hca", heavy, kHeavy, layout.block_tokens, at.heavy_state, kHeavy,
                                row_codec(format, D, c.qk_rope_head_dim, kPageAxes)));
  }
  return layout;
}

CompressedRows v4_rows(const Batch& batch, const V4Groups& at, const V4Layer& w) {
  CompressedRows rows;
  rows.window = fields_of(batch.cache[at.window], static_cast<size_t>(w.index));
  rows.window_slots = batch.slots[at.window];
  if (w.attn.ratio == CompressRatio::kSparse) {
    rows.rows = compressor_rows(batch, at.sparse, at.sparse_state, w.rows_place);
    rows.keys = compressor_rows(batch, at.index, at.index_state, w.rows_place);
  } else if (w.attn.ratio == CompressRatio::kHeavy) {
    rows.rows = compressor_rows(batch, at.heavy, at.heavy_state, w.rows_place);
  }
  return rows;
}

}  // namespace fathom
