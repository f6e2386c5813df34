#include "fathom/weights/loader.h"

#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/formats/integer/qserve.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/formats/minifloat.h"
#include "fathom/weights/checkpoint/linear_format.h"
#include "tests/support/test_checkpoint.h"

namespace fathom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Format kLinearFormats[] = {Format::kF32, Format::kBf16, Format::kFp8Block, Format::kNvfp4,
                                     Format::kInt8Channel};

// Row `row` of a stored matrix as the checkpoint defines it.
std::vector<float> stored_row(const Checkpoint& checkpoint, const std::string& name, int64_t row) {
  const StoredLinear s = describe_linear(checkpoint, name).value();
  const auto read = [&](const TensorRef* ref) {
    std::vector<std::byte> bytes(ref == nullptr ? 0 : static_cast<size_t>(ref->entry.bytes()));
    if (ref != nullptr) FATHOM_CHECK(checkpoint.read(*ref, bytes).ok());
    return bytes;
  };
  const auto values = read(s.weight);
  const auto scales = read(s.scale);
  const auto global = read(s.global_scale);
  RowMajorMatrix m{
      .format = s.format, .n = s.n, .k = s.k, .values = values.data(), .scales = scales.data()};
  if (!global.empty()) std::memcpy(&m.global, global.data(), 4);
  std::vector<float> out(static_cast<size_t>(s.k));
  decode_row_major_row(m, row, out);
  return out;
}

// Row `row` of matrix `e` of a weight in the store.
std::vector<float> loaded_row(const LinearWeight& w, int64_t row, int64_t e = 0) {
  const QuantView& q = w.w;
  const int64_t k = q.cols();
  std::vector<float> out(static_cast<size_t>(k));
  if (q.layout == WeightLayout::kRowMajor) {
    const int64_t bytes = value_bytes_for(q.format(), q.rows(), k);
    RowMajorMatrix m{.format = q.format(),
                     .n = q.rows(),
                     .k = k,
                     .values = q.values.as<std::byte>() + e * bytes};
    if (q.scales.present()) m.scales = q.scales.as<float>() + e * q.rows();
    decode_row_major_row(m, row, out);
    return out;
  }
  const int64_t first = e * ((q.rows() + 15) / 16);
  const Format f = q.format();
  Rows16Matrix m{.format = f, .n = q.rows(), .k = k};
  m.tiles = q.values.as<std::byte>() + first * rows16_group_bytes(f, k);
  if (q.scales.present()) m.scales = q.scales.as<float>() + first * rows16_group_scales(f, k);
  if (q.global.present()) m.global = q.global.as<float>() + first;
  decode_rows16_row(m, row, out);
  return out;
}

WeightStore load(const WeightPlan& plan,
                 const Checkpoint& checkpoint,
                 LoadOptions options = {},
                 int threads = 2) {
  ThreadPool pool(threads, PinThreads::kNo);
  auto store = load_weights(plan, checkpoint, pool, options);
  FATHOM_CHECK(store.ok(), store.ok() ? "" : store.status().message());
  return std::move(store).value();
}

Status load_error(const WeightPlan& plan, const Checkpoint& checkpoint) {
  ThreadPool pool(2, PinThreads::kNo);
  auto store = load_weights(plan, checkpoint, pool);
  return store.ok() ? Status{} : std::move(store).status();
}

class LoaderFormats : public testing::TestWithParam<Format> {};

TEST_P(LoaderFormats, MatrixHasTheStoredValuesAtEverySize) {
  for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 16}, {15, 48}, {16, 64}, {17, 80}, {127, 128}, {128, 144}, {129, 128}, {300, 272}}) {
    TestCheckpoint files;
    files.matrix("x.weight", n, k, GetParam());
    const Checkpoint checkpoint = files.open();
    WeightPlan plan(symbols({{"N", n}, {"K", k}}), tensors_of(checkpoint));
    LinearWeight w;
    ASSERT_TRUE(plan.matrix("x.weight", "N,K", WeightRole::kMlp, &w).ok());

    // The smallest staging reads one row group at a time, the default one all of it.
    for (int64_t staging : {int64_t{1}, int64_t{64} << 20}) {
      const WeightStore store = load(plan, checkpoint, {.progress = {}, .staging_bytes = staging});

      ASSERT_EQ(w.w.rows(), n);
      for (int64_t row = 0; row < n; ++row) {
        ASSERT_EQ(loaded_row(w, row), stored_row(checkpoint, "x.weight", row))
            << n << "x" << k << " row " << row;
      }
    }
  }
}

