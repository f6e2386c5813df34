#include "fathom/kernels/core/contract/signature.h"

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

TEST(Signature, MarksEveryResultThatIsNamedTwice) {
  constexpr Signature s = parse_signature("q[T]:f32 k?[T]:f32 p[T]:i32 -> q k z[T]:f32");

  EXPECT_TRUE(s.operands[0].written && s.operands[0].read);
  EXPECT_TRUE(s.operands[1].written && s.operands[1].read && s.operands[1].optional);
  EXPECT_FALSE(s.operands[2].written);
  EXPECT_TRUE(s.operands[3].written && !s.operands[3].read);
}

TEST(Signature, MarksAResultNamedTwiceAsInPlace) {
  constexpr Signature s = parse_signature("x[T,D]:f32 h[T,D]:f32 -> y[T,D]:f32 h[T,D]");

  EXPECT_EQ(s.num_operands, 3);
  EXPECT_TRUE(s.operands[1].read);
  EXPECT_TRUE(s.operands[1].written);
}

TEST(Signature, FormulasAreEvaluatedAtTheAxesOfACall) {
  static constexpr Signature s = parse_signature("x[A,B,C,D]:f32 b?[E]:f32 -> x");
  static constexpr Formula f = parse_formula("2 * A*B*C*D + 3*(A+E)", s);
  const View x = view({3, 5, 7, 11}, Format::kF32);
  const View b = view({13}, Format::kF32);
  const View none;

  const View* with[] = {&x, &b};
  EXPECT_EQ(evaluate(f, s, with), 2 * 3 * 5 * 7 * 11 + 3 * (3 + 13));
  const View* without[] = {&x, &none};
  EXPECT_EQ(evaluate(f, s, without), 2 * 3 * 5 * 7 * 11 + 3 * 3) << "axes left out are 0";
}

TEST(Signature, FormulasInWordsAreKeptAndNotEvaluated) {
  static constexpr Signature s = parse_signature("x[A]:f32 -> x");
  static constexpr Formula words = parse_formula("~as many as there are keys", s);

  EXPECT_EQ(words.length, 0);
  EXPECT_EQ(words.text, "~as many as there are keys");
  EXPECT_EQ(parse_formula("", s).length, 0);
}

TEST(Signature, AxesBoundByAnAbsentOperandAreZero) {
  static constexpr Signature s = parse_signature("q[T,N]:f32 k?[T,M]:f32 c?[M]:f32 -> q");
  static constexpr LimitList fits = parse_limits("M<=N", s);
  const View q = view({2, 4}, Format::kF32);
  const View k = view({2, 3}, Format::kF32);
  const View c = view({3}, Format::kF32);
  const View none;

  EXPECT_TRUE(s.operands[1].axes[1].binds);
  const View* without[] = {&q, &none, &none};
  EXPECT_EQ(explain_mismatch(s, fits, without), "");
  const View* with[] = {&q, &k, &c};
  EXPECT_EQ(explain_mismatch(s, fits, with), "");
  const View* half[] = {&q, &none, &c};
  EXPECT_EQ(explain_mismatch(s, fits, half), "c[M] is 3 but M is 0");
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
