// The reference encodings of tests/golden/tokenizer: Hugging Face tokenizers 0.23.2.
#include <gtest/gtest.h>

#include "fathom/os/file.h"
#include "fathom/text/json.h"
#include "fathom/tokenizer/stream_decoder.h"
#include "fathom/tokenizer/tokenizer.h"
#include "tests/support/golden_tokenizer.h"

namespace fathom {
namespace {

struct Reference {
  std::string text;
  std::vector<int32_t> ids;
  std::string decoded;
  std::string decoded_skip_special;
};

class GoldenTokens : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string dir = golden_tokenizer(GetParam());
    auto tokenizer = Tokenizer::load(dir);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = *std::move(tokenizer);
    const auto text = read_file(dir + "/golden-tokens.json", 4 << 20);
    ASSERT_TRUE(text.ok()) << text.status().message();
    const auto json = parse_json(*text, {}, "golden-tokens.json");
    ASSERT_TRUE(json.ok()) << json.status().message();
    for (const Json& item : json->find("strings")->items()) {
      Reference reference;
      reference.text = item.find("text")->as_string();
      for (const Json& id : item.find("ids")->items()) {
        reference.ids.push_back(static_cast<int32_t>(id.as_int()));
      }
      reference.decoded = item.find("decoded")->as_string();
      reference.decoded_skip_special = item.find("decoded_skip_special")->as_string();
      references_.push_back(std::move(reference));
    }
    ASSERT_EQ(references_.size(), 219u);
  }

  Tokenizer tokenizer_;
  std::vector<Reference> references_;
};

TEST_P(GoldenTokens, EncodesLikeTheReference) {
  for (const Reference& r : references_) {
    EXPECT_EQ(tokenizer_.encode(r.text, {.added_tokens = AddedTokens::kParse}), r.ids) << r.text;
  }
}

TEST_P(GoldenTokens, DecodesLikeTheReference) {
  for (const Reference& r : references_) {
    EXPECT_EQ(tokenizer_.decode(r.ids), r.decoded);
    EXPECT_EQ(tokenizer_.decode(r.ids, SpecialTokens::kSkip), r.decoded_skip_special);
  }
}

TEST_P(GoldenTokens, StreamAddsUpToTheWholeDecoding) {
  for (const Reference& r : references_) {
    for (const auto special : {SpecialTokens::kKeep, SpecialTokens::kSkip}) {
      StreamDecoder decoder{tokenizer_, special};
      std::string joined;
      for (const int32_t id : r.ids)
        joined += decoder.push(id);
      joined += decoder.flush();
      EXPECT_EQ(joined, tokenizer_.decode(r.ids, special));
    }
  }
}

TEST_P(GoldenTokens, TextWithoutAddedTokensEncodesTheSameEitherWay) {
  int num_compared = 0;
  for (const Reference& r : references_) {
    bool has_added = false;
    for (const int32_t id : r.ids)
      has_added = has_added || tokenizer_.is_added(id);
    if (has_added) continue;
    EXPECT_EQ(tokenizer_.encode(r.text), r.ids);
    ++num_compared;
  }
  EXPECT_GT(num_compared, 100);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, GoldenTokens, ::testing::Values("tiny-v3", "deepseek-v3"));

}  // namespace
}  // namespace fathom
