#include "fathom/api/options.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <set>

namespace fathom {
namespace {

EngineOptions valid_options() {
  EngineOptions o;
  o.model = "dir";
  return o;
}

// The message of an error names the flag and the value.
void expect_refused(const Status& status, std::string_view flag, std::string_view value) {
  ASSERT_FALSE(status.ok()) << flag << " " << value;
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(str_cat("--", flag)), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(value), std::string::npos) << status.message();
}

TEST(EngineOptions, DefaultsAreValidAndAsDocumented) {
  const EngineOptions o = valid_options();

  EXPECT_TRUE(validate(o).ok()) << validate(o).message();
  EXPECT_EQ(o.block_size, 64);
  EXPECT_EQ(o.max_num_seqs, 8);
  EXPECT_EQ(o.max_num_batched_tokens, 512);
  EXPECT_EQ(o.max_queue, 1024);
  EXPECT_EQ(o.memory_fraction, 0.9);
  EXPECT_TRUE(o.prefix_cache);
  EXPECT_FALSE(o.batch_invariant);
}

TEST(EngineOptions, EveryFlagAndAliasIsUnique) {
  std::set<std::string> names;
  for (const OptionInfo& row : option_table()) {
    EXPECT_TRUE(names.insert(std::string(row.flag)).second) << row.flag;
    EXPECT_FALSE(row.help.empty());
    EXPECT_NE(row.uses & kServe, 0u) << "an embedding program may set every option";
    std::string word;
    for (char c : str_cat(row.aliases, " ")) {
      if (c != ' ') {
        word += c;
        continue;
      }
      if (!word.empty()) {
        EXPECT_TRUE(names.insert(word).second) << word;
        EXPECT_EQ(find_option(word), &row);
      }
      word.clear();
    }
  }
}

TEST(EngineOptions, EveryValueThatIsPrintedCanBeSet) {
  EngineOptions source = valid_options();
  source.threads = 3;
  source.dtype = Format::kF32;
  source.isa = Isa::kAvx2;
  source.moe = MoeStrategy::kSorted;
  source.moe_activations = MoeActivations::kFp8;
  source.activations = Nvfp4Inputs::kQuantised;
  source.device = {.kind = DeviceKind::kCuda, .ordinal = 3};
  source.max_model_len = 777;
  source.memory_fraction = 0.123456789;
  source.prefix_cache = false;
  source.seed = UINT64_MAX;
  source.pins = {{"q_b_proj", "portable"}, {"rmsnorm", "avx2"}};
  EngineOptions copy;
  for (const OptionInfo& row : option_table()) {
    const Status status = set_option(copy, row.flag, row.get(source));
    EXPECT_TRUE(status.ok()) << status.message();
  }

  EXPECT_EQ(options_json(copy), options_json(source));
  EXPECT_EQ(copy.memory_fraction, source.memory_fraction);
  EXPECT_EQ(copy.seed, source.seed);
}

struct CountCase {
  const char* flag;
  int64_t low;
  int64_t high;
};

TEST(EngineOptions, CountsAreCheckedAtEveryBorder) {
  for (const CountCase& c :
       {CountCase{"threads", 0, 1024}, CountCase{"block-size", 1, 1024},
        CountCase{"max-model-len", 0, 1 << 30}, CountCase{"max-num-seqs", 1, 65'536},
        CountCase{"max-num-batched-tokens", 1, 1 << 30}, CountCase{"prefill-chunk", 0, 1 << 30},
        CountCase{"max-queue", 1, 1 << 20}, CountCase{"attention-key-chunk", 1, 1 << 20}}) {
    EngineOptions o = valid_options();
    for (int64_t good : {c.low, c.low + 1, c.high}) {
      EXPECT_TRUE(set_option(o, c.flag, str_cat(good)).ok()) << c.flag << " " << good;
    }
    const std::string before = options_json(o);
    for (int64_t bad : {c.low - 1, c.high + 1, int64_t{-1} - c.low, INT64_MIN}) {
      expect_refused(set_option(o, c.flag, str_cat(bad)), c.flag, str_cat(bad));
    }
    for (const char* bad : {"", "x", "1.5", "0x10", " 1", "1 ", "+1", "9223372036854775808",
                            "99999999999999999999", "nan", "k", "9007199254740993m"}) {
      expect_refused(set_option(o, c.flag, bad), c.flag, bad);
    }
    EXPECT_EQ(options_json(o), before) << "a refused value changes nothing";
  }
}

TEST(EngineOptions, CountsTakeKAndM) {
  EngineOptions o = valid_options();

  EXPECT_TRUE(set_option(o, "--max-model-len", "8k").ok());
  EXPECT_EQ(o.max_model_len, 8192);
  EXPECT_TRUE(set_option(o, "-c", "1M").ok());
  EXPECT_EQ(o.max_model_len, 1 << 20);
}

TEST(EngineOptions, RealsAreCheckedAtEveryBorder) {
  EngineOptions o = valid_options();
  for (const char* good : {"0.5", "1", "1e-9"}) {
    EXPECT_TRUE(set_option(o, "memory-fraction", good).ok()) << good;
  }
  for (const char* bad : {"0", "-0.5", "1.0001", "nan", "inf", "-inf", "", "half"}) {
    expect_refused(set_option(o, "memory-fraction", bad), "memory-fraction", bad);
  }
  for (const char* flag : {"queue-timeout", "request-timeout"}) {
    EXPECT_TRUE(set_option(o, flag, "0").ok());
    for (const char* bad : {"-1", "nan", "inf", "1e9"}) {
      EXPECT_FALSE(set_option(o, flag, bad).ok()) << bad;
    }
  }
  EngineOptions direct = valid_options();
  direct.memory_fraction = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(validate(direct).ok());
}

TEST(EngineOptions, ChoicesAreChecked) {
  EngineOptions o = valid_options();
  for (const char* good : {"auto", "bf16", "f32"})
    EXPECT_TRUE(set_option(o, "dtype", good).ok());
  for (const char* bad : {"", "f16", "BF16", "bf16|f32", "auto|"}) {
    expect_refused(set_option(o, "dtype", bad), "dtype", bad);
  }
  EXPECT_TRUE(set_option(o, "kv-cache-dtype", "fp8_e4m3").ok());
  EXPECT_FALSE(set_option(o, "moe", "scattered").ok());
  EXPECT_FALSE(set_option(o, "moe", "chosen").ok()) << "no caller may ask for it";
  EXPECT_FALSE(set_option(o, "attention", "mha").ok());
  EXPECT_TRUE(set_option(o, "isa", "portable").ok());
}

TEST(EngineOptions, SwitchesTakeNoValueOrAWord) {
  EngineOptions o = valid_options();
  EXPECT_TRUE(set_option(o, "prefix-cache", "off").ok());
  EXPECT_FALSE(o.prefix_cache);
  EXPECT_TRUE(set_option(o, "prefix-cache", "").ok());
  EXPECT_TRUE(o.prefix_cache);
  EXPECT_TRUE(set_option(o, "deterministic", "true").ok());
  EXPECT_TRUE(o.batch_invariant);
  EXPECT_FALSE(set_option(o, "deterministic", "maybe").ok());
}

TEST(EngineOptions, UnknownFlagsAreNamed) {
  EngineOptions o = valid_options();

  EXPECT_NE(set_option(o, "--max-modellen", "1").message().find("--max-modellen"),
            std::string::npos);
  EXPECT_EQ(find_option(""), nullptr);
  EXPECT_EQ(find_option("---"), nullptr);
}

TEST(EngineOptions, KnobsThatContradictEachOtherAreRefused) {
  const auto refused = [](void (*change)(EngineOptions&)) {
    EngineOptions o = valid_options();
    change(o);
    return !validate(o).ok();
  };
  EXPECT_TRUE(refused([](EngineOptions& o) { o.model.clear(); }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.preset = "deepseek-v3"; }));
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.model.clear();
    o.preset = "deepseek-v3";
  }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.format = PresetFormatName::kNvfp4; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.layers = 3; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.dummy_seed = 3; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.max_num_batched_tokens = 7; }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.block_size = 48; }));
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.batch_invariant = true;
    o.attention = AttentionChoice::kFusedRope;
  }));
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.activations = Nvfp4Inputs::kQuantised;
    o.moe_activations = MoeActivations::kFp8;
  }));
  EXPECT_FALSE(refused([](EngineOptions& o) {
    o.batch_invariant = true;
    o.device.kind = DeviceKind::kCuda;
  }));
  EXPECT_FALSE(refused([](EngineOptions& o) {
    o.model.clear();
    o.preset = "deepseek-v3";
    o.dummy_weights = true;
    o.format = PresetFormatName::kNvfp4;
  }));
}