TEST_P(LoaderFormats, FusedRowsKeepTheScalesOfEachPart) {
  TestCheckpoint files;
  files.matrix("gate.weight", 48, 64, GetParam(), 1.0f);
  files.matrix("up.weight", 48, 64, GetParam(), 30.0f);  // another global scale
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"I", 48}, {"H", 64}}), tensors_of(checkpoint));
  RowsWeight w;
  ASSERT_TRUE(
      plan.rows({"gate.weight", "I,H"}, {"up.weight", "I,H"}, "2*I,H", WeightRole::kMlp, &w).ok());

  const WeightStore store = load(plan, checkpoint);

  ASSERT_EQ(w.num_parts, 1);
  EXPECT_EQ(w.rows(), 96);
  EXPECT_STREQ(w.parts[0].w.values.axes, "2*I,H");
  for (int64_t row = 0; row < 48; ++row) {
    EXPECT_EQ(loaded_row(w.parts[0], row), stored_row(checkpoint, "gate.weight", row));
    EXPECT_EQ(loaded_row(w.parts[0], 48 + row), stored_row(checkpoint, "up.weight", row));
  }
}

TEST_P(LoaderFormats, StackHoldsExpertsInOrder) {
  TestCheckpoint files;
  for (int e = 0; e < 5; ++e) {
    files.matrix(str_cat("e.", e, ".gate.weight"), 16, 128, GetParam(),
                 1.0f + static_cast<float>(e));
    files.matrix(str_cat("e.", e, ".up.weight"), 16, 128, GetParam());
  }
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"I", 16}, {"H", 128}}), tensors_of(checkpoint));
  LinearWeight w;
  ASSERT_TRUE(plan.stack({{"e.{}.gate.weight", "I,H"}, {"e.{}.up.weight", "I,H"}}, 5, "E,2*I,H",
                         WeightRole::kExpert, &w)
                  .ok());

  for (int threads : {1, 2, 7}) {
    const WeightStore store = load(plan, checkpoint, {}, threads);

    ASSERT_EQ(w.w.values.rank, 3);
    for (int64_t e = 0; e < 5; ++e) {
      for (int64_t row = 0; row < 16; ++row) {
        EXPECT_EQ(loaded_row(w, row, e),
                  stored_row(checkpoint, str_cat("e.", e, ".gate.weight"), row));
        EXPECT_EQ(loaded_row(w, 16 + row, e),
                  stored_row(checkpoint, str_cat("e.", e, ".up.weight"), row));
      }
    }
  }
}

TEST_P(LoaderFormats, AbsorbedCopiesAreTheHeadsOfKvB) {
  constexpr int64_t kHeads = 3, kNope = 32, kValue = 16, kLatent = 64;
  TestCheckpoint files;
  files.matrix("kv_b.weight", kHeads * (kNope + kValue), kLatent, GetParam());
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"Nh", kHeads}, {"Dn", kNope}, {"Dv", kValue}, {"Lkv", kLatent}}),
                  tensors_of(checkpoint));
  LinearWeight kv_b;
  LinearWeight w_kc;
  LinearWeight w_vc;
  ASSERT_TRUE(plan.matrix("kv_b.weight", "Nh*(Dn+Dv),Lkv", WeightRole::kAttention, &kv_b).ok());
  ASSERT_TRUE(plan.absorbed(kNope, kValue, Format::kBf16, &w_kc, &w_vc).ok());

  const WeightStore store = load(plan, checkpoint);

  // bf16 unless kv_b is float32; a quantised value is rounded once.
  const bool exact = GetParam() == Format::kF32;
  EXPECT_EQ(w_kc.w.format(), exact ? Format::kF32 : Format::kBf16);
  const auto rounded = [&](float x) { return exact ? x : to_float(bf16_from_float(x)); };
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t d = 0; d < kNope + kValue; ++d) {
      const auto row = stored_row(checkpoint, "kv_b.weight", h * (kNope + kValue) + d);
      for (int64_t l = 0; l < kLatent; ++l) {
        const float expected = rounded(row[static_cast<size_t>(l)]);
        const float found = d < kNope ? loaded_row(w_kc, l, h)[static_cast<size_t>(d)]
                                      : loaded_row(w_vc, d - kNope, h)[static_cast<size_t>(l)];
        ASSERT_EQ(found, expected) << "head " << h << " row " << d << " column " << l;
      }
    }
  }
}

