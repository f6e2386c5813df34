// Damage that nobody thought of: cuts at every border, and flipped bits, from a seed that each
// failure prints. Whatever they hit, the program ends with a code of its own.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"
#include "tests/e2e/bad_input.h"

namespace fathom::e2e {
namespace {

namespace fs = std::filesystem;

#ifdef FATHOM_SANITIZED
constexpr int kFlips = 40;
constexpr size_t kEveryTensor = 8;
#else
constexpr int kFlips = 200;
constexpr size_t kEveryTensor = 1;
#endif

// Flips one bit among the first `length` bytes of the text.
std::string flipped(std::string text, size_t length, uint64_t seed) {
  Rng rng(seed);
  const uint32_t at = rng.next_below(static_cast<uint32_t>(std::min(length, text.size())));
  text[at] = static_cast<char>(text[at] ^ (1 << rng.next_below(8)));
  return text;
}

// The program may find that the damage changes nothing, or refuse the file; nothing else.
void expect_verdict(const ProgramResult& r, uint64_t seed) {
  EXPECT_THAT(r.exit_code, testing::AnyOf(0, 65, 78)) << "seed " << seed << ": " << r.err;
  if (r.exit_code == 0) return;
  EXPECT_THAT(r.err, testing::HasSubstr("fathom: error: ")) << "seed " << seed;
  EXPECT_EQ(r.out, "") << "seed " << seed;
}

void flip_bits_of(const std::string& name, size_t length) {
  const Scene scene;
  const std::string whole = read_all(scene.file(name));
  for (uint64_t seed = 1; seed <= kFlips; ++seed) {
    scene.put(name, flipped(whole, length, seed));

    expect_verdict(scene.run(), seed);
  }
}

TEST(BadInputSweep, EveryCutOfAShardIsRefused) {
  const Scene scene;
  const LooseSafetensors weights = scene.weights();
  const fs::path path = weights.path();
  const std::string whole = read_all(path);
  std::vector<size_t> cuts{0, 1, 7, 8, 9};
  size_t border = whole.size();
  for (size_t i = weights.tensors.size(); i-- > 0;) {
    border -= weights.tensors[i].data.size();
    if (i % kEveryTensor != 0) continue;
    cuts.push_back(border);
    cuts.push_back(border + 1);
  }
  for (const size_t cut : cuts) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, cut);

    const ProgramResult r = scene.fathom({"inspect", scene.model().string()});

    EXPECT_EQ(r.exit_code, 65) << cut << " bytes: " << r.err;
    EXPECT_THAT(r.err, testing::HasSubstr("model.safetensors: ")) << cut;
  }
}

TEST(BadInputSweep, FlippedBitsOfAHeaderAreRefusedOrMeanTheSame) {
  const LooseSafetensors weights = Scene().weights();
  flip_bits_of("model.safetensors", 8 + weights.header().size());
}

TEST(BadInputSweep, FlippedBitsOfAConfigAreRefusedOrRun) {
  flip_bits_of("config.json", SIZE_MAX);
}

TEST(BadInputSweep, FlippedBitsOfAGenerationConfigAreRefusedOrRun) {
  flip_bits_of("generation_config.json", SIZE_MAX);
}

TEST(BadInputSweep, FlippedBitsOfATokenizerAreRefusedOrRun) {
  flip_bits_of("tokenizer.json", SIZE_MAX);
}

}  // namespace
}  // namespace fathom::e2e
