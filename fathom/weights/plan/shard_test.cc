// What ranks hold of a layer of the V2 and V3 family: put together it is the whole, and products
// over the parts add up to the product of the whole.
#include "fathom/weights/plan/shard.h"

#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>

#include "fathom/formats/integer/group_int.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/weights/load/absorb.h"
#include "fathom/weights/load/checkpoint_jobs.h"
#include "fathom/weights/loader.h"
#include "tests/support/fake_sink.h"
#include "tests/support/test_checkpoint.h"

namespace fathom {
namespace {

using testing::HasSubstr;

constexpr int64_t kHidden = 128, kVocab = 64, kHeads = 4, kNope = 128, kRotary = 128, kValue = 128;
constexpr int64_t kQuery = kNope + kRotary, kLatentQ = 128, kLatent = 128, kExperts = 4;
constexpr int64_t kDense = 512, kExpertWidth = 512;

SymbolTable sizes() {
  return symbols({{"H", kHidden},
                  {"V", kVocab},
                  {"Nh", kHeads},
                  {"Dn", kNope},
                  {"Dr", kRotary},
                  {"Dq", kQuery},
                  {"Dv", kValue},
                  {"Lq", kLatentQ},
                  {"Lkv", kLatent},
                  {"Id", kDense},
                  {"I", kExpertWidth},
                  {"Ns", 1},
                  {"E", kExperts}});
}

// Row-major, in float64.
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<double> v;