TEST_P(LoaderFormats, RandomWeightsDoNotDependOnThreadsAndHaveUnitGain) {
  for (const auto& [n, k] :
       std::vector<std::pair<int64_t, int64_t>>{{256, 512}, {40, 144}, {17, 1008}}) {
    const Format format = GetParam();
    WeightPlan plan(symbols({{"N", n}, {"K", k}}),
                    [format](const WeightSpec&) -> Result<Format> { return format; });
    LinearWeight w;
    ASSERT_TRUE(plan.matrix("x.weight", "N,K", WeightRole::kMlp, &w).ok());
    ThreadPool one(1, PinThreads::kNo);
    ThreadPool three(3, PinThreads::kNo);

    const WeightStore a = random_weights(plan, one, 9).value();
    const WeightStore b = random_weights(plan, three, 9).value();
    const WeightStore c = random_weights(plan, three, 10).value();

    const auto size = static_cast<size_t>(plan.total_bytes());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), size), 0);
    EXPECT_NE(std::memcmp(a.data(), c.data(), size), 0);
    double squares = 0;
    for (int64_t row = 0; row < n; ++row) {
      for (float x : loaded_row(w, row))
        squares += static_cast<double>(x) * static_cast<double>(x);
    }
    EXPECT_GT(squares / static_cast<double>(n), 0.45) << n << "x" << k;
    EXPECT_LT(squares / static_cast<double>(n), 2.2) << n << "x" << k;
  }
}

INSTANTIATE_TEST_SUITE_P(All, LoaderFormats, testing::ValuesIn(kLinearFormats), [](const auto& p) {
  return std::string(format_name(p.param));
});

/// x.weight [n, k] in mxfp4: codes of 1, one scale byte, and another in row 3.
void add_mxfp4(TestCheckpoint& files, int64_t n, int64_t k, Format scales, uint8_t in_row_3) {
  files.codes("x.weight", Format::kI8, {n, k / 2},
              std::vector<uint8_t>(static_cast<size_t>(n * k / 2), 0x22));
  std::vector<uint8_t> bytes(static_cast<size_t>(n * k / 32), 120);
  bytes[static_cast<size_t>(3 * k / 32)] = in_row_3;
  files.codes("x.weight_scale", scales, {n, k / 32}, bytes);
}

TEST(Loader, Mxfp4LiesInTilesWithTheStoredValues) {
  for (Format scales : {Format::kUe8m0, Format::kU8}) {
    TestCheckpoint files;
    add_mxfp4(files, 40, 96, scales, 103);
    const Checkpoint checkpoint = files.open();
    WeightPlan plan(symbols({{"N", 40}, {"K", 96}}), tensors_of(checkpoint));
    LinearWeight w;
    FATHOM_CHECK(plan.matrix("x.weight", "N,K", WeightRole::kMlp, &w).ok());

    const WeightStore store = load(plan, checkpoint);

    EXPECT_EQ(w.w.format(), Format::kMxfp4);
    EXPECT_EQ(w.w.layout, WeightLayout::kRows16);
    EXPECT_FALSE(w.input_scale.present());
    for (int64_t row = 0; row < 40; ++row)
      EXPECT_EQ(loaded_row(w, row), stored_row(checkpoint, "x.weight", row)) << row;
  }
}

TEST(Loader, RefusesMxfp4ScalesThatTilesDoNotHold) {
  const auto error = [](Format scales, uint8_t in_row_3) {
    TestCheckpoint files;
    add_mxfp4(files, 40, 96, scales, in_row_3);
    const Checkpoint checkpoint = files.open();
    WeightPlan plan(symbols({{"N", 40}, {"K", 96}}), tensors_of(checkpoint));
    LinearWeight w;
    FATHOM_CHECK(plan.matrix("x.weight", "N,K", WeightRole::kMlp, &w).ok());
    return load_error(plan, checkpoint).message();
  };

  EXPECT_THAT(error(Format::kU8, 102), HasSubstr("x.weight"));
  EXPECT_THAT(error(Format::kU8, 102), HasSubstr("rows 0 to 15 are 2^-25 to 2^-7"));
  EXPECT_THAT(error(Format::kU8, 255), HasSubstr("expected a finite number"));
  EXPECT_THAT(error(Format::kUe8m0, 255), HasSubstr("expected a finite number"));
}

