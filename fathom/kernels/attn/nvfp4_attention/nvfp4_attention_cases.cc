#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/kernels/attn/attention_oracle.h"
#include "fathom/kernels/attn/nvfp4_attention/nvfp4_attention.h"
#include "fathom/kernels/conformance/kernel_case.h"

namespace fathom {
namespace {

struct Nvfp4Shape {
  CaseSpec spec;
  std::vector<int64_t> tokens;  ///< of each request
  int64_t n = 2;
  int64_t nk = 0;  ///< heads of k and v; 0: n
  int64_t d = 64;
  int64_t dv = 48;
  Format out = Format::kBf16;
  Fill values = {};
  double q_scale = 1.0;  ///< large: one key gets nearly all the weight
  bool lse = true;
  bool batch = false;  ///< all requests are alike and form the batch

  int64_t kv_heads() const { return nk == 0 ? n : nk; }

  int64_t total() const {
    int64_t sum = 0;
    for (int64_t t : tokens)
      sum += t;
    return sum;
  }
};

/// q or k: codes, block scales, a global scale a head, and what they were made from.
struct Quantised {
  int64_t heads = 0, d = 0;
  Tensor codes = {}, scales = {}, global = {};
  std::shared_ptr<std::vector<float>> exact = std::make_shared<std::vector<float>>();

  /// Row t * heads + n.
  std::vector<double> row(int64_t row) const {
    constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    std::vector<double> out;
    for (int64_t c = 0; c < d; ++c) {
      const auto byte = static_cast<int>(codes[(row * d + c) / 2]);
      const int nibble = c % 2 == 0 ? byte % 16 : byte / 16;
      const double code = (nibble >= 8 ? -1 : 1) * kMagnitudes[nibble % 8];
      out.push_back(code * scales[row * (d / 16) + c / 16] * global[row % heads]);
    }
    return out;
  }

