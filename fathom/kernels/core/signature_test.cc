#include "fathom/kernels/core/signature.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

constexpr Signature kGemm =
    parse_signature("x[T,K]:bf16|f32 w[N,K]:nvfp4 b?[N]:f32 -> y[T,N]:bf16");
constexpr LimitList kNone = parse_limits("", kGemm);
constexpr LimitList kLimited = parse_limits("K%16==0, N<=2*K", kGemm);

std::string explain(const LimitList& limits, View x, View w, View b, View y) {
  const View* operands[] = {&x, &w, &b, &y};
  return explain_mismatch(kGemm, limits, operands);
}

View view(std::initializer_list<int64_t> dims, Format f) {
  return make_view(nullptr, dims, f);
}

TEST(Signature, ParsesOperandsAxesAndFormats) {
  ASSERT_EQ(kGemm.num_operands, 4);
  EXPECT_EQ(kGemm.num_symbols, 3);
  EXPECT_EQ(kGemm.operands[0].name, "x");
  EXPECT_TRUE(kGemm.operands[2].optional);
  EXPECT_TRUE(kGemm.operands[3].written);
  EXPECT_FALSE(kGemm.operands[3].read);
}

TEST(Signature, MarksAResultNamedTwiceAsInPlace) {
  constexpr Signature s = parse_signature("x[T,D]:f32 h[T,D]:f32 -> y[T,D]:f32 h[T,D]");

  EXPECT_EQ(s.num_operands, 3);
  EXPECT_TRUE(s.operands[1].read);
  EXPECT_TRUE(s.operands[1].written);
}

TEST(Signature, AcceptsOperandsThatAgree) {
  EXPECT_EQ(explain(kLimited, view({3, 32}, Format::kBf16), view({64, 32}, Format::kNvfp4), View{},
                    view({3, 64}, Format::kBf16)),
            "");
}

TEST(Signature, NamesTheAxisThatDisagrees) {
  EXPECT_EQ(explain(kNone, view({3, 32}, Format::kBf16), view({64, 48}, Format::kNvfp4), View{},
                    view({3, 64}, Format::kBf16)),
            "w[K] is 48 but x[T,K] has K=32");
}

TEST(Signature, NamesTheFormatsThatWouldFit) {
  EXPECT_EQ(explain(kNone, view({3, 32}, Format::kI8), view({64, 32}, Format::kNvfp4), View{},
                    view({3, 64}, Format::kBf16)),
            "x is i8 but must be f32 or bf16");
}

TEST(Signature, NamesAMissingOperand) {
  EXPECT_EQ(explain(kNone, View{}, view({64, 32}, Format::kNvfp4), View{}, View{}), "x is missing");
}

TEST(Signature, NamesTheLimitThatFails) {
  EXPECT_EQ(explain(kLimited, view({3, 24}, Format::kBf16), view({8, 24}, Format::kNvfp4), View{},
                    view({3, 8}, Format::kBf16)),
            "limit K%16==0 does not hold: K%16 is 8");
}

TEST(Signature, RefusesALastAxisWithGaps) {
  View x = view({3, 32}, Format::kBf16);
  x.strides[1] = 2;

  EXPECT_EQ(explain(kNone, x, view({64, 32}, Format::kNvfp4), View{}, view({3, 64}, Format::kBf16)),
            "x[T,K] must be contiguous in its last axis, but its stride is 2");
}

TEST(Signature, EvaluatesSumsProductsAndRemainders) {
  constexpr Signature s =
      parse_signature("a[N]:f32 b[D]:f32 c[N*(D+2)]:f32 d[N*D+2]:f32 -> e[D/2]:f32");
  const int64_t symbols[] = {3, 5};

  EXPECT_EQ(s.operands[2].axes[0].expr.eval(symbols), 21);
  EXPECT_EQ(s.operands[3].axes[0].expr.eval(symbols), 17);
  EXPECT_EQ(s.operands[4].axes[0].expr.eval(symbols), 2);
}

TEST(Signature, FormatNamesAgreeWithTheFormatTable) {
  for (int i = 1; i < kNumFormats; ++i) {
    EXPECT_EQ(shape_language::kFormatNames[static_cast<size_t>(i)],
              format_name(static_cast<Format>(i)));
  }
}

}  // namespace
}  // namespace fathom
