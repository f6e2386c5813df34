// The bytes of whole stores, of every format, as they have always been: what changes the way of a
// weight into memory must not change where it ends.
#include <gtest/gtest.h>

#include "fathom/os/sha256.h"
#include "fathom/weights/loader.h"
#include "tests/support/test_checkpoint.h"

namespace fathom {
namespace {

struct StoreBits {
  Format format;
  const char* digest;
};

// The weights of a small layer: padded and whole tiles, fused rows, stacks, copies, vectors.
struct Layer {
  View norm, bias, table;
  LinearWeight router, padded, kv_b, w_kc, w_vc, down;
  RowsWeight gate_up, experts;
};

constexpr int kExperts = 3;

SymbolTable sizes() {
  return symbols({{"H", 128},
                  {"I", 32},
                  {"E", kExperts},
                  {"V", 40},
                  {"P", 300},
                  {"W", 272},
                  {"Nh", 2},
                  {"Dn", 32},
                  {"Dv", 16},
                  {"Lkv", 128}});
}

bool only_stacks(Format format) {
  return format == Format::kW4Fp8;
}

bool packs_rows(Format format) {
  return format == Format::kW4a8Channel || format == Format::kW4a8Group;
}

// QServe's formats pack 32 rows and are never stacked.
void declare(WeightPlan& plan, Format format, Layer& w) {
  using enum WeightRole;
  const auto done = [](const Status& s) { FATHOM_CHECK(s.ok(), s.message()); };
  done(plan.table("embed.weight", "V,H", kEmbedding, &w.table));
  done(plan.vector("norm.weight", "H", kNorm, &w.norm));
  done(plan.vector("gate.bias", "E", kRouterBias, &w.bias));
  done(plan.matrix("gate.weight", "E,H", kRouter, &w.router));
  if (!only_stacks(format)) {
    if (!packs_rows(format)) done(plan.matrix("padded.weight", "P,W", kMlp, &w.padded));
    done(
        plan.rows({"mlp.gate.weight", "I,H"}, {"mlp.up.weight", "I,H"}, "2*I,H", kMlp, &w.gate_up));
    done(plan.matrix("kv_b.weight", "Nh*(Dn+Dv),Lkv", kAttention, &w.kv_b));
    done(plan.absorbed(32, 16, Format::kBf16, &w.w_kc, &w.w_vc));
  }
  if (packs_rows(format)) return;
  done(plan.stack_rows({"e.{}.gate.weight", "I,H"}, {"e.{}.up.weight", "I,H"}, kExperts, "E,2*I,H",
                       "E,I,H", kExpert, &w.experts));
  done(plan.stack({{"e.{}.down.weight", "I,H"}}, kExperts, "E,I,H", kExpert, &w.down));
}

void write(TestCheckpoint& files, Format format) {
  files.matrix("embed.weight", 40, 128, Format::kBf16);
  files.vector("norm.weight", std::vector<float>(128, 0.75f), Format::kBf16);
  files.vector("gate.bias", {0.25f, -4.0f, 1.5f}, Format::kBf16);
  files.matrix("gate.weight", kExperts, 128, Format::kBf16);
  if (!only_stacks(format)) {
    files.stored("padded.weight", 300, 272, format);
    files.stored("mlp.gate.weight", 32, 128, format);
    files.stored("mlp.up.weight", 32, 128, format, 30.0f);
    files.stored("kv_b.weight", 96, 128, format);
  }
  for (int e = 0; e < kExperts; ++e) {
    for (const char* part : {"gate", "up", "down"}) {
      files.stored(str_cat("e.", e, ".", part, ".weight"), 32, 128, format,
                   1.0f + static_cast<float>(e));
      files.scalar(str_cat("e.", e, ".", part, ".input_scale"), 0.5f + static_cast<float>(e));
    }
  }
}

std::string digest(const WeightStore& store) {
  return to_hex(sha256({reinterpret_cast<const char*>(store.data()),
                        static_cast<size_t>(store.bytes())}))
      .substr(0, 16);
}

class LoadedStore : public testing::TestWithParam<StoreBits> {};

class RandomStore : public testing::TestWithParam<StoreBits> {};

TEST_P(LoadedStore, HasItsBits) {
  TestCheckpoint files;
  write(files, GetParam().format);
  const Checkpoint checkpoint = files.open();
  for (const int threads : {1, 3}) {
    for (const int64_t staging : {int64_t{1}, int64_t{64} << 20}) {
      WeightPlan plan(sizes(), tensors_of(checkpoint));
      Layer layer;
      declare(plan, GetParam().format, layer);
      ThreadPool pool(threads, PinThreads::kNo);

      const auto store = load_weights(plan, checkpoint, pool, {.staging_bytes = staging});

      ASSERT_TRUE(store.ok()) << store.status().message();
      EXPECT_EQ(digest(*store), GetParam().digest) << threads << " threads, staging " << staging;
    }
  }
}

TEST_P(RandomStore, HasItsBits) {
  const Format format = GetParam().format;
  for (const int threads : {1, 3}) {
    WeightPlan plan(sizes(), [=](const WeightSpec& spec) -> Result<Format> {
      const bool other = spec.dims.size() < 2 || spec.role == WeightRole::kEmbedding ||
                         spec.role == WeightRole::kRouter;
      return other ? Format::kBf16 : format;
    });
    Layer layer;
    declare(plan, format, layer);
    ThreadPool pool(threads, PinThreads::kNo);

    const auto store = random_weights(plan, pool, 77);

    ASSERT_TRUE(store.ok()) << store.status().message();
    EXPECT_EQ(digest(*store), GetParam().digest) << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         LoadedStore,
                         testing::Values(StoreBits{Format::kF32, "5004af4b79046e66"},
                                         StoreBits{Format::kBf16, "b65a497f68683212"},
                                         StoreBits{Format::kFp8Block, "7df3af860912dd0b"},
                                         StoreBits{Format::kFp8BlockUe8m0, "a2c84d58a6acd4a5"},
                                         StoreBits{Format::kFp8Channel, "64ce5f5d5496cf18"},
                                         StoreBits{Format::kFp8Tensor, "19134b2ae3b07815"},
                                         StoreBits{Format::kNvfp4, "46c9fc984772a4a4"},
                                         StoreBits{Format::kInt8Channel, "0fe32e017d254832"},
                                         StoreBits{Format::kW4Fp8, "0fe1cf1200820131"}),
                         [](const auto& p) { return std::string(format_name(p.param.format)); });

INSTANTIATE_TEST_SUITE_P(Formats,
                         RandomStore,
                         testing::Values(StoreBits{Format::kF32, "e4aa2ec09ecde9f9"},
                                         StoreBits{Format::kBf16, "289010b78ff9bacf"},
                                         StoreBits{Format::kFp8Block, "5be3fcecda3ae4ed"},
                                         StoreBits{Format::kFp8BlockUe8m0, "25d76bcab83f95bc"},
                                         StoreBits{Format::kFp8Channel, "2e90aed73cb994ea"},
                                         StoreBits{Format::kFp8Tensor, "2e90aed73cb994ea"},
                                         StoreBits{Format::kNvfp4, "718de7353b201960"},
                                         StoreBits{Format::kInt8Channel, "4991a26d95634832"},
                                         StoreBits{Format::kW4Fp8, "f6374c1d471764bf"},
                                         StoreBits{Format::kW4a8Channel, "2b1c381bdb0f7c70"},
                                         StoreBits{Format::kW4a8Group, "bd4024240909146a"}),
                         [](const auto& p) { return std::string(format_name(p.param.format)); });

}  // namespace
}  // namespace fathom