TEST(Loader, MatricesOfUnequalFormatsStayApart) {
  TestCheckpoint files;
  files.matrix("a.weight", 32, 64, Format::kBf16);
  files.matrix("b.weight", 48, 64, Format::kNvfp4);
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"A", 32}, {"B", 48}, {"H", 64}}), tensors_of(checkpoint));
  RowsWeight w;
  ASSERT_TRUE(
      plan.rows({"a.weight", "A,H"}, {"b.weight", "B,H"}, "A+B,H", WeightRole::kMlp, &w).ok());

  const WeightStore store = load(plan, checkpoint);

  ASSERT_EQ(w.num_parts, 2);
  EXPECT_EQ(w.rows(), 80);
  EXPECT_EQ(loaded_row(w.parts[0], 31), stored_row(checkpoint, "a.weight", 31));
  EXPECT_EQ(loaded_row(w.parts[1], 47), stored_row(checkpoint, "b.weight", 47));
}

TEST(Loader, RowsThatDoNotFillAGroupAreNotFused) {
  TestCheckpoint files;
  files.matrix("a.weight", 24, 16, Format::kBf16);
  files.matrix("b.weight", 16, 16, Format::kBf16);
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"A", 24}, {"B", 16}, {"H", 16}}), tensors_of(checkpoint));
  RowsWeight w;
  ASSERT_TRUE(
      plan.rows({"a.weight", "A,H"}, {"b.weight", "B,H"}, "A+B,H", WeightRole::kMlp, &w).ok());
  EXPECT_EQ(w.num_parts, 2);
}

TEST(Loader, VectorsKeepTheirFormatAndBiasesBecomeFloat32) {
  TestCheckpoint files;
  files.vector("norm.weight", {1.0f, -0.5f, 2.0f}, Format::kBf16);
  files.vector("wide.weight", {1.0f, 1e-9f, 3.0f}, Format::kF32);
  files.vector("gate.bias", {0.25f, -4.0f, 0.0f}, Format::kBf16);
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"H", 3}}), tensors_of(checkpoint));
  View norm;
  View wide;
  View bias;
  ASSERT_TRUE(plan.vector("norm.weight", "H", WeightRole::kNorm, &norm).ok());
  ASSERT_TRUE(plan.vector("wide.weight", "H", WeightRole::kNorm, &wide).ok());
  ASSERT_TRUE(plan.vector("gate.bias", "H", WeightRole::kRouterBias, &bias).ok());

  const WeightStore store = load(plan, checkpoint);

  EXPECT_EQ(norm.format, Format::kBf16);
  EXPECT_EQ(to_float(norm.as<Bf16>()[1]), -0.5f);
  EXPECT_EQ(wide.format, Format::kF32);
  EXPECT_EQ(wide.as<float>()[1], 1e-9f);
  ASSERT_EQ(bias.format, Format::kF32);
  EXPECT_THAT(std::vector<float>(bias.as<float>(), bias.as<float>() + 3),
              ElementsAre(0.25f, -4.0f, 0.0f));
}

TEST(Loader, InputScalesOfPartsAreJoinedByTheLargest) {
  TestCheckpoint files;
  for (const char* name : {"a", "b"}) {
    files.matrix(str_cat(name, ".weight"), 16, 64, Format::kNvfp4);
    files.vector(str_cat(name, ".input_scale"), {name[0] == 'a' ? 0.5f : 0.75f}, Format::kF32);
  }
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"N", 16}, {"K", 64}}), tensors_of(checkpoint));
  RowsWeight w;
  ASSERT_TRUE(
      plan.rows({"a.weight", "N,K"}, {"b.weight", "N,K"}, "2*N,K", WeightRole::kMlp, &w).ok());

  const WeightStore store = load(plan, checkpoint);

  EXPECT_EQ(w.parts[0].input_scale.as<float>()[0], 0.75f);
}

TEST(Loader, ProgressRisesToTheTotal) {
  TestCheckpoint files;
  files.matrix("a.weight", 64, 64, Format::kBf16);
  files.matrix("b.weight", 64, 64, Format::kFp8Block);
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"N", 64}}), tensors_of(checkpoint));
  LinearWeight a;
  LinearWeight b;
  ASSERT_TRUE(plan.matrix("a.weight", "N,N", WeightRole::kMlp, &a).ok());
  ASSERT_TRUE(plan.matrix("b.weight", "N,N", WeightRole::kMlp, &b).ok());
  std::vector<int64_t> seen;

  load(plan, checkpoint, {.progress = [&](int64_t done, int64_t total) {
         EXPECT_EQ(total, plan.total_bytes());
         seen.push_back(done);
       }});

  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), plan.total_bytes());
}

