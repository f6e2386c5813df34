// The pipeline with a sink like that of a GPU: small pieces, nothing readable.
#include "fathom/weights/load/fill.h"

#include <atomic>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/pair_layout.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/formats/minifloat.h"
#include "fathom/weights/load/checkpoint_jobs.h"
#include "fathom/weights/load/random_jobs.h"
#include "fathom/weights/loader.h"
#include "tests/support/fake_sink.h"
#include "tests/support/test_checkpoint.h"

namespace fathom {
namespace {

using testing::HasSubstr;

constexpr Format kStoredFormats[] = {
    Format::kF32,        Format::kBf16,      Format::kFp8Block, Format::kFp8BlockUe8m0,
    Format::kFp8Channel, Format::kFp8Tensor, Format::kNvfp4,    Format::kInt8Channel};
constexpr int64_t kHeads = 2, kNope = 48, kValue = 16, kLatent = 128;

SymbolTable sizes() {
  return symbols({{"H", 128},
                  {"N", 300},
                  {"I", 128},
                  {"E", 3},
                  {"Nh", kHeads},
                  {"Dn", kNope},
                  {"Dv", kValue},
                  {"Lkv", kLatent}});
}

struct Weights {
  View bias;
  LinearWeight plain, kv_b, w_kc, w_vc;
  RowsWeight experts;
};

void write(TestCheckpoint& files, Format format) {
  files.vector("bias", {0.5f, -1.0f, 2.0f}, Format::kBf16);
  files.stored("plain.weight", 300, 128, format);
  for (int e = 0; e < 3; ++e) {
    for (const char* part : {"gate", "up"}) {
      files.stored(str_cat("e.", e, ".", part, ".weight"), 128, 128, format,
                   1.0f + static_cast<float>(e));
      files.scalar(str_cat("e.", e, ".", part, ".input_scale"), 1.0f + static_cast<float>(e));
    }
  }
  files.stored("kv_b.weight", kHeads * (kNope + kValue), kLatent, format);
}

void declare(WeightPlan& plan, Weights& w) {
  const auto done = [](const Status& s) { FATHOM_CHECK(s.ok(), s.message()); };
  done(plan.vector("bias", "E", WeightRole::kRouterBias, &w.bias));
  done(plan.matrix("plain.weight", "N,H", WeightRole::kMlp, &w.plain));
  done(plan.stack_rows({"e.{}.gate.weight", "I,H"}, {"e.{}.up.weight", "I,H"}, 3, "E,2*I,H",
                       "E,I,H", WeightRole::kExpert, &w.experts));
  done(plan.matrix("kv_b.weight", "Nh*(Dn+Dv),Lkv", WeightRole::kAttention, &w.kv_b));
  done(plan.absorbed(kNope, kValue, Format::kBf16, &w.w_kc, &w.w_vc));
}

FormatSource all_in(Format format) {
  return [=](const WeightSpec& spec) -> Result<Format> {
    return spec.dims.size() < 2 ? Format::kBf16 : format;
  };
}

class FillStore : public testing::TestWithParam<Format> {};

// Pieces that hold one unit, and some that hold several; a kv_b that must be filled a second time.
TEST_P(FillStore, GivesEverySinkTheBytesOfAHostStore) {
  TestCheckpoint files;
  write(files, GetParam());
  const Checkpoint checkpoint = files.open();
  ThreadPool pool(3, PinThreads::kNo);
  WeightPlan plan(sizes(), tensors_of(checkpoint));
  Weights w;
  declare(plan, w);
  const auto compare = [&](const JobSource& source, const WeightStore& expected) {
    for (const int64_t piece : {int64_t{1}, int64_t{5000}, int64_t{1} << 20}) {
      FakeSink sink(plan.total_bytes(), piece);
      const Status status = fill_store(plan, source, sink, pool, {});
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(sink.finished);
      EXPECT_EQ(std::memcmp(sink.store.data(), expected.data(), sink.store.size()), 0) << piece;
    }
  };

  compare(checkpoint_source(checkpoint), load_weights(plan, checkpoint, pool).value());
  compare(random_source(plan, 5), random_weights(plan, pool, 5).value());
}

std::vector<std::byte> stored(const Checkpoint& checkpoint, const std::string& name) {
  const TensorRef& ref = *checkpoint.find(name);
  std::vector<std::byte> out(static_cast<size_t>(ref.entry.bytes()));
  FATHOM_CHECK(checkpoint.read(ref, out).ok());
  return out;
}

bool is_at(const std::vector<std::byte>& store,
           int64_t offset,
           const std::vector<std::byte>& part) {
  return std::equal(part.begin(), part.end(), store.begin() + offset);
}

// What kernels of a GPU take: rows and scales as they are stored, codes of NVFP4 in pairs.
TEST_P(FillStore, PutsRowsAndScalesOnAGpuAsTheyAreStored) {
  const Format format = GetParam();
  TestCheckpoint files;
  write(files, format);
  const Checkpoint checkpoint = files.open();
  ThreadPool pool(2, PinThreads::kNo);
  WeightPlan plan(sizes(), tensors_of(checkpoint), {.device = DeviceKind::kCuda});
  Weights w;
  declare(plan, w);
  FakeSink sink(plan.total_bytes(), 20000);

  ASSERT_TRUE(fill_store(plan, checkpoint_source(checkpoint), sink, pool, {}).ok());

  const auto in_order = [&](std::vector<std::byte> codes) {
    if (format == Format::kNvfp4) pair_codes(codes);
    return codes;
  };
  const WeightItem& plain = plan.items()[1];
  EXPECT_TRUE(is_at(sink.store, plain.values_offset, in_order(stored(checkpoint, "plain.weight"))));
  for (const char* scale : {"plain.weight_scale", "plain.weight_scale_inv"}) {
    if (format == Format::kFp8Tensor || checkpoint.find(scale) == nullptr) continue;
    EXPECT_TRUE(is_at(sink.store, plain.scales_offset, stored(checkpoint, scale)));
  }
  if (format == Format::kFp8Tensor) {  // one for all rows is one for each
    for (int row : {0, 1, 299})
      EXPECT_TRUE(is_at(sink.store, plain.scales_offset + row * 4,
                        stored(checkpoint, "plain.weight_scale")));
  }
  const WeightItem& experts = plan.items()[2];
  int64_t at = experts.values_offset;
  for (int e = 0; e < 3; ++e) {
    for (const char* part : {"gate", "up"}) {
      if (w.experts.num_parts == 2 && std::string_view(part) == "up") continue;
      const auto values = in_order(stored(checkpoint, str_cat("e.", e, ".", part, ".weight")));
      EXPECT_TRUE(is_at(sink.store, at, values)) << e << part;
      at += static_cast<int64_t>(values.size());
    }
  }
  if (format == Format::kNvfp4) {
    float input_scale = 0;
    std::memcpy(&input_scale, sink.store.data() + experts.input_scale_offset + 8, 4);
    EXPECT_EQ(input_scale, 3.0f);
  }
}

// The heads of a GPU's absorbed copies are those of the CPU's, row by row.
TEST_P(FillStore, AbsorbsWhatTheHostCannotRead) {
  TestCheckpoint files;
  write(files, GetParam());
  const Checkpoint checkpoint = files.open();
  ThreadPool pool(2, PinThreads::kNo);
  const StoredLinear kv_b = describe_linear(checkpoint, "kv_b.weight").value();
  const auto values = stored(checkpoint, "kv_b.weight");
  const auto scales =
      kv_b.scale == nullptr ? std::vector<std::byte>{} : stored(checkpoint, kv_b.scale->entry.name);
  RowMajorMatrix m{.format = kv_b.format,
                   .n = kv_b.n,
                   .k = kv_b.k,
                   .values = values.data(),
                   .scales = scales.data()};
  if (kv_b.global_scale != nullptr)
    m.global = read_tensor_scale(checkpoint, *kv_b.global_scale).value();
  WeightPlan plan(sizes(), tensors_of(checkpoint), {.device = DeviceKind::kCuda});
  Weights w;
  declare(plan, w);
  FakeSink sink(plan.total_bytes(), 1000);

  ASSERT_TRUE(fill_store(plan, checkpoint_source(checkpoint), sink, pool, {}).ok());

  plan.bind(sink.store.data());
  const bool exact = GetParam() == Format::kF32;
  std::vector<float> row(kLatent);
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t d = 0; d < kNope + kValue; ++d) {
      decode_row_major_row(m, h * (kNope + kValue) + d, row);
      for (int64_t l = 0; l < kLatent; ++l) {
        const View& v = d < kNope ? w.w_kc.w.values : w.w_vc.w.values;
        const int64_t at =
            d < kNope ? (h * kLatent + l) * kNope + d : (h * kValue + d - kNope) * kLatent + l;
        const float found = exact ? v.as<float>()[at] : to_float(v.as<Bf16>()[at]);
        const float expected = row[static_cast<size_t>(l)];
        ASSERT_EQ(found, exact ? expected : to_float(bf16_from_float(expected)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, FillStore, testing::ValuesIn(kStoredFormats), [](const auto& p) {
  return std::string(format_name(p.param));
});

// Two parts of each matrix under one global scale, in exponents of their own.
TEST(FillStore, GivesAGpuMxfp4AsNvfp4WithTheStoredValues) {
  constexpr int64_t kRows = 32;
  constexpr int64_t kColumns = 96;
  TestCheckpoint files;
  Rng rng(3);
  const auto random_bytes = [&](int64_t count, uint8_t least, uint32_t kinds) {
    std::vector<uint8_t> bytes(static_cast<size_t>(count));
    for (uint8_t& byte : bytes)
      byte = static_cast<uint8_t>(least + rng.next_below(kinds));
    return bytes;
  };
  for (const auto& [part, least] : {std::pair("gate", 110), std::pair("up", 118)}) {
    for (int e = 0; e < 2; ++e) {
      const std::string name = str_cat("e.", e, ".", part, ".weight");
      files.codes(name, Format::kI8, {kRows, kColumns / 2},
                  random_bytes(kRows * kColumns / 2, 0, 256));
      files.codes(name + "_scale", Format::kUe8m0, {kRows, kColumns / 32},
                  random_bytes(kRows * kColumns / 32, static_cast<uint8_t>(least + e), 9));
    }
  }
  const Checkpoint checkpoint = files.open();
  ThreadPool pool(2, PinThreads::kNo);
  WeightPlan plan(symbols({{"I", kRows}, {"H", kColumns}}), tensors_of(checkpoint),
                  {.device = DeviceKind::kCuda});
  RowsWeight experts;
  ASSERT_TRUE(plan.stack_rows({"e.{}.gate.weight", "I,H"}, {"e.{}.up.weight", "I,H"}, 2, "E,2*I,H",
                              "E,I,H", WeightRole::kExpert, &experts)
                  .ok());
  FakeSink sink(plan.total_bytes(), 500);

  ASSERT_TRUE(fill_store(plan, checkpoint_source(checkpoint), sink, pool, {}).ok());

  plan.bind(sink.store.data());
  ASSERT_EQ(experts.num_parts, 1);
  const QuantView& w = experts.parts[0].w;
  EXPECT_EQ(w.format(), Format::kNvfp4);
  EXPECT_EQ(w.layout, WeightLayout::kPairs);
  std::vector<float> found(kRows * kColumns);
  std::vector<float> expected(kRows * kColumns);
  std::vector<std::byte> codes(kRows * kColumns / 2);
  for (int64_t i = 0; i < 4; ++i) {
    const std::string name = str_cat("e.", i / 2, i % 2 == 0 ? ".gate" : ".up", ".weight");
    std::memcpy(codes.data(), w.values.as<std::byte>() + i * kRows * kColumns / 2, codes.size());
    unpair_codes(codes);
    nvfp4_dequantize(reinterpret_cast<const uint8_t*>(codes.data()),
                     w.scales.as<E4m3>() + i * kRows * kColumns / 16, w.global.as<float>()[i / 2],
                     kRows, kColumns, found.data());
    const auto values = stored(checkpoint, name);
    const auto scales = stored(checkpoint, name + "_scale");
    mxfp4_dequantize(reinterpret_cast<const uint8_t*>(values.data()),
                     reinterpret_cast<const Ue8m0*>(scales.data()), kRows, kColumns,
                     expected.data());
    EXPECT_EQ(found, expected) << name;
  }
}

// A quantised kv_b is exact in float32, which activations of that format get.
TEST(FillStore, KeepsAbsorbedCopiesOfAQuantisedKvBInFloat32WhereActivationsAre) {
  for (const Format format : {Format::kBf16, Format::kFp8Block, Format::kNvfp4}) {
    WeightPlan plan(sizes(), all_in(format));
    LinearWeight kv_b, w_kc, w_vc;
    ASSERT_TRUE(plan.matrix("kv_b.weight", "Nh*(Dn+Dv),Lkv", WeightRole::kAttention, &kv_b).ok());
    ASSERT_TRUE(plan.absorbed(kNope, kValue, Format::kF32, &w_kc, &w_vc).ok());

    plan.bind(nullptr);

    const Format expected = format == Format::kBf16 ? Format::kBf16 : Format::kF32;
    EXPECT_EQ(w_kc.w.format(), expected) << format_name(format);
    EXPECT_EQ(w_vc.w.format(), expected) << format_name(format);
  }
}

// 36 MiB of a repeating sink are drawn until the period and copied from there.
TEST(FillStore, LetsASinkRepeatLargeRandomParts) {
  WeightPlan plan(symbols({{"N", 4608}, {"K", 4096}}), all_in(Format::kBf16),
                  {.device = DeviceKind::kCuda});
  LinearWeight w;
  ASSERT_TRUE(plan.matrix("x.weight", "N,K", WeightRole::kMlp, &w).ok());
  ThreadPool pool(2, PinThreads::kNo);
  FakeSink drawn(plan.total_bytes(), 1 << 20);
  FakeSink repeated(plan.total_bytes(), 1 << 20, true);

  ASSERT_TRUE(fill_store(plan, random_source(plan, 1), drawn, pool, {}).ok());
  ASSERT_TRUE(fill_store(plan, random_source(plan, 1), repeated, pool, {}).ok());

  constexpr int64_t kPeriod = 509 << 16;
  EXPECT_EQ(repeated.num_repeats, 1);
  EXPECT_TRUE(
      std::equal(drawn.store.begin(), drawn.store.begin() + kPeriod, repeated.store.begin()));
  EXPECT_TRUE(
      std::equal(repeated.store.begin() + kPeriod, repeated.store.end(), repeated.store.begin()));
  EXPECT_NE(drawn.store, repeated.store);
}

TEST(FillStore, CountsProgressOfEverySinkToTheTotal) {
  WeightPlan plan(sizes(), all_in(Format::kNvfp4), {.device = DeviceKind::kCuda});
  Weights w;
  declare(plan, w);
  ThreadPool pool(2, PinThreads::kNo);
  FakeSink sink(plan.total_bytes(), 4096);
  std::vector<int64_t> seen;

  ASSERT_TRUE(fill_store(plan, random_source(plan, 1), sink, pool,
                         {.progress = [&](int64_t done, int64_t) { seen.push_back(done); }})
                  .ok());

  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), plan.total_bytes());
}

// Jobs of a source that notes what each call takes.
TEST(FillStore, KeepsStagingAndPiecesWithinTheirLimits) {
  WeightPlan plan(symbols({{"N", 64}, {"K", 1024}}), all_in(Format::kF32));
  LinearWeight w;
  ASSERT_TRUE(plan.matrix("x.weight", "N,K", WeightRole::kMlp, &w).ok());
  std::atomic<int64_t> largest{0};
  std::atomic<int64_t> units{0};
  const JobSource source = [&](const WeightItem& item, size_t) -> Result<std::vector<FillJob>> {
    FillJob job{.units = item.n,
                .parts = {{item.values_offset, item.k * 4, item.value_bytes()}},
                .staged_bytes = 1000};
    job.fill = [&](const FillCall& call) -> Status {
      int64_t seen = largest;
      while (call.end - call.begin > seen &&
             !largest.compare_exchange_weak(seen, call.end - call.begin)) {
      }
      units += call.end - call.begin;
      return {};
    };
    return std::vector<FillJob>{job};
  };
  ThreadPool pool(2, PinThreads::kNo);
  FakeSink sink(plan.total_bytes(), 5 * 4096);

  ASSERT_TRUE(fill_store(plan, source, sink, pool, {.staging_bytes = 4000}).ok());

  EXPECT_EQ(units, 64);
  EXPECT_EQ(largest, 2) << "2000 bytes a thread are two units";
  EXPECT_EQ(sink.largest, 5 * 4096);
}

TEST(FillStore, ReturnsTheErrorOfAJob) {
  WeightPlan plan(symbols({{"N", 64}, {"K", 64}}), all_in(Format::kF32));
  LinearWeight w;
  ASSERT_TRUE(plan.matrix("x.weight", "N,K", WeightRole::kMlp, &w).ok());
  const JobSource source = [](const WeightItem& item, size_t) -> Result<std::vector<FillJob>> {
    FillJob job{.units = 64, .parts = {{item.values_offset, 256, 64 * 256}}};
    job.fill = [](const FillCall& call) -> Status {
      return call.begin <= 40 && 40 < call.end ? corrupt("row 40") : Status{};
    };
    return std::vector<FillJob>{job};
  };
  ThreadPool pool(3, PinThreads::kNo);
  FakeSink sink(plan.total_bytes(), 1 << 20);

  const Status status = fill_store(plan, source, sink, pool, {});

  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("row 40"));
}

}  // namespace
}  // namespace fathom