  double at(int64_t r, int64_t c) const { return v[static_cast<size_t>(r * cols + c)]; }
};

// A stored matrix as the checkpoint defines it.
Matrix stored(const Checkpoint& checkpoint, const std::string& name) {
  const StoredLinear s = describe_linear(checkpoint, name).value();
  const auto read = [&](const TensorRef* ref) {
    std::vector<std::byte> bytes(ref == nullptr ? 0 : static_cast<size_t>(ref->entry.bytes()));
    if (ref != nullptr) FATHOM_CHECK(checkpoint.read(*ref, bytes).ok());
    return bytes;
  };
  const auto values = read(s.weight);
  auto scales = read(s.scale);
  const auto global = read(s.global_scale);
  RowMajorMatrix m{.format = s.format, .n = s.n, .k = s.k, .values = values.data()};
  if (s.format == Format::kFp8Tensor) {  // one for all rows
    m.format = Format::kFp8Channel;
    std::vector<std::byte> each;
    for (int64_t i = 0; i < s.n; ++i)
      each.insert(each.end(), scales.begin(), scales.end());
    scales = each;
  }
  std::vector<float> wide(scales.size() / 2);
  if (s.format == Format::kW4Fp8) {  // stored in bf16
    for (size_t i = 0; i < wide.size(); ++i) {
      Bf16 value{};
      std::memcpy(&value, scales.data() + 2 * i, 2);
      wide[i] = to_float(value);
    }
    m.scales = wide.data();
  } else {
    m.scales = scales.data();
  }
  if (!global.empty()) std::memcpy(&m.global, global.data(), 4);
  Matrix out{s.n, s.k, {}};
  std::vector<float> row(static_cast<size_t>(s.k));
  for (int64_t r = 0; r < s.n; ++r) {
    if (s.format == Format::kW4Fp8) {
      const auto* codes = reinterpret_cast<const uint8_t*>(values.data()) + r * s.k / 2;
      for (int64_t c = 0; c < s.k; ++c) {
        const int code = c % 2 == 0 ? codes[c / 2] & 15 : codes[c / 2] >> 4;
        row[static_cast<size_t>(c)] = static_cast<float>(code < 8 ? code : code - 16) *
                                      wide[static_cast<size_t>((r * s.k + c) / 128)];
      }
    } else {
      decode_row_major_row(m, r, row);
    }
    out.v.insert(out.v.end(), row.begin(), row.end());
  }
  return out;
}

struct Layer {
  View embed, norm;
  LinearWeight head, q_b, kv_b, w_kc, w_vc, o, router, down, experts_down, shared_down;
  RowsWeight q_kv_a, gate_up, experts, shared;
};

struct Rank {
  std::unique_ptr<WeightPlan> plan;
  std::vector<std::byte> store;
  std::unique_ptr<Layer> w = std::make_unique<Layer>();  // whose address the plan knows
};

bool only_stacks(Format format) {
  return format == Format::kW4Fp8;
}

void declare(WeightPlan& plan, Format format, Layer& w) {
  using enum WeightRole;
  const auto done = [](const Status& s) { FATHOM_CHECK(s.ok(), s.message()); };
  done(plan.table("embed.weight", "V,H", kEmbedding, &w.embed));
  done(plan.vector("norm.weight", "H", kNorm, &w.norm));
  done(plan.matrix("router.weight", "E,H", kRouter, &w.router));
  if (!only_stacks(format)) {
    done(plan.matrix("head.weight", "V,H", kHead, &w.head));
    done(plan.rows({"q_a.weight", "Lq,H"}, {"kv_a.weight", "Lkv+Dr,H"}, "Lq+Lkv+Dr,H", kAttention,
                   &w.q_kv_a));
    done(plan.matrix("q_b.weight", "Nh*Dq,Lq", kAttention, &w.q_b));
    done(plan.matrix("kv_b.weight", "Nh*(Dn+Dv),Lkv", kAttention, &w.kv_b));
    done(plan.absorbed(kNope, kValue, Format::kF32, &w.w_kc, &w.w_vc));
    done(plan.matrix("o.weight", "H,Nh*Dv", kOutput, &w.o));
    done(plan.rows({"gate.weight", "Id,H"}, {"up.weight", "Id,H"}, "2*Id,H", kMlp, &w.gate_up));
    done(plan.matrix("down.weight", "H,Id", kMlp, &w.down));
    done(plan.rows({"s.gate.weight", "Ns*I,H"}, {"s.up.weight", "Ns*I,H"}, "2*Ns*I,H",
                   kSharedExpert, &w.shared));
    done(plan.matrix("s.down.weight", "H,Ns*I", kSharedExpert, &w.shared_down));
  }
  done(plan.stack_rows({"e.{}.gate.weight", "I,H"}, {"e.{}.up.weight", "I,H"}, kExperts, "E,2*I,H",
                       "E,I,H", kExpert, &w.experts));
  done(plan.stack({{"e.{}.down.weight", "H,I"}}, kExperts, "E,H,I", kExpert, &w.experts_down));
}

void write(TestCheckpoint& files, Format format) {
  files.matrix("embed.weight", kVocab, kHidden, Format::kBf16);
  files.vector("norm.weight", std::vector<float>(kHidden, 1.5f), Format::kBf16);
  files.matrix("router.weight", kExperts, kHidden, Format::kBf16);
  const auto add = [&](const std::string& name, int64_t n, int64_t k) {
    files.stored(name, n, k, format);
  };
  if (!only_stacks(format)) {
    files.matrix("head.weight", kVocab, kHidden, Format::kBf16);
    add("q_a.weight", kLatentQ, kHidden);
    add("kv_a.weight", kLatent + kRotary, kHidden);
    add("q_b.weight", kHeads * kQuery, kLatentQ);
    add("kv_b.weight", kHeads * (kNope + kValue), kLatent);
    add("o.weight", kHidden, kHeads * kValue);
    for (const char* p : {"", "s."}) {
      add(str_cat(p, "gate.weight"), kDense, kHidden);
      add(str_cat(p, "up.weight"), kDense, kHidden);
      add(str_cat(p, "down.weight"), kHidden, kDense);
    }
  }
  for (int e = 0; e < kExperts; ++e) {
    add(str_cat("e.", e, ".gate.weight"), kExpertWidth, kHidden);
    add(str_cat("e.", e, ".up.weight"), kExpertWidth, kHidden);
    add(str_cat("e.", e, ".down.weight"), kHidden, kExpertWidth);
  }
}

Rank load_rank(const Checkpoint& checkpoint, Format format, const Placement& placement) {
  Rank out;
  out.plan = std::make_unique<WeightPlan>(sizes(), tensors_of(checkpoint), placement);
  declare(*out.plan, format, *out.w);
  const auto report = verify_tensors(*out.plan, checkpoint, 0);
  FATHOM_CHECK(report.ok() && report->surplus.empty(), "tensors of other ranks are no surplus");
  ThreadPool pool(2, PinThreads::kNo);
  FakeSink sink(out.plan->total_bytes(), 1 << 16);
  const Status filled = fill_store(*out.plan, checkpoint_source(checkpoint), sink, pool, {});
  FATHOM_CHECK(filled.ok(), filled.message());
  out.store = std::move(sink.store);
  return out;
}

// A matrix in int4 as it lies in memory.
Matrix w4_matrix(const std::byte* values, const std::byte* scales, int64_t n, int64_t k) {
  std::vector<float> numbers(static_cast<size_t>(n * k));
  w4_fp8_dequantize(reinterpret_cast<const uint8_t*>(values),
                    reinterpret_cast<const float*>(scales), n, k, numbers.data());
  return {n, k, {numbers.begin(), numbers.end()}};
}

// Matrix `e` of a weight of a rank.
Matrix held(const Rank& rank, const LinearWeight& w, int64_t e = 0) {
  for (const WeightItem& item : rank.plan->items()) {
    if (item.linear_out != &w) continue;
    WeightItem one = item;
    const int64_t scales =
        item.num_scales() * (item.num_scales() > 0 ? element_bytes(item.scale_type()) : 0);
    one.e = 1;
    one.values_offset += e * (item.value_bytes() / item.e);
    if (item.scales_offset >= 0) one.scales_offset += e * (scales / item.e);
    if (item.global_offset >= 0) one.global_offset += e * (item.num_globals() / item.e) * 4;
    if (item.format == Format::kW4Fp8) {
      return w4_matrix(rank.store.data() + one.values_offset, rank.store.data() + one.scales_offset,
                       item.n, item.k);
    }
    const HostMatrix m{&one, rank.store.data() + one.values_offset};
    Matrix out{item.n, item.k, {}};
    std::vector<float> row(static_cast<size_t>(item.k));
    for (int64_t r = 0; r < item.n; ++r) {
      decode_row(m, r, row);
      out.v.insert(out.v.end(), row.begin(), row.end());
    }
    return out;
  }
  FATHOM_CHECK(false, "no such weight");
  return {};
}

Matrix rows_of(const Matrix& m, int64_t begin, int64_t count) {
  return {
      count, m.cols,
      std::vector<double>(m.v.begin() + begin * m.cols, m.v.begin() + (begin + count) * m.cols)};
}

// A part of [first; second] that a rank holds, joined or not.
Matrix part_of(const Rank& rank, const RowsWeight& w, int part, int64_t e = 0) {
  if (w.num_parts == 2) return held(rank, w.parts[part], e);
  const Matrix both = held(rank, w.parts[0], e);
  return rows_of(both, part * (both.rows / 2), both.rows / 2);
}

Matrix below(const std::vector<Matrix>& parts) {
  Matrix out{0, parts[0].cols, {}};
  for (const Matrix& p : parts) {
    out.rows += p.rows;
    out.v.insert(out.v.end(), p.v.begin(), p.v.end());
  }
  return out;
}

Matrix beside(const std::vector<Matrix>& parts) {
  Matrix out{parts[0].rows, 0, {}};
  for (const Matrix& p : parts)
    out.cols += p.cols;
  for (int64_t r = 0; r < out.rows; ++r) {
    for (const Matrix& p : parts)
      out.v.insert(out.v.end(), p.v.begin() + r * p.cols, p.v.begin() + (r + 1) * p.cols);
  }
  return out;
}

std::vector<double> times(const Matrix& w, const std::vector<double>& x) {
  std::vector<double> y(static_cast<size_t>(w.rows), 0.0);
  for (int64_t r = 0; r < w.rows; ++r) {
    for (int64_t c = 0; c < w.cols; ++c)
      y[static_cast<size_t>(r)] += w.at(r, c) * x[static_cast<size_t>(c)];
  }
  return y;
}

// down (silu(gate x) * up x)
std::vector<double> mlp(const Matrix& gate,
                        const Matrix& up,
                        const Matrix& down,
                        const std::vector<double>& x) {
  std::vector<double> a = times(gate, x);
  const std::vector<double> u = times(up, x);
  for (size_t i = 0; i < a.size(); ++i)
    a[i] = a[i] / (1.0 + std::exp(-a[i])) * u[i];
  return times(down, a);
}

void add(std::vector<double>& sum, const std::vector<double>& y) {
  for (size_t i = 0; i < y.size(); ++i)
    sum[i] += y[i];
}

void expect_close(const std::vector<double>& a, const std::vector<double>& b, const char* what) {
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  EXPECT_LE(std::sqrt(error), 1e-13 * std::sqrt(size)) << what;
  EXPECT_GT(size, 0.0) << what;
}

struct ShardCase {
  Format format;
  DeviceKind device;
};

class Shards : public testing::TestWithParam<ShardCase> {
 protected:
  Shards() {
    write(files_, GetParam().format);
    checkpoint_ = std::make_unique<Checkpoint>(files_.open());
    for (int i = 0; i < kHidden; ++i)
      x_.push_back(std::sin(static_cast<double>(i)));
  }