struct BadScale {
  const char* what;
  Format format;
  const char* tensor;
  size_t byte;  // where the bad bytes go
  std::vector<uint8_t> bytes;
  const char* message;
};

class LoaderScales : public testing::TestWithParam<BadScale> {};

TEST_P(LoaderScales, RefusesWithTensorAndIndex) {
  const BadScale& bad = GetParam();
  TestCheckpoint files;
  files.matrix("x.weight", 256, 256, bad.format);
  StoredTensor& t = files.tensor(bad.tensor);
  std::memcpy(t.bytes.data() + bad.byte, bad.bytes.data(), bad.bytes.size());
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"N", 256}}), tensors_of(checkpoint));
  LinearWeight w;
  ASSERT_TRUE(plan.matrix("x.weight", "N,N", WeightRole::kMlp, &w).ok());

  const Status status = load_error(plan, checkpoint);

  EXPECT_EQ(status.code(), StatusCode::kCorrupt) << bad.what;
  EXPECT_THAT(status.message(), HasSubstr(bad.tensor));
  EXPECT_THAT(status.message(), testing::ContainsRegex(bad.message));
  const int64_t byte = checkpoint.find(bad.tensor)->entry.begin + static_cast<int64_t>(bad.byte);
  EXPECT_THAT(status.message(), HasSubstr(str_cat(" at byte ", byte, " is ")));
}

INSTANTIATE_TEST_SUITE_P(Bad,
                         LoaderScales,
                         testing::Values(BadScale{"fp8 NaN",
                                                  Format::kFp8Block,
                                                  "x.weight_scale_inv",
                                                  12,
                                                  {0, 0, 0xC0, 0x7F},
                                                  "scale 3 at byte [0-9]+ is nan"},
                                         BadScale{"fp8 infinity",
                                                  Format::kFp8Block,
                                                  "x.weight_scale_inv",
                                                  4,
                                                  {0, 0, 0x80, 0x7F},
                                                  "scale 1 at byte [0-9]+ is inf"},
                                         BadScale{"fp8 negative",
                                                  Format::kFp8Block,
                                                  "x.weight_scale_inv",
                                                  0,
                                                  {0, 0, 0x80, 0xBF},
                                                  "scale 0 at byte [0-9]+ is -1"},
                                         BadScale{"nvfp4 NaN",
                                                  Format::kNvfp4,
                                                  "x.weight_scale",
                                                  1000,
                                                  {0x7F},
                                                  "scale 1000 at byte [0-9]+ is nan"},
                                         BadScale{"nvfp4 negative",
                                                  Format::kNvfp4,
                                                  "x.weight_scale",
                                                  7,
                                                  {0xB8},
                                                  "scale 7 at byte [0-9]+ is -1"},
                                         BadScale{"nvfp4 global NaN",
                                                  Format::kNvfp4,
                                                  "x.weight_scale_2",
                                                  0,
                                                  {0, 0, 0xC0, 0x7F},
                                                  "is nan"},
                                         BadScale{"nvfp4 global zero",
                                                  Format::kNvfp4,
                                                  "x.weight_scale_2",
                                                  0,
                                                  {0, 0, 0, 0},
                                                  "is 0, expected a finite positive number"}));

// Index of a number of a [48, 64] matrix in its last row, which another thread reads than its
// first.
constexpr int64_t kLastRowElement = 47 * 64 + 5;

// The place of that number in the tensor, and what loading says with `code` there.
Status load_error_with(WeightRole role, Format format, const std::vector<uint8_t>& code) {
  TestCheckpoint files;
  files.matrix("gate.weight", 48, 64, format);
  const size_t at = static_cast<size_t>(kLastRowElement) * code.size();
  std::memcpy(files.tensor("gate.weight").bytes.data() + at, code.data(), code.size());
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"E", 48}, {"H", 64}}), tensors_of(checkpoint));
  LinearWeight w;
  FATHOM_CHECK(plan.matrix("gate.weight", "E,H", role, &w).ok());
  Status status = load_error(plan, checkpoint);
  const int64_t byte = checkpoint.find("gate.weight")->entry.begin + static_cast<int64_t>(at);
  if (!status.ok()) {
    EXPECT_THAT(status.message(), HasSubstr(str_cat("tensor \"gate.weight\": element ",
                                                    kLastRowElement, " at byte ", byte, " is ")));
  }
  return status;
}

