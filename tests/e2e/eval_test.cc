// `fathom eval` as a gate: what it is asked to hold, it holds or refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/bad_input.h"

namespace fathom::e2e {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Eval : public testing::Test {
 protected:
  Eval() { std::ofstream(scene_.beside("ids.json")) << "{\"prompts\": [[1, 2, 3], [0, 42]]}"; }

  /// fathom eval MODEL --ids.
  ProgramResult with_ids(const std::vector<std::string>& more) const {
    std::vector<std::string> args{"eval", scene_.model().string(), "--ids",
                                  scene_.beside("ids.json").string()};
    args.insert(args.end(), more.begin(), more.end());
    return scene_.fathom(args);
  }

  Scene scene_;
};

TEST_F(Eval, BoundOfZeroIsABound) {
  const std::string other = scene_.beside("other").string();
  ASSERT_EQ(scene_.fathom({"quantize", scene_.model().string(), other, "-q"}).exit_code, 0);

  const ProgramResult same =
      with_ids({"--compare", scene_.model().string(), "--max-kl", "0", "--min-top1", "1"});
  const ProgramResult missed = with_ids({"--compare", other, "--max-kl", "0"});
  const ProgramResult unbound = with_ids({"--compare", other});

  EXPECT_EQ(same.exit_code, 0) << same.out << same.err;
  EXPECT_EQ(missed.exit_code, 1) << missed.out << missed.err;
  EXPECT_THAT(missed.out, HasSubstr("missed: mean KL"));
  EXPECT_EQ(unbound.exit_code, 0) << unbound.err;
}

TEST_F(Eval, TheOtherModelMayHaveOptionsOfItsOwn) {
  const std::string model = scene_.model().string();

  const ProgramResult differs =
      with_ids({"--compare", model, "--compare-options", "dtype=f32,kv-cache-dtype=f32",
                "--by-layer", "--max-kl", "0"});
  const ProgramResult wrong = with_ids({"--compare", model, "--compare-options", "dtype=f64"});
  const ProgramResult shapeless = with_ids({"--compare", model, "--compare-options", "f32"});

  EXPECT_EQ(differs.exit_code, 1) << differs.out << differs.err;
  EXPECT_THAT(differs.out, HasSubstr("| layer | attention | feed-forward |"));
  EXPECT_THAT(differs.out, HasSubstr("|     2 |  0.9999"));
  EXPECT_EQ(wrong.exit_code, 64);
  EXPECT_THAT(wrong.err, HasSubstr("--dtype is 'f64'"));
  EXPECT_EQ(shapeless.exit_code, 64);
  EXPECT_THAT(shapeless.err, HasSubstr("expected OPTION=VALUE"));
}

TEST_F(Eval, ExpertsThatReadFp8StayNearTheExactOnes) {
  const std::string model = shipped_model();
  const auto fp8 = [&](const std::string& max_kl) {
    return run_fathom({"eval", model, "--ids", scene_.beside("ids.json").string(), "--compare",
                       model, "--moe-activations", "fp8", "--compare-options",
                       "moe-activations=auto", "--max-kl", max_kl});
  };

  const ProgramResult near = fp8("0.1");
  const ProgramResult not_the_same = fp8("1e-7");
  const ProgramResult refused = with_ids({"--compare", model, "--moe-activations", "fp8"});

  EXPECT_EQ(near.exit_code, 0) << near.out << near.err;
  EXPECT_EQ(not_the_same.exit_code, 1) << not_the_same.out << not_the_same.err;
  EXPECT_EQ(refused.exit_code, 78) << refused.out;
  EXPECT_THAT(refused.err, HasSubstr("hint: use --moe-activations auto"));
}

TEST_F(Eval, BoundsAreFiniteNumbers) {
  for (const auto& [flag, value] :
       std::vector<std::pair<std::string, std::string>>{{"--max-kl", "nan"},
                                                        {"--max-kl", "inf"},
                                                        {"--max-kl", "1e400"},
                                                        {"--max-kl", "-1"},
                                                        {"--min-top1", "nan"},
                                                        {"--min-top1", "1.5"}}) {
    const ProgramResult r = with_ids({"--compare", scene_.model().string(), flag, value});

    EXPECT_EQ(r.exit_code, 64) << flag << " " << value << ": " << r.err;
    EXPECT_THAT(r.err, HasSubstr(flag));
    EXPECT_EQ(r.out, "") << flag;
  }
}

TEST_F(Eval, FlagsThatWouldDoNothingAreRefused) {
  const std::string model = scene_.model().string();
  const std::string ids = scene_.beside("ids.json").string();
  const std::string logits = scene_.beside("logits").string();
  const std::string text = FATHOM_SOURCE_DIR "/README.md";

  const struct {
    std::vector<std::string> flags;
    const char* says;
  } cases[] = {
      {{"--ppl", text, "--max-kl", "1"}, "--max-kl is a bound of a comparison"},
      {{"--ids", ids, "--logits-out", logits, "--min-top1", "0.5"},
       "--min-top1 is a bound of a comparison"},
      {{"--ppl", text, "--compare", ""}, "--compare: is empty"},
      {{"--ppl", "", "--ids", ids, "--logits-out", logits}, "--ppl: is empty"},
      {{"--ids", ids, "--logits-out", ""}, "--logits-out: is empty"},
      {{"--ppl", text, "--logits-out", logits}, "not those of --ppl"},
      {{"--ids", ids, "--compare", model, "--logits-out", logits}, "not those of --compare"},
      {{"--vectors", ids, "--logits-out", logits}, "not those of --vectors"},
      {{"--ids", ids}, "--ids needs --logits-out"},
      {{"--ppl", text, "--by-layer"}, "--by-layer belongs to --compare"},
      {{"--ppl", text, "--compare-options", "dtype=f32"}, "--compare-options belongs to"},
      {{"--ids", ids, "--ppl", text}, "eval needs one of"},
  };

  for (const auto& c : cases) {
    std::vector<std::string> args{"eval", model};
    args.insert(args.end(), c.flags.begin(), c.flags.end());
    const ProgramResult r = scene_.fathom(args);

    EXPECT_EQ(r.exit_code, 64) << c.says << ": " << r.err;
    EXPECT_THAT(r.err, HasSubstr(c.says));
    EXPECT_FALSE(fs::exists(logits)) << c.says;
  }
}

TEST_F(Eval, LogitsThatAreNotFiniteAreNotWritten) {
  LooseSafetensors weights = scene_.weights();
  std::string& norm = weights["model.norm.weight"].data;
  for (size_t i = 0; i < norm.size(); i += 2)
    norm.replace(i, 2, "\xC0\x7F");  // NaN in bf16
  weights.write();

  const ProgramResult r = with_ids({"--logits-out", scene_.beside("logits").string()});

  EXPECT_EQ(r.exit_code, 70) << r.err;
  EXPECT_THAT(r.err, HasSubstr("ids.json: prompts[0]: the logits of position 0 are not finite"));
  EXPECT_FALSE(fs::exists(scene_.beside("logits")));
  EXPECT_FALSE(fs::exists(scene_.beside("logits.partial")));
}

TEST_F(Eval, VectorsAreThoseOfFloat32UnlessAnotherRunIsAskedFor) {
  const std::string golden = FATHOM_SOURCE_DIR "/tests/golden/micro-v3/golden.json";
  const auto vectors = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args{"eval", scene_.model().string(), "--vectors", golden};
    args.insert(args.end(), more.begin(), more.end());
    return scene_.fathom(args);
  };

