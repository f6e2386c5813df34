#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/integer/group_int.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/kernels/gemm/product_cases.h"
#include "fathom/kernels/moe/route/route.h"
#include "fathom/kernels/moe/sorted_moe/sorted_moe.h"

namespace fathom {
namespace {

enum class Routing { kRandom, kAllOnOne, kSomeMissing };

/// Where blocks lie.
enum class Blocks {
  kSorted,    ///< by expert, as align_experts has them
  kAnyOrder,  ///< anywhere before num_padded; behind it others, which do not count
};

struct Shape {
  int64_t tokens;
  int64_t top_k;
  int64_t experts;
  int64_t n;
  int64_t k;
  Format weight = Format::kNvfp4;
  WeightLayout layout = WeightLayout::kRows16;
  Format act = Format::kBf16;
  bool second = false;  // one row of x a slot, router weights applied
  int block = 16;
  Routing routing = Routing::kRandom;
  Blocks blocks = Blocks::kSorted;
  int64_t y_gap = 2;         ///< between rows; 0: they begin anywhere on a GPU as well
  Format y = Format::kNone;  ///< kNone: as act
};

std::string name_of(const Shape& s) {
  std::string name = str_cat("t", s.tokens, "_k", s.top_k, "_e", s.experts, "_", s.n, "x", s.k,
                             "_block", s.block, "_", format_name(s.weight));
  if (s.layout == WeightLayout::kRowMajor) name += "_row_major";
  if (s.act != Format::kBf16) str_append(name, str_cat("_act_", format_name(s.act)));
  if (s.y != Format::kNone) str_append(name, str_cat("_to_", format_name(s.y)));
  if (s.second) name += "_weighted";
  if (s.routing == Routing::kAllOnOne) name += "_all_on_one";
  if (s.routing == Routing::kSomeMissing) name += "_some_missing";
  if (s.blocks == Blocks::kAnyOrder) name += "_any_order";
  if (s.y_gap == 0) name += "_packed_y";
  return name;
}

/// Slots sorted by expert with lists, and the operands that hold them.
struct SortedSlots {
  std::vector<int64_t> expert;  // of each slot
  Tensor sorted_ids, block_expert, num_padded;

  SortedSlots(CaseBuilder<SortedMoeGemm>& c, const Shape& s) {
    const int64_t slots = s.tokens * s.top_k;
    std::vector<std::vector<int64_t>> buckets(static_cast<size_t>(s.experts) + 1);
    for (int64_t v = 0; v < slots; ++v) {
      int64_t e = c.rng().next_below(static_cast<uint32_t>(s.experts));
      if (s.routing == Routing::kAllOnOne) e = s.experts - 1;
      if (s.routing == Routing::kSomeMissing && v % 3 == 0) e = -1;
      expert.push_back(e);
      buckets[static_cast<size_t>(e + 1)].push_back(v);
    }
    const int64_t capacity = AlignExperts::capacity(slots, s.experts, s.block);
    sorted_ids = c.input({capacity}, Format::kI32);
    block_expert = c.input({capacity / s.block}, Format::kI32);
    num_padded = c.input({1}, Format::kI32);
    sorted_ids.fill([&](int64_t) { return slots; });
    block_expert.fill([&](int64_t) { return -1; });
    int64_t at = 0;
    for (size_t b = 0; b < buckets.size(); ++b) {
      for (size_t i = 0; i < buckets[b].size(); ++i) {
        sorted_ids.set(at + static_cast<int64_t>(i), static_cast<double>(buckets[b][i]));
      }
      for (size_t i = 0; i < buckets[b].size(); i += static_cast<size_t>(s.block)) {
        block_expert.set(at / s.block, static_cast<double>(b) - 1);
        at += s.block;
      }
    }
    num_padded.set(0, static_cast<double>(at));
    if (s.blocks == Blocks::kAnyOrder) shuffle(c, s.block, at / s.block);
  }

