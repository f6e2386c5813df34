#include "fathom/layers/attention/mla.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

using testing::HasSubstr;

AttentionForm form_of(const AttentionCall& call, const AttentionOptions& options = {}) {
  return attention_rows()[static_cast<size_t>(choose_attention(call, options))].form;
}

TEST(AttentionTable, DecodeIsAbsorbed) {
  EXPECT_EQ(form_of({.decode = true}), AttentionForm::kAbsorbed);
  EXPECT_EQ(form_of({.decode = true}, {.fused_rope = true}), AttentionForm::kFusedRope);
}

TEST(AttentionTable, PrefillIsExpandedAndReadsKeysBackWhenItMust) {
  const AttentionCall cold{.exact_cache = true, .num_tokens = 1024};
  EXPECT_EQ(form_of(cold), AttentionForm::kMha);
  AttentionCall call = cold;
  call.num_tokens = 1025;
  EXPECT_EQ(form_of(call), AttentionForm::kChunked) << "more than one chunk";
  call = cold;
  call.has_prefix = true;
  EXPECT_EQ(form_of(call), AttentionForm::kChunked) << "keys in the cache";
  call = cold;
  call.exact_cache = false;
  EXPECT_EQ(form_of(call), AttentionForm::kChunked) << "a cache that rounds";
}

TEST(AttentionTable, OneFormServesEveryPhaseWhenItIsFixed) {
  const AttentionOptions fixed{.always_absorbed = true, .fused_rope = true};
  EXPECT_EQ(form_of({.decode = true}, fixed), AttentionForm::kAbsorbed);
  EXPECT_EQ(form_of({.exact_cache = true, .num_tokens = 3}, fixed), AttentionForm::kAbsorbed);
  EXPECT_EQ(form_of({.has_prefix = true}, fixed), AttentionForm::kAbsorbed);
}

TEST(AttentionTable, RowOfAFormIsItsPlaceInTheTable) {
  for (size_t i = 0; i < attention_rows().size(); ++i) {
    EXPECT_EQ(attention_row(attention_rows()[i].form).index, static_cast<int16_t>(i));
  }
}

TEST(AttentionTable, ExplainMarksTheChosenRow) {
  const std::string text = explain_attention({.has_prefix = true}, {});
  EXPECT_THAT(text, HasSubstr("mha (prefill without prefix, at most one chunk of tokens, cache in "
                              "the format of the activations): does not apply"));
  EXPECT_THAT(text, HasSubstr("chunked (every other prefill): chosen"));
}

TEST(MlaAttend, RefusesAChunkThatSplitsPages) {
  Exec ex;
  Arena arena;
  ex.backend = Backend::kDry;
  ex.activations = &arena;
  ex.scratch = &arena;
  MlaContext m;
  m.options.prefill_chunk = 100;
  const View cache = make_view(nullptr, {4, 64, 48}, Format::kBf16);
  const View x = make_view(nullptr, {0, 32}, Format::kBf16);

  const Status status = mla_attend(ex, m, {}, {}, {.rows = cache, .slots = {}}, x, x);

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("prefill chunk is 100 keys, expected a multiple of the page size 64"));
}

}  // namespace
}  // namespace fathom
