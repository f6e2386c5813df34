// The bytes that DeepSeek-V3.2 and V4 keep of a sequence, by format of the cache.
#include <cmath>
#include <gtest/gtest.h>
#include <string>

#include "fathom/models/config/presets.h"
#include "fathom/models/registry.h"

namespace fathom {
namespace {

CacheLayout layout_of(std::string_view preset, Format rows, Format keys) {
  ModelOptions options;
  options.kv_format = rows;
  options.indexer_format = keys;
  options.draft = false;  // the published figures are those of the main model
  return create_model(find_preset(preset).value().config, options).value()->cache_layout();
}

bool is_index(const CacheGroup& group) {
  return group.name == "index";
}

bool is_state(const CacheGroup& group) {
  return group.name.ends_with("state");
}

double in_layers(const CacheGroup& group, int64_t rows) {
  return static_cast<double>(static_cast<int64_t>(group.layers.size()) * rows *
                             group.codec.row_bytes());
}

// Of the groups that `belongs` says, each row once: without the padding of pages and the slack of
// rings.
template <class F>
double bytes_per_token(const CacheLayout& layout, F&& belongs) {
  double sum = 0;
  for (const CacheGroup& g : layout.groups) {
    if (g.grows() && belongs(g)) sum += in_layers(g, 1) / static_cast<double>(g.tokens_per_row);
  }
  return sum;
}

template <class F>
double bytes_per_sequence(const CacheLayout& layout, F&& belongs) {
  double sum = 0;
  for (const CacheGroup& g : layout.groups)
    if (!g.grows() && belongs(g)) sum += in_layers(g, g.window);
  return sum;
}

// To three digits, as figures are published: "16.1", "3.31".
std::string digits(double value) {
  std::string out(16, ' ');
  const int decimals = value < 10 ? 2 : value < 100 ? 1 : 0;
  out.resize(static_cast<size_t>(std::snprintf(out.data(), out.size(), "%.*f", decimals, value)));
  return out;
}

struct RowFigures {
  const char* preset;
  Format rows;
  double per_token;
  const char* megabytes_4k;
  const char* megabytes_128k;
  const char* gigabytes_1m;
};

// Rows of CSA and HCA layers at 584 (FP8), 384 (NVFP4) and 1024 bytes, and the windows of 128.
constexpr RowFigures kRows[] = {
    {"deepseek-v4-flash", Format::kE4m3, 3157.25, "16.1", "417", "3.31"},
    {"deepseek-v4-flash", Format::kNvfp4, 2076, "10.6", "274", "2.18"},
    {"deepseek-v4-flash", Format::kBf16, 5536, "28.3", "731", "5.81"},
    {"deepseek-v4-pro", Format::kE4m3, 4521.4375, "23.1", "597", "4.75"},
    {"deepseek-v4-pro", Format::kNvfp4, 2973, "15.2", "393", "3.12"},
    {"deepseek-v4-pro", Format::kBf16, 7928, "40.5", "1047", "8.32"},
};

TEST(PresetMemory, RowsOfV4AreThePublishedBytes) {
  const auto rows = [](const CacheGroup& g) { return !is_index(g) && !is_state(g); };
  for (const RowFigures& f : kRows) {
    const CacheLayout layout = layout_of(f.preset, f.rows, Format::kMxfp4);
    const std::string name = str_cat(f.preset, " ", format_name(f.rows));
    const double token = bytes_per_token(layout, rows);
    const double sequence = bytes_per_sequence(layout, rows);

    EXPECT_EQ(token, f.per_token) << name;
    EXPECT_EQ(digits((sequence + token * 4096) * 1e-6), f.megabytes_4k) << name;
    EXPECT_EQ(digits((sequence + token * 131072) * 1e-6), f.megabytes_128k) << name;
    EXPECT_EQ(digits((sequence + token * 1048576) * 1e-9), f.gigabytes_1m) << name;
  }
}

struct KeyFigures {
  const char* preset;
  Format keys;
  double per_token;
  double megabytes_128k;
  double megabytes_1m;
};

// Keys of the indexer in CSA layers: 68 bytes (MXFP4) or 132 (FP8) for 4 tokens.
constexpr KeyFigures kKeys[] = {
    {"deepseek-v4-flash", Format::kMxfp4, 357, 46.8, 374},
    {"deepseek-v4-flash", Format::kE4m3, 693, 90.8, 727},
    {"deepseek-v4-pro", Format::kMxfp4, 510, 66.8, 535},
    {"deepseek-v4-pro", Format::kE4m3, 990, 130, 1038},
};

TEST(PresetMemory, KeysOfTheIndexerOfV4AreThePublishedBytes) {
  for (const KeyFigures& f : kKeys) {
    const CacheLayout layout = layout_of(f.preset, Format::kBf16, f.keys);
    const double token = bytes_per_token(layout, is_index);
    const std::string name = str_cat(f.preset, " ", format_name(f.keys));

    EXPECT_EQ(token, f.per_token) << name;
    EXPECT_NEAR(token * 131072 * 1e-6, f.megabytes_128k, 0.5 * 0.1 + 0.2) << name;
    EXPECT_NEAR(token * 1048576 * 1e-6, f.megabytes_1m, 0.5) << name;
  }
}

// Windows of 128 rows and the state of compressors, whatever the context is.
TEST(PresetMemory, WhatV4KeepsOfASequenceOfAnyLengthIsThePublishedBytes) {
  const auto windows = [](const CacheGroup& g) { return g.name == "window"; };
  const CacheLayout flash = layout_of("deepseek-v4-flash", Format::kE4m3, Format::kMxfp4);
  const CacheLayout pro = layout_of("deepseek-v4-pro", Format::kE4m3, Format::kMxfp4);

  EXPECT_EQ(bytes_per_sequence(flash, windows), 43.0 * 74752);
  EXPECT_EQ(bytes_per_sequence(pro, windows), 61.0 * 74752);
  EXPECT_EQ(bytes_per_sequence(flash, is_state), (21 * 80 + 20 * 512) * 1024.0);
  EXPECT_EQ(bytes_per_sequence(pro, is_state), (30 * 80 + 31 * 512) * 1024.0);
}

// Pages of FP8 rows are padded to whole rows of 576 bytes: 64 rows take 37,440, 2 take 1,728.
TEST(PresetMemory, PagesOfV4ArePadded) {
  const CacheLayout layout = layout_of("deepseek-v4-flash", Format::kE4m3, Format::kMxfp4);
  int met = 0;
  for (const CacheGroup& g : layout.groups) {
    if (g.name != "csa" && g.name != "hca" && g.name != "index") continue;
    ++met;
    EXPECT_EQ(g.codec.page_bytes(g.rows), g.name == "csa"   ? 37'440
                                          : g.name == "hca" ? 1'728
                                                            : 4'352);
  }
  EXPECT_EQ(met, 3);
}

// A latent of 576 bf16 and a key of 132 bytes a layer; the draft layer has both as well.
TEST(PresetMemory, V32KeepsALatentAndAKey) {
  const CacheLayout layout = layout_of("deepseek-v3.2", Format::kBf16, Format::kE4m3);

  EXPECT_EQ(bytes_per_token(layout, is_index), 8052);
  EXPECT_EQ(bytes_per_token(layout, [](const CacheGroup& g) { return !is_index(g); }), 70272);
  EXPECT_FALSE(layout.has_slots());
}

}  // namespace
}  // namespace fathom