 private:
  /// Changes the order of the first `count` blocks and repeats the first of them behind those.
  void shuffle(CaseBuilder<SortedMoeGemm>& c, int64_t block, int64_t count) {
    const auto swap = [](const Tensor& t, int64_t i, int64_t j) {
      const double value = t[i];
      t.set(i, t[j]);
      t.set(j, value);
    };
    for (int64_t b = count - 1; b > 0; --b) {
      const int64_t other = c.rng().next_below(static_cast<uint32_t>(b + 1));
      swap(block_expert, b, other);
      for (int64_t i = 0; i < block; ++i)
        swap(sorted_ids, b * block + i, other * block + i);
    }
    for (int64_t b = count; b < block_expert.numel(); ++b) {
      block_expert.set(b, block_expert[0]);
      for (int64_t i = 0; i < block; ++i)
        sorted_ids.set(b * block + i, sorted_ids[i]);
    }
  }
};

void add(CaseList& list, const Shape& s, bool bench = false, int64_t ring_bytes = 0) {
  const CaseSpec spec{.name = name_of(s),
                      .op = s.second ? "experts_down" : "experts_gate_up",
                      .bench = bench,
                      .phase = phase_of_case(bench, s.tokens),
                      .columns = str_cat("M=", s.tokens, ";N=", s.n, ";K=", s.k, ";E=", s.experts,
                                         ";topk=", s.top_k),
                      .note = ring_bytes > 0 ? "experts mapped onto a ring" : ""};
  add_case<SortedMoeGemm>(list, spec, [=](CaseBuilder<SortedMoeGemm>& c) {
    const int64_t slots = s.tokens * s.top_k;
    const int64_t x_top_k = s.second ? 1 : s.top_k;
    const SortedSlots routing(c, s);
    const Tensor x = c.input({slots / x_top_k, s.k}, s.act, {}, {.row_gap = 6});
    const CaseWeightSpec w_spec{
        .num_experts = s.experts, .rows = s.n, .cols = s.k, .format = s.weight, .layout = s.layout};
    const Weight w = bench ? c.weight_codes(w_spec, ring_bytes) : c.weight(w_spec);
    Tensor weights;
    if (s.second) weights = c.input({slots}, Format::kF32, {.dist = Dist::kUniform});
    const Format y_format = s.y == Format::kNone ? s.act : s.y;
    const Tensor y = c.output({slots, s.n}, y_format, {.row_gap = s.y_gap});
    c.bind([=](const Binding& at) {
      SortedMoeGemm::Args a{.x = at(x),
                            .w = at(w),
                            .sorted_ids = at(routing.sorted_ids),
                            .block_expert = at(routing.block_expert),
                            .num_padded = at(routing.num_padded),
                            .y = at(y),
                            .block = s.block,
                            .top_k = static_cast<int>(x_top_k)};
      if (weights.present()) a.weights = at(weights);
      return a;
    });
    const auto answer = [=](int64_t v, auto weight_row) {
      const int64_t e = routing.expert[static_cast<size_t>(v)];
      if (e < 0) return 0.0;
      return dot(x.row(v / x_top_k), weight_row(e)) * (s.second ? weights[v] : 1.0);
    };
    c.expect_each(y, gates::gemm(y_format), [=](int64_t v, int64_t n) {
      return answer(v, [&](int64_t e) { return w.row(e * s.n + n); });
    });
    if (bench || slots * s.n < 4096) return;
    c.expect_full_precision(y, gates::full_precision(s.weight), [=](int64_t v, int64_t n) {
      return answer(v, [&](int64_t e) { return w.exact_row(e * s.n + n); });
    });
  });
}

// ---- what the reference's quantised calls add ----

enum class Scales {
  kNone,     ///< unquantised x and w
  kBlock,    ///< block_shape: groups of w, x in groups of the same width
  kChannel,  ///< per_channel_quant: a scale per token, one per output channel
  kTensor,   ///< one scale each, w's of its expert
  kWeight,   ///< int8 weight-only, per channel
};

struct ReferenceShape {
  Shape shape;
  Format x = Format::kE4m3;
  Format w = Format::kE4m3;
  Format y = Format::kBf16;
  Scales scales = Scales::kBlock;
  int64_t group_n = 128;
  int64_t group_k = 128;
  bool bias = false;
  ResultRows rows = ResultRows::kSlots;
  bool quantised = false;  ///< from values that are kept for gate B
};

std::string name_of(const ReferenceShape& s) {
  const char* const scales[] = {"", "_block", "_channel", "_tensor", "_weight_only"};
  std::string name = str_cat(name_of(s.shape), "_x_", format_name(s.x), "_w_", format_name(s.w),
                             scales[static_cast<int>(s.scales)]);
  if (s.scales == Scales::kBlock) str_append(name, str_cat("_", s.group_n, "x", s.group_k));
  if (s.y != Format::kBf16) str_append(name, str_cat("_to_", format_name(s.y)));
  if (s.bias) name += "_bias";
  if (s.rows == ResultRows::kSorted) name += "_sorted";
  if (s.quantised) name += "_quantised";
  return name;
}

/// Random codes, or numbers of a dense format.
Tensor random_codes(CaseData& c, std::vector<int64_t> dims, Format format, int64_t gap) {
  const Tensor t = c.input(std::move(dims), format, {}, {.row_gap = gap});
  if (format == Format::kI8) {
    t.fill([&](int64_t) { return static_cast<int>(c.rng().next_below(256)) - 128; });
  }
  return t;
}

/// The operands of a call as the reference's host entry makes them, and its exact answer.
struct ReferenceCall {
  ReferenceShape s;
  Tensor x, w, x_scales, w_scales, bias, weights;
  int64_t x_top_k, group_n = 0, group_k = 0;
  SortedSlots routing;