  std::vector<Rank> ranks(int count, ExpertShards experts = ExpertShards::kWidth) const {
    std::vector<Rank> out;
    for (int rank = 0; rank < count; ++rank) {
      out.push_back(load_rank(*checkpoint_, GetParam().format,
                              {.device = GetParam().device,
                               .shard = {.rank = rank, .count = count, .experts = experts}}));
    }
    return out;
  }

  Matrix whole(const std::string& name) const { return stored(*checkpoint_, name); }

  TestCheckpoint files_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<double> x_;
};

TEST_P(Shards, PutTogetherAreTheWhole) {
  if (only_stacks(GetParam().format)) return;
  for (const int count : {1, 2, 4}) {
    const std::vector<Rank> all = ranks(count);
    const auto each = [&](auto&& get) {
      std::vector<Matrix> out;
      for (const Rank& rank : all)
        out.push_back(get(rank));
      return out;
    };
    EXPECT_EQ(below(each([](const Rank& r) { return held(r, r.w->head); })).v,
              whole("head.weight").v);
    EXPECT_EQ(below(each([](const Rank& r) { return held(r, r.w->q_b); })).v,
              whole("q_b.weight").v);
    EXPECT_EQ(below(each([](const Rank& r) { return held(r, r.w->kv_b); })).v,
              whole("kv_b.weight").v);
    EXPECT_EQ(beside(each([](const Rank& r) { return held(r, r.w->o); })).v, whole("o.weight").v);
    EXPECT_EQ(below(each([](const Rank& r) { return part_of(r, r.w->gate_up, 0); })).v,
              whole("gate.weight").v);
    EXPECT_EQ(below(each([](const Rank& r) { return part_of(r, r.w->gate_up, 1); })).v,
              whole("up.weight").v);
    EXPECT_EQ(beside(each([](const Rank& r) { return held(r, r.w->down); })).v,
              whole("down.weight").v);
    EXPECT_EQ(below(each([](const Rank& r) { return part_of(r, r.w->shared, 1); })).v,
              whole("s.up.weight").v);
    EXPECT_EQ(beside(each([](const Rank& r) { return held(r, r.w->shared_down); })).v,
              whole("s.down.weight").v);
    for (const Rank& r : all) {  // every rank has these
      const Matrix a = r.w->q_kv_a.num_parts == 1
                           ? held(r, r.w->q_kv_a.parts[0])
                           : below({held(r, r.w->q_kv_a.parts[0]), held(r, r.w->q_kv_a.parts[1])});
      EXPECT_EQ(a.v, below({whole("q_a.weight"), whole("kv_a.weight")}).v);
      EXPECT_EQ(held(r, r.w->router).v, whole("router.weight").v);
    }
    // Of each head the key rows, transposed, and the value rows.
    const Matrix kv_b = whole("kv_b.weight");
    for (int64_t h = 0; h < kHeads; ++h) {
      const Rank& r = all[static_cast<size_t>(h * count / kHeads)];
      const int64_t local = h % (kHeads / count);
      const auto stored_as = [&](double x) {  // exact but where kv_b is bf16 or f32 itself
        return static_cast<double>(static_cast<float>(x));
      };
      const Matrix keys = held(r, r.w->w_kc, local);
      const Matrix values = held(r, r.w->w_vc, local);
      for (int64_t l = 0; l < kLatent; l += 7) {
        EXPECT_EQ(keys.at(l, 3), stored_as(kv_b.at(h * (kNope + kValue) + 3, l)));
        EXPECT_EQ(values.at(5, l), stored_as(kv_b.at(h * (kNope + kValue) + kNope + 5, l)));
      }
    }
  }
}

TEST_P(Shards, ProductsAddUpToThoseOfTheWhole) {
  for (const int count : {2, 4}) {
    for (const ExpertShards experts : {ExpertShards::kWidth, ExpertShards::kNumber}) {
      const std::vector<Rank> all = ranks(count, experts);
      std::vector<double> routed(kHidden, 0.0);
      std::vector<double> dense(kHidden, 0.0);
      for (const Rank& r : all) {
        const int64_t num = experts == ExpertShards::kNumber ? kExperts / count : kExperts;
        for (int64_t e = 0; e < num; ++e) {
          add(routed, mlp(part_of(r, r.w->experts, 0, e), part_of(r, r.w->experts, 1, e),
                          held(r, r.w->experts_down, e), x_));
        }
        if (only_stacks(GetParam().format)) continue;
        add(dense,
            mlp(part_of(r, r.w->gate_up, 0), part_of(r, r.w->gate_up, 1), held(r, r.w->down), x_));
      }
      std::vector<double> expected(kHidden, 0.0);
      for (int e = 0; e < kExperts; ++e) {
        const std::string p = str_cat("e.", e, ".");
        add(expected,
            mlp(whole(p + "gate.weight"), whole(p + "up.weight"), whole(p + "down.weight"), x_));
      }
      expect_close(routed, expected, "experts");
      if (only_stacks(GetParam().format)) continue;
      expect_close(dense, mlp(whole("gate.weight"), whole("up.weight"), whole("down.weight"), x_),
                   "dense");
    }
  }
}

TEST_P(Shards, AreWhatThePlanCounts) {
  const std::vector<Rank> one = ranks(1);
  const std::vector<Rank> four = ranks(4);
  int64_t held_everywhere = 0;  // of every rank: norm, router, latents
  for (const WeightItem& item : one[0].plan->items()) {
    for (const WeightSpec& s : item.sources) {
      const bool everywhere = item.role == WeightRole::kNorm || item.role == WeightRole::kRouter ||
                              s.name == "q_a.weight" || s.name == "kv_a.weight";
      if (everywhere) held_everywhere += s.numel();
    }
  }
  int64_t total = 0;
  for (const Rank& r : four)
    total += r.plan->parameters(false);
  EXPECT_EQ(total, one[0].plan->parameters(false) + 3 * held_everywhere);
  EXPECT_LT(four[0].plan->total_bytes(), one[0].plan->total_bytes() / 2);
}

constexpr ShardCase kCases[] = {
    {Format::kF32, DeviceKind::kCpu},           {Format::kF32, DeviceKind::kCuda},
    {Format::kBf16, DeviceKind::kCpu},          {Format::kBf16, DeviceKind::kCuda},
    {Format::kFp8Block, DeviceKind::kCpu},      {Format::kFp8Block, DeviceKind::kCuda},
    {Format::kFp8BlockUe8m0, DeviceKind::kCpu}, {Format::kFp8BlockUe8m0, DeviceKind::kCuda},
    {Format::kFp8Channel, DeviceKind::kCpu},    {Format::kFp8Tensor, DeviceKind::kCpu},
    {Format::kInt8Channel, DeviceKind::kCpu},   {Format::kW4Fp8, DeviceKind::kCpu},
    {Format::kNvfp4, DeviceKind::kCpu},         {Format::kNvfp4, DeviceKind::kCuda},
};

INSTANTIATE_TEST_SUITE_P(Formats, Shards, testing::ValuesIn(kCases), [](const auto& p) {
  return str_cat(format_name(p.param.format),
                 p.param.device == DeviceKind::kCpu ? "_in_tiles_or_rows" : "_as_a_gpu_has_it");
});

Status cut(WeightRole role, const char* axes, Format format, int count) {
  WeightSpec spec;
  spec.name = "x.weight";
  spec.axes = axes;
  spec.role = role;
  spec.format = format;
  spec.dims = eval_axes(axes, sizes()).value();
  return cut_tensor(sizes(), {.rank = 0, .count = count}, "FILE: tensor \"x.weight\"", spec);
}

TEST(CutTensor, NamesTensorSizeRanksAndWhatDivides) {
  const Status heads = cut(WeightRole::kAttention, "Nh*Dq,Lq", Format::kBf16, 3);
  EXPECT_EQ(heads.code(), StatusCode::kUnsupported);
  EXPECT_EQ(
      heads.message(),
      "FILE: tensor \"x.weight\" has 1024 rows (Nh = 4), in bf16, which 3 ranks cannot share; "
      "expected one of 1, 2, 4");

  // 512 columns over 8 ranks are 64, half a block.
  EXPECT_EQ(cut(WeightRole::kMlp, "H,Id", Format::kFp8Block, 8).message(),
            "FILE: tensor \"x.weight\" has 512 columns (Id = 512), in fp8_block in blocks of 128, "
            "which 8 ranks cannot share; expected one of 1, 2, 4");
  EXPECT_TRUE(cut(WeightRole::kMlp, "H,Id", Format::kFp8Block, 4).ok());
  EXPECT_TRUE(cut(WeightRole::kMlp, "H,Id", Format::kNvfp4, 32).ok());
  EXPECT_FALSE(cut(WeightRole::kMlp, "H,Id", Format::kNvfp4, 64).ok()) << "8 columns of 16";
  EXPECT_FALSE(cut(WeightRole::kMlp, "Id,H", Format::kFp8Block, 8).ok()) << "rows have blocks too";
  EXPECT_TRUE(cut(WeightRole::kMlp, "Id,H", Format::kInt8Channel, 8).ok());
}

TEST(CutTensor, KeepsPackedGroupsOfQserveTogether) {
  for (const Format format : {Format::kW4a8Channel, Format::kW4a8Group}) {
    EXPECT_TRUE(cut(WeightRole::kMlp, "Id,H", format, 16).ok());
    EXPECT_FALSE(cut(WeightRole::kMlp, "Id,H", format, 32).ok()) << "16 rows of 32";
  }
  EXPECT_TRUE(cut(WeightRole::kMlp, "H,Id", Format::kW4a8Channel, 16).ok());
  EXPECT_FALSE(cut(WeightRole::kMlp, "H,Id", Format::kW4a8Group, 16).ok()) << "32 columns of 128";
}

TEST(CutTensor, LeavesWholeWhatHasNoSharedSymbol) {
  WeightSpec spec;
  spec.axes = "Lkv+Dr,H";
  spec.role = WeightRole::kAttention;
  spec.format = Format::kBf16;
  spec.dims = {kLatent + kRotary, kHidden};

  ASSERT_TRUE(cut_tensor(sizes(), {.rank = 1, .count = 3}, "x", spec).ok());

  EXPECT_EQ(spec.part.axis, -1);
  EXPECT_EQ(spec.held_numel(), spec.numel());
}

TEST(ExpertsOf, GivesEachRankARunOfExpertsOrTellsWhoCan) {
  const Shard by_number{.rank = 2, .count = 4, .experts = ExpertShards::kNumber};
  EXPECT_EQ(experts_of(by_number, 8, "x")->begin, 4);
  EXPECT_EQ(experts_of(by_number, 8, "x")->count, 2);
  EXPECT_EQ(experts_of({.rank = 2, .count = 4}, 8, "x")->count, 8);
  EXPECT_THAT(experts_of(by_number, 6, "tensor e.0").status().message(),
              HasSubstr("tensor e.0 is one of 6 experts, which 4 ranks cannot share; expected one "
                        "of 1, 2, 3, 6"));
}

TEST(ExpertsOf, TensorsOfOtherRanksArePartOfTheModel) {
  TestCheckpoint files;
  write(files, Format::kBf16);
  const Checkpoint checkpoint = files.open();
  const Rank rank = load_rank(checkpoint, Format::kBf16,
                              {.shard = {.rank = 1, .count = 2, .experts = ExpertShards::kNumber}});
  EXPECT_EQ(rank.plan->of_other_ranks().size(), 6u);  // two experts of three tensors
}

}  // namespace
}  // namespace fathom