  std::vector<double> exact_row(int64_t row) const {
    const auto begin = exact->begin() + row * d;
    return {begin, begin + d};
  }
};

/// Quantises each head by its own largest magnitude.
Quantised quantised(CaseData& c,
                    int64_t tokens,
                    int64_t heads,
                    int64_t d,
                    const Fill& fill,
                    int64_t rows_per_batch,
                    int64_t gap) {
  Quantised x{.heads = heads, .d = d};
  x.codes = c.input({tokens, heads, d / 2}, Format::kU8, {},
                    {.row_gap = gap, .rows_per_batch = rows_per_batch});
  x.scales = c.input({tokens, heads, d / 16}, Format::kE4m3, {},
                     {.row_gap = gap, .rows_per_batch = rows_per_batch});
  x.global = c.input({heads}, Format::kF32);
  std::vector<float> row(static_cast<size_t>(d));
  std::vector<float> amax(static_cast<size_t>(heads));
  for (int64_t i = 0; i < tokens * heads; ++i) {
    generate_row(fill, i, c.rng(), row);
    for (float& v : row) {
      v *= static_cast<float>(fill.scale * static_cast<double>(1 + i % heads));  // heads differ
      float& most = amax[static_cast<size_t>(i % heads)];
      most = std::max(most, std::fabs(v));
    }
    x.exact->insert(x.exact->end(), row.begin(), row.end());
  }
  for (int64_t n = 0; n < heads; ++n)
    x.global.set(n, double{nvfp4_global_scale(amax[static_cast<size_t>(n)])});
  std::vector<uint8_t> packed(static_cast<size_t>(d / 2));
  std::vector<E4m3> scales(static_cast<size_t>(d / 16));
  for (int64_t i = 0; i < tokens * heads; ++i) {
    const auto global = static_cast<float>(x.global[i % heads]);
    nvfp4_quantize_activations(x.exact->data() + i * d, 1, d, 1.0f / global, packed.data(),
                               scales.data());
    for (int64_t p = 0; p < d / 2; ++p)
      x.codes.set(i * (d / 2) + p, packed[static_cast<size_t>(p)]);
    for (int64_t g = 0; g < d / 16; ++g)
      x.scales.set(i * (d / 16) + g, double{to_float(scales[static_cast<size_t>(g)])});
  }
  return x;
}

struct Nvfp4Tensors {
  Quantised q, k;
  Tensor v, cu_seqlens;
};

/// Row t * N + n of the output.
oracle::AttentionRow exact_row(
    const Nvfp4Shape& s, const Nvfp4Tensors& x, double scale, int64_t row, bool unquantised) {
  const int64_t t = row / s.n;
  const int64_t heads = s.kv_heads();
  const int64_t head = row % s.n / (s.n / heads);
  int64_t begin = 0;
  for (int64_t tokens : s.tokens) {
    if (t < begin + tokens) break;
    begin += tokens;
  }
  const auto of = [&](const Quantised& y, int64_t i) {
    return unquantised ? y.exact_row(i) : y.row(i);
  };
  return oracle::attend(
      of(x.q, row), t - begin + 1, s.dv, scale,
      [&](int64_t j) { return of(x.k, (begin + j) * heads + head); },
      [&](int64_t j) { return x.v.row((begin + j) * heads + head); });
}

/// What codes cost where logits are of variance 1: they move by the errors of both factors, 9.5 %
/// each, root mean square; values are not quantised. Twice what was measured, 4.5e-3.
constexpr Gate kFullPrecision{.diff = 9e-3};

void build_case(const Nvfp4Shape& s, CaseBuilder<Nvfp4QkAttention>& c) {
  const auto B = static_cast<int64_t>(s.tokens.size());
  const int64_t T = s.total();
  const int64_t rows = s.batch ? s.tokens[0] : 0;
  if (s.batch) c.set_batch(B);
  const int64_t gap = s.spec.bench ? 0 : 3;
  Nvfp4Tensors x;
  x.q = quantised(c, T, s.n, s.d, {.dist = s.values.dist, .scale = s.q_scale}, rows, gap);
  x.k = quantised(c, T, s.kv_heads(), s.d, s.values, rows, gap);
  x.v = c.input({T, s.kv_heads(), s.dv}, Format::kBf16, s.values,
                {.row_gap = gap, .rows_per_batch = rows});
  x.cu_seqlens = c.input({B + 1}, Format::kI32);
  double at_token = 0;
  for (int64_t b = 0; b < B; ++b) {
    at_token += static_cast<double>(s.tokens[static_cast<size_t>(b)]);
    x.cu_seqlens.set(b + 1, at_token);
  }
  const Tensor o = c.output({T, s.n, s.dv}, s.out, {.row_gap = gap, .rows_per_batch = rows});
  Tensor lse;
  if (s.lse) lse = c.output({T, s.n}, Format::kF32, {.rows_per_batch = rows});
  // Heads are of sizes 1 .. n: the logits of the first ones are of size 1.
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.d));
  c.bind([=](const Binding& at) {
    const int64_t offsets = s.batch ? at.batch_rows() + 1 : B + 1;
    return Nvfp4QkAttention::Args{.q = at(x.q.codes),
                                  .q_scales = at(x.q.scales),
                                  .q_global = at(x.q.global),
                                  .k = at(x.k.codes),
                                  .k_scales = at(x.k.scales),
                                  .k_global = at(x.k.global),
                                  .v = at(x.v),
                                  .cu_seqlens = slice_rows(at(x.cu_seqlens), 0, offsets),
                                  .o = at(o),
                                  .lse = at(lse),
                                  .scale = scale};
  });
  const auto rows_of = [=](bool unquantised) {
    return std::make_shared<oracle::AttentionRows>(
        [=](int64_t row) { return exact_row(s, x, double{scale}, row, unquantised); });
  };
  const auto exact = rows_of(false);
  c.expect_each(o, gates::attention(Format::kBf16), [=](int64_t row, int64_t col) {
    return (*exact)(row).o[static_cast<size_t>(col)];
  });
  if (s.spec.bench) return;
  if (s.lse) {
    c.expect_each(lse, gates::log_sum_exp(),
                  [=](int64_t row, int64_t col) { return (*exact)(row * s.n + col).lse; });
  }
  if (s.n > 1 || o.numel() < 4096 || s.values.dist != Dist::kNormal || s.q_scale != 1.0) return;
  const auto unquantised = rows_of(true);
  c.expect_full_precision(o, kFullPrecision, [=](int64_t row, int64_t col) {
    return (*unquantised)(row).o[static_cast<size_t>(col)];
  });
}