  ReferenceCall(CaseBuilder<SortedMoeGemm>& c, const ReferenceShape& shape)
      : s(shape), x_top_k(s.shape.second ? 1 : s.shape.top_k), routing(c, s.shape) {
    const Shape& b = s.shape;
    const int64_t slots = b.tokens * b.top_k;
    const int64_t tokens = slots / x_top_k;
    x = random_codes(c, {tokens, b.k}, s.x, 6);
    w = random_codes(c, {b.experts, b.n, b.k}, s.w, 0);
    const bool is_block = s.scales == Scales::kBlock;
    if (is_block) group_n = s.group_n;
    if (is_block) group_k = s.group_k;
    if (s.scales == Scales::kChannel || s.scales == Scales::kWeight) group_n = 1;
    const Fill scale{.dist = Dist::kUniform, .scale = 0.02, .offset = 0.001};
    const int64_t blocks = is_block ? ceil_div(b.k, group_k) : 1;
    if (s.scales != Scales::kNone) {
      w_scales = c.input({b.experts, group_n == 0 ? 1 : ceil_div(b.n, group_n), blocks},
                         Format::kF32, scale);
    }
    if (s.scales == Scales::kBlock || s.scales == Scales::kChannel) {
      x_scales = c.input({tokens, blocks}, Format::kF32, scale, {.row_gap = 1});
    } else if (s.scales == Scales::kTensor) {
      x_scales = c.input({1, 1}, Format::kF32, scale);
    }
    if (s.quantised) quantise(c);
    if (s.bias) bias = c.input({b.experts, b.n}, s.y, {}, {.row_gap = 4});
    if (b.second) weights = c.input({slots}, Format::kF32, {.dist = Dist::kUniform});
  }

  std::shared_ptr<std::vector<float>> exact_x, exact_w;