  const ProgramResult usual = vectors({});
  const ProgramResult chosen = vectors({"--dtype", "bf16"});
  const ProgramResult bound = vectors({"--max-kl", "0.1"});
  scene_.quantize("fp8_block");
  const ProgramResult quantised = vectors({});

  EXPECT_EQ(usual.exit_code, 0) << usual.out << usual.err;
  EXPECT_THAT(usual.out, HasSubstr("activations f32, KV cache f32: "));
  EXPECT_THAT(usual.err, HasSubstr("--vectors: float32 for activations, KV cache and indexer"));
  for (const ProgramResult& r : {chosen, bound, quantised}) {
    EXPECT_THAT(r.out, HasSubstr("activations bf16, KV cache bf16: ")) << r.err;
    EXPECT_THAT(r.err, testing::Not(HasSubstr("float32")));
  }
}

TEST_F(Eval, ModelOfAnotherVocabularyIsNamedWithBothSizes) {
  const std::string other = scene_.beside("other").string();
  ASSERT_EQ(scene_.fathom({"synth", other, "-q"}).exit_code, 0);

  const ProgramResult r = with_ids({"--compare", other});

  EXPECT_EQ(r.exit_code, 64) << r.err;
  EXPECT_THAT(r.err, HasSubstr("--compare: the vocabulary of " + other +
                               " has 320 tokens, "
                               "expected 4096"));
}

}  // namespace
}  // namespace fathom::e2e