void add_nvfp4_case(CaseList& list, const Nvfp4Shape& s) {
  add_case<Nvfp4QkAttention>(list, s.spec,
                             [s](CaseBuilder<Nvfp4QkAttention>& c) { build_case(s, c); });
}

}  // namespace

void add_nvfp4_attention_cases(CaseList& list) {
  for (const Format out : {Format::kBf16, Format::kF32}) {
    const std::string name(format_name(out));
    add_nvfp4_case(list, {.spec = {.name = "edges_" + name},
                          .tokens = {0, 1, 2, 3, 63, 64, 65, 0, 127, 128, 129, 150},
                          .out = out});
    add_nvfp4_case(list, {.spec = {.name = "one_head_" + name},
                          .tokens = {40, 90},
                          .n = 1,
                          .d = 192,
                          .dv = 128,
                          .out = out});
    // The widths of the tiles of a GPU, and what lies on both sides of their edges.
    for (const auto& [d, dv] : {std::pair<int64_t, int64_t>{192, 128}, {512, 512}}) {
      add_nvfp4_case(list, {.spec = {.name = str_cat("tile_edges_d", d, "_", name)},
                            .tokens = {0, 1, 63, 64, 65, 0, 127, 128, 129},
                            .nk = 1,
                            .d = d,
                            .dv = dv,
                            .out = out});
    }
  }
  // Weights of more than 512 keys.
  add_nvfp4_case(list,
                 {.spec = {.name = "many_keys"}, .tokens = {3, 530}, .n = 1, .d = 192, .dv = 128});
  add_nvfp4_case(list, {.spec = {.name = "tile_batch"},
                        .tokens = {70, 70, 70},
                        .nk = 1,
                        .d = 192,
                        .dv = 128,
                        .batch = true});
  add_nvfp4_case(list, {.spec = {.name = "no_requests"}, .tokens = {}});
  add_nvfp4_case(list, {.spec = {.name = "no_tokens"}, .tokens = {0, 0}});
  add_nvfp4_case(list, {.spec = {.name = "batch"}, .tokens = {37, 37, 37, 37}, .batch = true});
  add_nvfp4_case(list, {.spec = {.name = "no_lse"}, .tokens = {20}, .lse = false});
  for (const auto& [n, nk] : {std::pair<int64_t, int64_t>{8, 1}, {6, 3}, {1, 1}, {5, 5}}) {
    add_nvfp4_case(
        list, {.spec = {.name = str_cat("n", n, "_nk", nk)}, .tokens = {70, 9}, .n = n, .nk = nk});
  }
  for (const auto& [d, dv] :
       {std::pair<int64_t, int64_t>{16, 1}, {48, 33}, {80, 64}, {192, 128}, {512, 512}}) {
    add_nvfp4_case(
        list,
        {.spec = {.name = str_cat("d", d, "_dv", dv)}, .tokens = {17, 1, 100}, .d = d, .dv = dv});
  }
  add_nvfp4_case(
      list,
      {.spec = {.name = "heavy_tails"}, .tokens = {130}, .values = {.dist = Dist::kHeavyTail}});
  add_nvfp4_case(list,
                 {.spec = {.name = "zeros"}, .tokens = {70}, .values = {.dist = Dist::kZeros}});
  add_nvfp4_case(list, {.spec = {.name = "one_key_takes_all"}, .tokens = {130}, .q_scale = 30});
  const auto timed = [&](std::string_view name, int64_t n, int64_t nk, int64_t d, int64_t dv,
                         int64_t tokens) {
    add_nvfp4_case(list, {.spec = {.name = str_cat(name, "_t", tokens),
                                   .op = "attn_mha",
                                   .bench = true,
                                   .phase = "prefill",
                                   .columns = str_cat("M=", tokens, ";H=", n, ";D=", d)},
                          .tokens = {tokens},
                          .n = n,
                          .nk = nk,
                          .d = d,
                          .dv = dv,
                          .lse = false});
  };
  timed("v4_flash", 64, 1, 512, 512, 512);
  timed("v4_pro", 128, 1, 512, 512, 256);
  timed("r1", 128, 128, 192, 128, 512);
}

}  // namespace fathom