  /// Replaces random codes by those of random values: E4M3 in blocks or rows, int8 in rows.
  void quantise(CaseData& c) {
    const Shape& b = s.shape;
    exact_x = random_values(c, x.dim(0), b.k, {});
    exact_w = random_values(c, b.experts * b.n, b.k, {.scale = 1.0 / std::sqrt(double(b.k))});
    quantise_rows(*exact_x, x.dim(0), s.scales == Scales::kBlock ? group_k : b.k, x, x_scales);
    if (s.scales != Scales::kBlock) {
      return quantise_rows(*exact_w, b.experts * b.n, b.k, w, w_scales);
    }
    const int64_t matrix = b.n * b.k;
    std::vector<E4m3> codes(static_cast<size_t>(b.experts * matrix));
    const int64_t blocks = w_scales.numel() / b.experts;
    std::vector<float> scales(static_cast<size_t>(w_scales.numel()));
    for (int64_t e = 0; e < b.experts; ++e) {
      const Status status = fp8_quantize_blocks(
          exact_w->data() + e * matrix, b.n, b.k, Fp8QuantOptions::Rounding::kNone,
          codes.data() + e * matrix, scales.data() + e * blocks);
      FATHOM_CHECK(status.ok(), status.message());
    }
    put_codes(w, codes);
    w_scales.fill([&](int64_t i) { return scales[static_cast<size_t>(i)]; });
  }

  static void quantise_rows(const std::vector<float>& values,
                            int64_t rows,
                            int64_t group,
                            const Tensor& codes,
                            const Tensor& scales) {
    const int64_t k = static_cast<int64_t>(values.size()) / rows;
    std::vector<float> found(static_cast<size_t>(scales.numel()));
    if (codes.format() == Format::kI8) {
      std::vector<int8_t> out(values.size());
      int8_quantize_rows(values.data(), rows, k, out.data(), found.data());
      put_codes(codes, out);
    } else {
      std::vector<E4m3> out(values.size());
      fp8_quantize_groups(values.data(), rows, k, group, kFp8SglangGroup, out.data(), found.data());
      put_codes(codes, out);
    }
    scales.fill([&](int64_t i) { return found[static_cast<size_t>(i)]; });
  }

  double exact_answer(int64_t v, int64_t n) const {
    const int64_t e = routing.expert[static_cast<size_t>(v)];
    return dot_rows(*exact_x, v / x_top_k, *exact_w, e * s.shape.n + n, s.shape.k);
  }

  double x_at(int64_t t, int64_t k) const {
    const double code = x.at(t, k);
    if (!x_scales.present()) return code;
    const int64_t row = x_scales.dim(0) == 1 ? 0 : t;
    return code * x_scales.at(row, x_scales.dim(1) == 1 ? 0 : k / group_k);
  }

  double w_at(int64_t e, int64_t n, int64_t k) const {
    const double code = w.at(e, n, k);
    if (!w_scales.present()) return code;
    return code * w_scales.at(e, group_n == 0 ? 0 : n / group_n, group_k == 0 ? 0 : k / group_k);
  }