TEST(EngineOptions, SeedsAreNumbersOrRandom) {
  EngineOptions o = valid_options();

  EXPECT_TRUE(set_option(o, "seed", "18446744073709551615").ok());
  EXPECT_EQ(o.seed, UINT64_MAX);
  EXPECT_TRUE(set_option(o, "seed", "random").ok());
  EXPECT_FALSE(o.seed.has_value());
  for (const char* bad : {"", "-1", "18446744073709551616", "1.0", "x"}) {
    EXPECT_FALSE(set_option(o, "seed", bad).ok()) << bad;
    EXPECT_FALSE(set_option(o, "dummy-seed", bad).ok()) << bad;
  }
}

TEST(EngineOptions, PinsAreCollected) {
  EngineOptions o = valid_options();

  EXPECT_TRUE(set_option(o, "pin", "a=b").ok());
  EXPECT_TRUE(set_option(o, "pin", "c=d").ok());
  EXPECT_TRUE(set_option(o, "pin", "e=f,g=h").ok());
  EXPECT_EQ(o.pins, (Pins{{"a", "b"}, {"c", "d"}, {"e", "f"}, {"g", "h"}}));
  EXPECT_EQ(find_option("pin")->get(o), "a=b,c=d,e=f,g=h");
  for (const char* bad : {"a", "=b", "a="})
    EXPECT_FALSE(set_option(o, "pin", bad).ok());
}