TEST(LoaderRouter, RefusesAWeightThatIsNotFinite) {
  struct Bad {
    Format format;
    std::vector<uint8_t> code;
    const char* value;
  };

  for (const Bad& bad :
       {Bad{Format::kBf16, {0xC0, 0x7F}, "nan"}, Bad{Format::kBf16, {0x80, 0x7F}, "inf"},
        Bad{Format::kF32, {0, 0, 0xC0, 0x7F}, "nan"}, Bad{Format::kF32, {0, 0, 0x80, 0xFF}, "-inf"},
        Bad{Format::kFp8Block, {0x7F}, "nan"}}) {
    const Status status = load_error_with(WeightRole::kRouter, bad.format, bad.code);

    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << format_name(bad.format) << bad.value;
    EXPECT_THAT(status.message(),
                HasSubstr(str_cat(" is ", bad.value, ", expected a finite number")));
  }
}

// Codes of four bits have no NaN, and what those of other weights do shows in the logits.
TEST(LoaderRouter, ChecksNoOtherWeight) {
  EXPECT_TRUE(load_error_with(WeightRole::kRouter, Format::kInt8Channel, {0x7F}).ok());
  EXPECT_TRUE(load_error_with(WeightRole::kMlp, Format::kBf16, {0xC0, 0x7F}).ok());
}

TEST(LoaderRouter, RefusesABiasThatIsNotFinite) {
  for (const Format format : {Format::kF32, Format::kBf16}) {
    for (const float value : {NAN, INFINITY, -INFINITY}) {
      TestCheckpoint files;
      files.vector("gate.bias", {0.25f, -4.0f, value}, format);
      const Checkpoint checkpoint = files.open();
      WeightPlan plan(symbols({{"E", 3}}), tensors_of(checkpoint));
      View bias;
      ASSERT_TRUE(plan.vector("gate.bias", "E", WeightRole::kRouterBias, &bias).ok());

      const Status status = load_error(plan, checkpoint);

      EXPECT_EQ(status.code(), StatusCode::kCorrupt) << format_name(format) << value;
      EXPECT_THAT(status.message(), HasSubstr("tensor \"gate.bias\": element 2 at byte "));
    }
  }
}

TEST(Loader, BlockScaleOfZeroIsABlockOfZeros) {
  TestCheckpoint files;
  files.matrix("x.weight", 128, 128, Format::kFp8Block);
  std::memset(files.tensor("x.weight_scale_inv").bytes.data(), 0, 4);
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"N", 128}}), tensors_of(checkpoint));
  LinearWeight w;
  ASSERT_TRUE(plan.matrix("x.weight", "N,N", WeightRole::kMlp, &w).ok());

  const WeightStore store = load(plan, checkpoint);

  EXPECT_EQ(loaded_row(w, 5), std::vector<float>(128, 0.0f));
}

TEST(Loader, OneScaleForAllRowsIsRepeatedForEach) {
  TestCheckpoint files;
  files.codes("a.weight", Format::kE4m3, {2, 3}, {0x38, 0x40, 0x38, 0x38, 0x48, 0x38});
  files.scalar("a.weight_scale", 0.5f);
  files.codes("b.weight", Format::kE4m3, {1, 3}, {0x38, 0x38, 0x40});
  files.scalar("b.weight_scale", 4.0f);
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"A", 2}, {"B", 1}, {"K", 3}}), tensors_of(checkpoint));
  RowsWeight w;
  ASSERT_TRUE(
      plan.rows({"a.weight", "A,K"}, {"b.weight", "B,K"}, "A+B,K", WeightRole::kMlp, &w).ok());

  const WeightStore store = load(plan, checkpoint);

  ASSERT_EQ(w.num_parts, 1);
  EXPECT_EQ(w.parts[0].w.format(), Format::kFp8Channel);
  EXPECT_EQ(loaded_row(w.parts[0], 0), (std::vector<float>{0.5f, 1.0f, 0.5f}));
  EXPECT_EQ(loaded_row(w.parts[0], 1), (std::vector<float>{0.5f, 2.0f, 0.5f}));
  EXPECT_EQ(loaded_row(w.parts[0], 2), (std::vector<float>{4.0f, 4.0f, 8.0f}));
}