  double answer(int64_t v, int64_t n) const {
    const int64_t e = routing.expert[static_cast<size_t>(v)];
    if (e < 0) return 0.0;
    double sum = 0;
    for (int64_t k = 0; k < s.shape.k; ++k)
      sum += x_at(v / x_top_k, k) * w_at(e, n, k);
    if (bias.present()) sum += bias.at(e, n);
    return sum * (weights.present() ? weights[v] : 1.0);
  }
};

void add_reference(CaseList& list, const ReferenceShape& s) {
  add_case<SortedMoeGemm>(
      list, {.name = name_of(s), .op = "experts"}, [=](CaseBuilder<SortedMoeGemm>& c) {
        const auto call = std::make_shared<ReferenceCall>(c, s);
        const int64_t slots = s.shape.tokens * s.shape.top_k;
        const bool sorted = s.rows == ResultRows::kSorted;
        const int64_t rows = sorted ? call->routing.sorted_ids.numel() : slots;
        const Tensor y = c.output({rows, s.shape.n}, s.y, {.row_gap = s.shape.y_gap});
        c.bind([=](const Binding& at) {
          SortedMoeGemm::Args a{.x = at(call->x),
                                .w = QuantView::dense(at(call->w)),
                                .sorted_ids = at(call->routing.sorted_ids),
                                .block_expert = at(call->routing.block_expert),
                                .num_padded = at(call->routing.num_padded),
                                .y = at(y),
                                .block = s.shape.block,
                                .top_k = static_cast<int>(call->x_top_k),
                                .x_scales = at(call->x_scales),
                                .w_scales = at(call->w_scales),
                                .bias = at(call->bias),
                                .group_n = call->group_n,
                                .group_k = call->group_k,
                                .rows = s.rows};
          if (call->weights.present()) a.weights = at(call->weights);
          return a;
        });
        c.expect_each(y, gates::gemm(s.y), [=](int64_t row, int64_t n) {
          if (!sorted) return call->answer(row, n);
          const auto v = static_cast<int64_t>(call->routing.sorted_ids[row]);
          const bool written = v < slots && double(row) < call->routing.num_padded[0];
          return written ? call->answer(v, n) : std::numeric_limits<double>::quiet_NaN();
        });
        if (!s.quantised) return;
        // Both operands are rounded once.
        Gate gate = gates::full_precision(Format::kFp8Block);
        gate.diff *= 2;
        c.expect_full_precision(y, gate,
                                [=](int64_t v, int64_t n) { return call->exact_answer(v, n); });
      });
}

void add_reference_cases(CaseList& list) {
  const Shape first{11, 3, 5, 48, 272};
  Shape second = first;
  second.second = true;
  Shape missing = first;
  missing.routing = Routing::kSomeMissing;
  for (Format f : {Format::kE4m3, Format::kI8}) {
    for (const Shape& shape : {first, second, missing}) {
      add_reference(list, {.shape = shape, .x = f, .w = f});
      add_reference(list, {.shape = shape, .x = f, .w = f, .scales = Scales::kChannel});
      add_reference(list, {.shape = shape, .x = f, .w = f, .scales = Scales::kTensor});
    }
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 64}, {16, 256}, {1, 128}, {128, 96}})
      add_reference(list, {.shape = first, .x = f, .w = f, .group_n = n, .group_k = k});
    for (int64_t k : {1, 2, 127, 128, 129, 511}) {
      Shape odd = first;
      odd.k = k;
      odd.n = 33;
      add_reference(list, {.shape = odd, .x = f, .w = f});
      add_reference(list, {.shape = odd, .x = f, .w = f, .scales = Scales::kChannel});
    }
    for (Format y : {Format::kF32, Format::kF16}) {
      add_reference(list, {.shape = second, .x = f, .w = f, .y = y, .bias = true});
    }
    for (int64_t t : {0, 1, 2, 3, 300}) {
      Shape some = first;
      some.tokens = t;
      add_reference(list,
                    {.shape = some, .x = f, .w = f, .scales = Scales::kChannel, .bias = true});
    }
  }
  for (Format x : {Format::kBf16, Format::kF16, Format::kF32}) {
    const Format y = x;
    add_reference(list,
                  {.shape = first, .x = x, .w = Format::kI8, .y = y, .scales = Scales::kWeight});
    add_reference(list, {.shape = second, .x = x, .w = x, .y = y, .scales = Scales::kNone});
    add_reference(list,
                  {.shape = second, .x = x, .w = x, .y = y, .scales = Scales::kNone, .bias = true});
  }
  Shape many = first;
  many.tokens = 40;
  add_reference(list, {.shape = many, .quantised = true});
  add_reference(list, {.shape = many, .scales = Scales::kChannel, .quantised = true});
  add_reference(list, {.shape = many,
                       .x = Format::kI8,
                       .w = Format::kI8,
                       .scales = Scales::kChannel,
                       .quantised = true});
  add_reference(list, {.shape = missing, .rows = ResultRows::kSorted});
  add_reference(list, {.shape = second,
                       .x = Format::kBf16,
                       .w = Format::kBf16,
                       .scales = Scales::kNone,
                       .rows = ResultRows::kSorted});
}