TEST(EngineOptions, DevicesHaveNumbers) {
  EngineOptions o = valid_options();

  EXPECT_TRUE(set_option(o, "device", "cuda:5").ok());
  EXPECT_EQ(o.device.kind, DeviceKind::kCuda);
  EXPECT_EQ(o.device.ordinal, 5);
  EXPECT_TRUE(set_option(o, "device", "cuda").ok());
  EXPECT_EQ(o.device.ordinal, 0);
  EXPECT_EQ(find_option("device")->get(o), "cuda");
  EXPECT_TRUE(set_option(o, "device", "cpu").ok());
  EXPECT_EQ(o.device.kind, DeviceKind::kCpu);
  for (const char* bad :
       {"", "gpu", "cpu:0", "cuda:", "cuda:-1", "cuda:x", "cuda:1,2", "CUDA", "cuda:99999999999"}) {
    expect_refused(set_option(o, "device", bad), "device", bad);
  }
}

// One list: `--format` takes what a preset can be stored in.
TEST(EngineOptions, EveryFormatOfAPresetCanBeAskedFor) {
  const std::vector<std::string_view> names = preset_format_names();
  for (std::string_view name : names) {
    EngineOptions o;
    EXPECT_TRUE(set_option(o, "format", name).ok()) << name;
    EXPECT_EQ(preset_format_name(*o.format), name);
  }

  EXPECT_EQ(find_option("format")->words().size(), names.size() + 1) << "and none";
}

TEST(EngineOptions, NearWordsAreOffered) {
  EngineOptions o = valid_options();

  EXPECT_EQ(set_option(o, "as", "deepseek-r1-nvfp").message().substr(0, 42),
            "--as is 'deepseek-r1-nvfp', expected one o");
  EXPECT_NE(
      set_option(o, "as", "deepseek-r1-nvfp").message().find("\nhint: did you mean deepseek-r1-nv"),
      std::string::npos);
  EXPECT_EQ(
      set_option(o, "kv-pool", "requst").message(),
      "--kv-pool is 'requst', expected one of request|remaining\nhint: did you mean request?");
}

TEST(EngineOptions, RowsSayWhatTheyTake) {
  EXPECT_EQ(find_option("block-size")->value(), "N");
  EXPECT_EQ(find_option("block-size")->expected(), "an integer from 1 to 1024");
  EXPECT_EQ(find_option("block-size")->environment(), "FATHOM_BLOCK_SIZE");
  EXPECT_EQ(find_option("dtype")->value(), "auto|bf16|f32");
  EXPECT_EQ(find_option("prefix-cache")->value(), "");
  EXPECT_EQ(find_option("cuda-graphs")->value(), "on|off");
}

TEST(EngineOptions, GroupsStandTogether) {
  std::set<OptionGroup> seen;
  const std::span<const OptionInfo> rows = option_table();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && rows[i].group == rows[i - 1].group) continue;
    EXPECT_TRUE(seen.insert(rows[i].group).second) << rows[i].flag;
  }
}

}  // namespace
}  // namespace fathom