TEST(Loader, ExpertsInFourBitsHaveFloat32ScalesAndTheLargestInputScale) {
  constexpr int64_t kRows = 2, kColumns = 256;
  TestCheckpoint files;
  for (int e = 0; e < 3; ++e) {
    const std::string name = str_cat("e.", e, ".weight");
    files.codes(name, Format::kI8, {kRows, kColumns / 2},
                std::vector<uint8_t>(kRows * kColumns / 2, static_cast<uint8_t>(0x10 + e)));
    const auto scale = static_cast<float>(e + 1);
    files.vector(name + "_scale_inv", {scale, 2 * scale, 3 * scale, 4 * scale},
                 e == 1 ? Format::kF32 : Format::kBf16);
    files.tensor(name + "_scale_inv").shape = {kRows, kColumns / 128};
    files.scalar(str_cat("e.", e, ".input_scale"), e == 1 ? 0.75f : 0.25f);
  }
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"E", 3}, {"N", kRows}, {"K", kColumns}}), tensors_of(checkpoint));
  LinearWeight w;
  const Status planned = plan.stack({{"e.{}.weight", "N,K"}}, 3, "E,N,K", WeightRole::kExpert, &w);
  ASSERT_TRUE(planned.ok()) << planned.message();

  const WeightStore store = load(plan, checkpoint);

  EXPECT_EQ(w.w.format(), Format::kW4Fp8);
  ASSERT_EQ(w.w.scales.numel(), 12);
  for (int i = 0; i < 12; ++i)
    EXPECT_EQ(w.w.scales.as<float>()[i], static_cast<float>((i / 4 + 1) * (i % 4 + 1)));
  for (int i = 0; i < 3 * kRows * kColumns / 2; ++i)
    ASSERT_EQ(w.w.values.as<uint8_t>()[i], 0x10 + i / (kRows * kColumns / 2));
  ASSERT_EQ(w.input_scale.numel(), 1);
  EXPECT_EQ(*w.input_scale.as<float>(), 0.75f);
}

TEST(RandomWeights, PackedOnesHaveUnitGainAsTheirAbsorbedCopiesShow) {
  for (const Format format : {Format::kW4a8Channel, Format::kW4a8Group}) {
    WeightPlan plan(symbols({{"Nh", 2}, {"Dn", 32}, {"Dv", 32}, {"Lkv", 256}}),
                    [format](const WeightSpec&) -> Result<Format> { return format; });
    LinearWeight kv_b, w_kc, w_vc;
    ASSERT_TRUE(plan.matrix("kv_b.weight", "Nh*(Dn+Dv),Lkv", WeightRole::kAttention, &kv_b).ok());
    ASSERT_TRUE(plan.absorbed(32, 32, Format::kBf16, &w_kc, &w_vc).ok());
    ThreadPool pool(2, PinThreads::kNo);

    const WeightStore store = random_weights(plan, pool, 3).value();

    std::vector<uint8_t> codes(128 * 256);
    ASSERT_TRUE(qserve_unpack(kv_b.w.values.as<uint8_t>(), 128, 256, codes.data()).ok());
    double squares = 0;
    for (int64_t d = 0; d < 32; ++d) {
      // Head 1: rows 64 .. 95 of kv_b are its keys, transposed in w_kc; 96 .. 127 its values.
      const auto values = loaded_row(w_vc, d, 1);
      for (int64_t l = 0; l < 256; ++l) {
        const double code = codes[static_cast<size_t>((96 + d) * 256 + l)];
        const double step = format == Format::kW4a8Channel
                                ? to_float(kv_b.w.scales.as<F16>()[96 + d])
                                : 16.0 * to_float(kv_b.row_scales.as<F16>()[96 + d]);
        EXPECT_NEAR(values[static_cast<size_t>(l)], (code - 7.5) * step, 0x1p-8) << d;
        squares += static_cast<double>(values[static_cast<size_t>(l)]) *
                   static_cast<double>(values[static_cast<size_t>(l)]);
        EXPECT_EQ(loaded_row(w_kc, l, 1).size(), 32u);
      }
    }
    EXPECT_NEAR(squares / 32.0, 1.0, 0.5);
  }
}

}  // namespace
}  // namespace fathom
