#include "fathom/models/cache_layout.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "fathom/base/check.h"

namespace fathom {
namespace {

Status contradicts(const CacheGroup& g, std::string_view found, std::string_view expected) {
  return internal_error(str_cat("cache group ", g.name, ": ", found, ", expected ", expected));
}

Status validate_group(const CacheGroup& g, int64_t block_tokens) {
  if (g.layers.empty() || g.rows < 1) return contradicts(g, "no layers or no rows", "some");
  for (const PageField& f : g.codec.fields) {
    const auto planes = static_cast<int>(g.codec.plane_bytes.size());
    if (f.plane < 0 || f.plane >= planes ||
        f.offset + f.width * element_bytes(f.format) >
            g.codec.plane_bytes[static_cast<size_t>(f.plane)]) {
      return contradicts(g, str_cat("field ", f.name, " ends outside its plane"), "a part of it");
    }
  }
  switch (g.extent) {
    case CacheExtent::kTokens:
      if (g.tokens_per_row >= 1 && g.rows * g.tokens_per_row == block_tokens) return {};
      return contradicts(g, str_cat(g.rows, " rows of ", g.tokens_per_row, " tokens a page"),
                         str_cat("a page a block of ", block_tokens, " tokens"));
    case CacheExtent::kWindow:
      if (g.window >= 1 && g.window <= g.rows) return {};
      return contradicts(g, str_cat("a window of ", g.window, " tokens in ", g.rows, " rows"),
                         "a ring that holds the window");
    case CacheExtent::kState:
      return {};
  }
  return {};
}

constexpr int64_t kLayerAlignment = 64;

// Bytes of a group in one layer, padded so that the next one is aligned; nothing if they overflow.
std::optional<int64_t> layer_bytes(const CacheGroup& g, int64_t num_blocks, int64_t num_slots) {
  const auto bytes = checked_mul(g.grows() ? num_blocks : num_slots, g.codec.page_bytes(g.rows));
  if (!bytes || *bytes > INT64_MAX - kLayerAlignment) return std::nullopt;
  return align_up(*bytes, kLayerAlignment);
}

std::string row_text(const CacheGroup& g) {
  const PageCodec& c = g.codec;
  if (c.fields.size() == 1 && c.plane_bytes.size() == 1) {
    const PageField& f = c.fields[0];
    return str_cat(f.width, " x ", element_bytes(f.format), " bytes");
  }
  return str_cat(c.row_bytes(), " bytes");
}

}  // namespace

PageCodec PageCodec::dense(std::string name, Format format, int64_t width, const char* axes) {
  PageCodec codec;
  codec.plane_bytes = {width * element_bytes(format)};
  codec.fields = {{.name = name, .format = format, .width = width, .axes = axes}};
  codec.name = std::move(name);
  return codec;
}

int64_t PageCodec::row_bytes() const {
  int64_t bytes = 0;
  for (const int64_t plane : plane_bytes)
    bytes += plane;
  return bytes;
}

int64_t PageCodec::page_bytes(int64_t rows) const {
  return align_up(rows * row_bytes(), alignment);
}

View PageCodec::view(size_t index, std::byte* base, int64_t num_pages, int64_t rows) const {
  const PageField& f = fields[index];
  const int64_t element = element_bytes(f.format);
  const int64_t row = plane_bytes[static_cast<size_t>(f.plane)];
  int64_t begin = f.offset;
  for (int p = 0; p < f.plane; ++p)
    begin += rows * plane_bytes[static_cast<size_t>(p)];
  const int64_t page = page_bytes(rows);
  FATHOM_CHECK(begin % element == 0 && row % element == 0 && page % element == 0,
               str_cat("field ", f.name, " does not lie on its elements"));
  View v = make_view(base == nullptr ? nullptr : base + begin, {num_pages, rows, f.width}, f.format,
                     f.axes);
  v.strides[0] = page / element;
  v.strides[1] = row / element;
  return v;
}

Status CacheLayout::validate() const {
  if (block_tokens < 1) {
    return internal_error(str_cat("a cache block of ", block_tokens, " tokens, expected one"));
  }
  for (const CacheGroup& g : groups)
    FATHOM_TRY(validate_group(g, block_tokens));
  return {};
}

int64_t CacheLayout::bytes_per_block() const {
  int64_t bytes = 0;
  for (const CacheGroup& g : groups)
    bytes += g.grows() ? g.bytes() : 0;
  return bytes;
}

int64_t CacheLayout::bytes_per_slot() const {
  int64_t bytes = 0;
  for (const CacheGroup& g : groups)
    bytes += g.grows() ? 0 : g.bytes();
  return bytes;
}

bool CacheLayout::keeps_rows() const {
  return std::ranges::all_of(groups, [](const CacheGroup& g) {
    return g.grows() ? g.tokens_per_row == 1 || g.pool_ring >= 0 : g.extent == CacheExtent::kWindow;
  });
}

int64_t CacheLayout::blocks_for_tree(int64_t before, int64_t rows) const {
  int64_t blocks = blocks_for(before + rows);
  for (const CacheGroup& g : groups) {
    if (g.pool_ring < 0) continue;
    const int64_t complete = before / g.tokens_per_row;
    if ((before + rows) / g.tokens_per_row == complete) continue;  // its tokens complete none
    blocks = std::max(blocks, ceil_div(complete + rows, g.rows));
  }
  return blocks;
}

int64_t CacheLayout::slack() const {
  int64_t slack = INT64_MAX;
  for (const CacheGroup& g : groups) {
    if (g.extent == CacheExtent::kWindow) slack = std::min(slack, g.rows - g.window);
    if (g.extent == CacheExtent::kState) slack = 0;
  }
  return slack;
}

std::string CacheLayout::describe(const CacheGroup& g) const {
  std::string text = str_cat(g.name, ": ", g.codec.name, ", ", g.layers.size(),
                             g.layers.size() == 1 ? " layer x " : " layers x ", row_text(g));
  if (!g.grows()) {
    return str_cat(text, " x ", g.rows, " rows = ", g.bytes(), " bytes per sequence");
  }
  if (g.tokens_per_row > 1) text += str_cat(" / ", g.tokens_per_row, " tokens");
  // Padding of pages counts; what is left of a byte does not.
  return str_cat(text, " = ", g.bytes() / block_tokens, " bytes per token, ", block_tokens,
                 " tokens per page");
}

Result<int64_t> cache_bytes(const CacheLayout& layout, int64_t num_blocks, int64_t num_slots) {
  FATHOM_CHECK(num_blocks >= 0 && num_slots >= 0, "negative number of pages");
  int64_t total = 0;
  for (const CacheGroup& g : layout.groups) {
    const auto layer = layer_bytes(g, num_blocks, num_slots);
    const auto all =
        layer ? checked_mul(*layer, static_cast<int64_t>(g.layers.size())) : std::nullopt;
    if (!all || *all > INT64_MAX - total) {
      return invalid_argument(str_cat("a cache of ", num_blocks, " blocks of ", layout.block_tokens,
                                      " tokens and ", num_slots, " slots is too large to address"));
    }
    total += *all;
  }
  return total;
}

std::vector<GroupRows> cache_views(const CacheLayout& layout,
                                   std::byte* base,
                                   int64_t num_blocks,
                                   int64_t num_slots,
                                   bool on_device) {
  std::vector<GroupRows> groups;
  std::byte* at = base;
  for (const CacheGroup& g : layout.groups) {
    GroupRows rows{.views = {}, .num_fields = g.codec.fields.size()};
    const int64_t bytes = layer_bytes(g, num_blocks, num_slots).value_or(0);
    for (size_t l = 0; l < g.layers.size(); ++l) {
      for (size_t f = 0; f < rows.num_fields; ++f) {
        View v = g.codec.view(f, at, g.grows() ? num_blocks : num_slots, g.rows);
        v.on_device = on_device;
        rows.views.push_back(v);
      }
      if (at != nullptr) at += bytes;
    }
    groups.push_back(std::move(rows));
  }
  return groups;
}

std::string CacheLayout::fingerprint() const {
  std::string text = str_cat("block ", block_tokens);
  for (const CacheGroup& g : groups) {
    text += str_cat("; ", g.name, " ", static_cast<int>(g.extent), " ", g.layers.size(), " ",
                    g.tokens_per_row, " ", g.window, " ", g.rows, " ", g.pool_entries, " ",
                    g.codec.name, " ", g.codec.alignment);
    for (const int64_t plane : g.codec.plane_bytes)
      text += str_cat(" ", plane);
    for (const PageField& f : g.codec.fields) {
      text += str_cat(" ", f.name, ":", format_name(f.format), "x", f.width, "@", f.plane, "+",
                      f.offset);
    }
  }
  return text;
}

}  // namespace fathom