/// Enough rows an expert for tiles on a GPU; rows of y at multiples of two bytes and of four;
/// blocks in any order.
void add_tile_cases(CaseList& list) {
  for (Format f : {Format::kNvfp4, Format::kBf16, Format::kFp8Block}) {
    Shape s{33, 3, 4, 33, 320, f};
    s.routing = Routing::kSomeMissing;
    s.blocks = Blocks::kAnyOrder;
    s.y_gap = 0;
    add(list, s);
    s.n = 34;
    s.second = true;
    s.block = 4;
    add(list, s);
    s = {90, 2, 2, 136, 192, f};
    s.second = true;
    s.blocks = Blocks::kAnyOrder;
    add(list, s);
    s.experts = 1;
    s.tokens = 130;
    s.n = 33;
    s.y_gap = 0;
    add(list, s);
    // Few rows an expert.
    s = {9, 2, 5, 33, 128, f};
    s.second = true;
    s.blocks = Blocks::kAnyOrder;
    s.y_gap = 0;
    add(list, s);
  }
  Shape codes{33, 3, 4, 33, 272};
  codes.second = true;
  codes.blocks = Blocks::kAnyOrder;
  codes.y_gap = 0;
  add_reference(list, {.shape = codes});
  add_reference(list, {.shape = codes, .bias = true, .rows = ResultRows::kSorted});
}

}  // namespace

void add_sorted_moe_cases(CaseList& list) {
  add_reference_cases(list);
  add_tile_cases(list);
  for (int64_t t : {0, 1, 2, 3, 7, 17}) {
    add(list, {t, 2, 4, 32, 64});
    add(list, {t, 2, 4, 32, 64, Format::kBf16});
    add(list, {t, 2, 4, 32, 128, Format::kFp8Block});
  }
  for (Format f : {Format::kNvfp4, Format::kBf16, Format::kFp8Block, Format::kFp8BlockUe8m0}) {
    const Shape first{11, 3, 5, 48, 208, f};
    Shape s = first;
    s.second = true;
    add(list, s);
    s = first;
    s.routing = Routing::kSomeMissing;
    add(list, s);
    s.routing = Routing::kAllOnOne;
    add(list, s);
    s = first;
    s.layout = WeightLayout::kRowMajor;
    s.block = 4;
    add(list, s);
    s = first;
    s.act = Format::kF32;
    s.second = true;
    add(list, s);
    // More rows than a chunk of scratch memory holds, and enough outputs for gate B.
    s = {300, 2, 3, 16, 128, f};
    s.block = 64;
    add(list, s);
    // Tiles of many rows, and results of four bytes of sums over many k.
    for (Format y : {Format::kF32, Format::kF16}) {
      s = {70, 2, 3, 72, 2176, f};
      s.y = y;
      s.second = true;
      add(list, s);
    }
  }
  add(list, {5, 2, 3, 33, 100, Format::kF32, WeightLayout::kRowMajor, Format::kF32});
  add(list, {5, 2, 3, 33, 100, Format::kF32, WeightLayout::kRowMajor});
  add(list, {9, 1, 1, 16, 64, Format::kNvfp4, WeightLayout::kRows16, Format::kBf16, false, 1});

  // R1's experts. The bf16 ones are the reference suite's; a host rarely holds 22 GB of them.
  constexpr int64_t kRing = 1 << 30;
  for (int64_t t : {1, 8, 128}) {
    add(list, {t, 8, 256, 4096, 7168}, true, kRing);
    Shape down{t, 8, 256, 7168, 2048};
    down.second = true;
    add(list, down, true, kRing);
  }
  add(list, {1, 8, 256, 4096, 7168, Format::kBf16}, true, kRing);
  for (const ReferencePoint& p : reference_points()) {
    const auto reference = [&](const char* op, int64_t n, int64_t k, bool second) {
      Shape s{p.tokens(), 8, 256, n, k, Format::kBf16};
      s.second = second;
      s.block = p.tokens() > 128 ? 128 : 16;
      const double flops = 2.0 * static_cast<double>(8 * s.tokens * n * k);
      add_reference_case(list, p, {.op = op, .flops = flops},
                         [&](CaseList& one) { add(one, s, true, kRing); });
    };
    reference("experts_gate_up", 4096, 7168, false);
    reference("experts_down", 7168, 2048, true);
  }
}

}  // namespace fathom
