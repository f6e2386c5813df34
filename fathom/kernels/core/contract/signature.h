// The shape language. A contract states its operands as text that the compiler parses:
//
//   x[T,K]:bf16|f32 w[N,K]:bf16 bias?[N]:f32 -> y[T,N]:bf16|f32
//
// operands -> results. Each is name[axis,axis]:format|format. An axis is a name, an integer, or a
// sum, product or quotient (exact, rounding down) of them. The first use of a name binds it; every
// later use must agree. `?` marks an operand that may be left out; axes that it binds are then 0. A
// name on both sides is read and written in place. Limits are comparisons of axis expressions,
// separated by commas: "D%8==0, D<=16384". A formula is one axis expression, "2*T*N*K"; text that
// begins with '~' is words for people and is not evaluated. A mistake in the text is a compile
// error: the parser then calls a function that is not constexpr and is named for the mistake.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "fathom/formats/format.h"
#include "fathom/tensor/view.h"
#include "fathom/trace/record.h"

namespace fathom {

inline constexpr int kMaxSymbols = 20;
inline constexpr int kMaxLimits = 6;

namespace shape_language {

// Called only where the text is wrong; the name is the message.
void operand_name_expected();
void opening_bracket_expected();
void closing_bracket_expected();
void too_many_operands();
void too_many_axes();
void too_many_symbols();
void too_many_limits();
void unknown_format_name();
void axis_expected();
void expression_too_long();
void axis_is_not_in_the_signature();
void first_use_of_an_axis_must_be_its_name_alone();
void comparison_expected();
void closing_parenthesis_expected();
void formula_goes_on_where_it_should_end();

/// An axis expression as a small postfix program of at most kSteps steps.
template <size_t kSteps>
struct BasicExpr {
  static_assert(kSteps <= 15, "eval() has room for 8 operands");

  enum class Kind : uint8_t { kNumber, kSymbol, kAdd, kSub, kMul, kDiv, kMod };

  struct Step {
    Kind kind = Kind::kNumber;
    int64_t value = 0;  // number, or index of the symbol
  };

  std::array<Step, kSteps> steps{};
  int length = 0;
  std::string_view text;

  constexpr int64_t eval(const int64_t* symbols) const {
    int64_t stack[8] = {};
    int top = 0;
    for (int i = 0; i < length; ++i) {
      const Step& s = steps[static_cast<size_t>(i)];
      if (s.kind == Kind::kNumber) {
        stack[top++] = s.value;
      } else if (s.kind == Kind::kSymbol) {
        stack[top++] = symbols[s.value];
      } else {
        const int64_t b = stack[--top];
        int64_t& a = stack[top - 1];
        switch (s.kind) {
          case Kind::kAdd:
            a += b;
            break;
          case Kind::kSub:
            a -= b;
            break;
          case Kind::kMul:
            a *= b;
            break;
          case Kind::kDiv:
            a = b == 0 ? 0 : a / b;
            break;
          case Kind::kMod:
            a = b == 0 ? 0 : a % b;
            break;
          case Kind::kNumber:
          case Kind::kSymbol:
            break;
        }
      }
    }
    return stack[0];
  }

  constexpr bool is_symbol() const { return length == 1 && steps[0].kind == Kind::kSymbol; }
};

using Expr = BasicExpr<8>;

/// Longer than an axis; length 0 where the text is words.
using Formula = BasicExpr<15>;

struct Axis {
  Expr expr;
  bool binds = false;  ///< first use of a symbol
};

struct Operand {
  std::string_view name;
  bool optional = false;
  bool read = false;
  bool written = false;
  int rank = 0;
  std::array<Axis, kMaxRank> axes{};
  uint32_t formats = 0;  ///< bit i: Format i is accepted
};

struct Signature {
  std::array<Operand, kMaxOperands> operands{};
  int num_operands = 0;
  std::array<std::string_view, kMaxSymbols> symbols{};
  int num_symbols = 0;
  std::string_view text;

  constexpr int find_symbol(std::string_view name) const {
    for (int i = 0; i < num_symbols; ++i) {
      if (symbols[static_cast<size_t>(i)] == name) return i;
    }
    return -1;
  }
};

enum class Compare : uint8_t { kEq, kNe, kLe, kGe, kLt, kGt };

struct Limit {
  // Nearly every limit is `symbol cmp number`, or `symbol % 2^k cmp number`: a range of the
  // symbol's (low) bits, tested at launch without walking a postfix program. symbol < 0: neither
  // form.
  int symbol = -1;
  int64_t mask = -1;
  int64_t low = 0;
  uint64_t span = 0;

  Compare compare = Compare::kEq;
  Expr left;
  Expr right;
  std::string_view text;

  constexpr void find_simple_form() {
    using Kind = Expr::Kind;
    const auto kind = [](const Expr& e, size_t i) { return e.steps[i].kind; };
    if (right.length != 1 || kind(right, 0) != Kind::kNumber || kind(left, 0) != Kind::kSymbol ||
        compare == Compare::kNe)
      return;
    const bool remainder =
        left.length == 3 && kind(left, 1) == Kind::kNumber && kind(left, 2) == Kind::kMod;
    if (left.length != 1 && !remainder) return;
    if (remainder) {
      const int64_t modulus = left.steps[1].value;
      if (modulus <= 0 || (modulus & (modulus - 1)) != 0) return;
      mask = modulus - 1;
    }
    symbol = static_cast<int>(left.steps[0].value);
    const int64_t number = right.steps[0].value;
    int64_t high = INT64_MAX;
    low = INT64_MIN;
    if (compare == Compare::kEq || compare == Compare::kGe) low = number;
    if (compare == Compare::kGt) low = number + 1;
    if (compare == Compare::kEq || compare == Compare::kLe) high = number;
    if (compare == Compare::kLt) high = number - 1;
    span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  }

  constexpr bool holds(const int64_t* symbols) const {
    if (symbol >= 0) {
      const int64_t a = symbols[symbol] & mask;
      return static_cast<uint64_t>(a) - static_cast<uint64_t>(low) <= span;
    }
    return compares(symbols);
  }

  // Out of line: few limits are more than a range of one symbol.
  [[gnu::noinline]] constexpr bool compares(const int64_t* symbols) const {
    const int64_t a = left.eval(symbols);
    const int64_t b = right.eval(symbols);
    switch (compare) {
      case Compare::kEq:
        return a == b;
      case Compare::kNe:
        return a != b;
      case Compare::kLe:
        return a <= b;
      case Compare::kGe:
        return a >= b;
      case Compare::kLt:
        return a < b;
      case Compare::kGt:
        return a > b;
    }
    return false;
  }
};

struct LimitList {
  std::array<Limit, kMaxLimits> limits{};
  int size = 0;
  std::string_view text;
};

// Format names again, because format_info() is not constexpr; format_test.cc of this folder checks
// that both agree.
inline constexpr std::array<std::string_view, kNumFormats> kFormatNames = {
    "none",         "f32",
    "f16",          "bf16",
    "e4m3",         "e5m2",
    "ue8m0",        "i8",
    "u8",           "i32",
    "i64",          "bool",
    "f64",          "nvfp4",
    "mxfp4",        "mxfp8",
    "fp8_block",    "fp8_block_ue8m0",
    "fp8_group",    "fp8_group_ue8m0",
    "fp8_channel",  "fp8_tensor",
    "int8_channel", "w4a8_channel",
    "w4a8_group",   "w4_fp8"};

class Parser {
 public:
  constexpr Parser(std::string_view text, Signature& signature)
      : text_(text), signature_(signature) {}

  constexpr void parse_signature() {
    signature_.text = text_;
    bool results = false;
    for (skip(); !done(); skip()) {
      if (accept("->")) {
        results = true;
        continue;
      }
      parse_operand(results);
    }
  }

  constexpr LimitList parse_limits() {
    LimitList list;
    list.text = text_;
    for (skip(); !done(); skip()) {
      if (list.size == kMaxLimits) too_many_limits();
      Limit& limit = list.limits[static_cast<size_t>(list.size++)];
      const size_t begin = pos_;
      limit.left = parse_expr(false);
      limit.compare = parse_compare();
      limit.right = parse_expr(false);
      limit.text = text_.substr(begin, pos_ - begin);
      limit.find_simple_form();
      skip();
      accept(",");
    }
    return list;
  }

  constexpr Formula parse_formula() {
    Formula f;
    f.text = text_;
    if (text_.empty() || text_.front() == '~') return f;
    parse_sum(f, false);
    skip();
    if (!done()) formula_goes_on_where_it_should_end();
    return f;
  }

 private:
  constexpr bool done() const { return pos_ >= text_.size(); }

  constexpr char peek() const { return done() ? '\0' : text_[pos_]; }

  constexpr void skip() {
    while (!done() && peek() == ' ')
      ++pos_;
  }

  constexpr bool accept(std::string_view word) {
    skip();
    if (text_.substr(pos_, word.size()) != word) return false;
    pos_ += word.size();
    return true;
  }

  static constexpr bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }

  static constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

  constexpr std::string_view name() {
    skip();
    const size_t begin = pos_;
    while (!done() && is_name_char(peek()))
      ++pos_;
    return text_.substr(begin, pos_ - begin);
  }

  constexpr void parse_operand(bool result) {
    const std::string_view word = name();
    if (word.empty()) return operand_name_expected();
    // Nothing is skipped here: the word after a name that stands alone is the next operand.
    const bool optional = !done() && peek() == '?';
    if (optional) ++pos_;
    for (int i = 0; i < signature_.num_operands; ++i) {  // an in-place result names an operand
      Operand& known = signature_.operands[static_cast<size_t>(i)];
      if (known.name == word) {
        known.written = true;
        while (!done() && peek() != ' ')
          ++pos_;  // its axes and formats were given before
        return;
      }
    }
    if (signature_.num_operands == kMaxOperands) return too_many_operands();
    Operand& o = signature_.operands[static_cast<size_t>(signature_.num_operands++)];
    o.name = word;
    o.optional = optional;
    (result ? o.written : o.read) = true;
    if (!accept("[")) return opening_bracket_expected();
    while (!accept("]")) {
      if (done()) return closing_bracket_expected();
      if (o.rank == kMaxRank) return too_many_axes();
      Axis& axis = o.axes[static_cast<size_t>(o.rank++)];
      const int before = signature_.num_symbols;
      axis.expr = parse_expr(true);
      axis.binds = signature_.num_symbols > before;
      if (axis.binds && !axis.expr.is_symbol())
        return first_use_of_an_axis_must_be_its_name_alone();
      accept(",");
    }
    if (accept(":")) {
      do {
        o.formats |= parse_format_bit();
      } while (accept("|"));
    } else {
      unknown_format_name();
    }
  }

  constexpr uint32_t parse_format_bit() {
    const std::string_view word = name();
    for (size_t i = 1; i < kFormatNames.size(); ++i) {
      if (kFormatNames[i] == word) return 1u << i;
    }
    unknown_format_name();
    return 0;
  }

  constexpr Compare parse_compare() {
    if (accept("==")) return Compare::kEq;
    if (accept("!=")) return Compare::kNe;
    if (accept("<=")) return Compare::kLe;
    if (accept(">=")) return Compare::kGe;
    if (accept("<")) return Compare::kLt;
    if (accept(">")) return Compare::kGt;
    comparison_expected();
    return Compare::kEq;
  }

  constexpr Expr parse_expr(bool may_bind) {
    skip();
    Expr e;
    const size_t begin = pos_;
    parse_sum(e, may_bind);
    e.text = text_.substr(begin, pos_ - begin);
    while (!e.text.empty() && e.text.back() == ' ')
      e.text.remove_suffix(1);
    return e;
  }

  template <size_t kSteps>
  constexpr void emit(BasicExpr<kSteps>& e,
                      typename BasicExpr<kSteps>::Kind kind,
                      int64_t value = 0) {
    if (e.length == static_cast<int>(e.steps.size())) return expression_too_long();
    e.steps[static_cast<size_t>(e.length++)] = {kind, value};
  }

  template <size_t kSteps>
  constexpr void parse_sum(BasicExpr<kSteps>& e, bool may_bind) {
    using Kind = typename BasicExpr<kSteps>::Kind;
    parse_product(e, may_bind);
    for (;;) {
      if (accept("+")) {
        parse_product(e, may_bind);
        emit(e, Kind::kAdd);
      } else if (text_.substr(pos_, 2) != "->" && accept("-")) {
        parse_product(e, may_bind);
        emit(e, Kind::kSub);
      } else {
        return;
      }
    }
  }

  template <size_t kSteps>
  constexpr void parse_product(BasicExpr<kSteps>& e, bool may_bind) {
    using Kind = typename BasicExpr<kSteps>::Kind;
    parse_atom(e, may_bind);
    for (;;) {
      Kind kind{};
      if (accept("*")) {
        kind = Kind::kMul;
      } else if (accept("/")) {
        kind = Kind::kDiv;
      } else if (accept("%")) {
        kind = Kind::kMod;
      } else {
        return;
      }
      parse_atom(e, may_bind);
      emit(e, kind);
    }
  }

  template <size_t kSteps>
  constexpr void parse_atom(BasicExpr<kSteps>& e, bool may_bind) {
    using Kind = typename BasicExpr<kSteps>::Kind;
    skip();
    if (accept("(")) {
      parse_sum(e, may_bind);
      if (!accept(")")) closing_parenthesis_expected();
      return;
    }
    if (is_digit(peek())) {
      int64_t value = 0;
      while (is_digit(peek()))
        value = value * 10 + (text_[pos_++] - '0');
      return emit(e, Kind::kNumber, value);
    }
    const std::string_view word = name();
    if (word.empty()) return axis_expected();
    int index = signature_.find_symbol(word);
    if (index < 0) {
      if (!may_bind) return axis_is_not_in_the_signature();
      if (signature_.num_symbols == kMaxSymbols) return too_many_symbols();
      index = signature_.num_symbols++;
      signature_.symbols[static_cast<size_t>(index)] = word;
    }
    emit(e, Kind::kSymbol, index);
  }

  std::string_view text_;
  Signature& signature_;
  size_t pos_ = 0;
};

}  // namespace shape_language

using shape_language::Formula;
using shape_language::LimitList;
using shape_language::Signature;

/// Parses a signature at compile time.
consteval Signature parse_signature(std::string_view text) {
  Signature s;
  shape_language::Parser(text, s).parse_signature();
  return s;
}

/// Parses limits over the axes of `signature` at compile time.
consteval LimitList parse_limits(std::string_view text, const Signature& signature) {
  Signature s = signature;
  return shape_language::Parser(text, s).parse_limits();
}

/// Parses a formula over the axes of `signature` at compile time.
consteval Formula parse_formula(std::string_view text, const Signature& signature) {
  Signature s = signature;
  return shape_language::Parser(text, s).parse_formula();
}

/// The value of a formula for operands that fit the signature; axes of operands left out are 0.
int64_t evaluate(const Formula& formula, const Signature& signature, const View* const* operands);

/// The message of a failed check: which operand, which axis, what was found, what it clashes with.
/// Empty if the operands do fit. `operands` has one pointer an operand of the signature.
std::string explain_mismatch(const Signature& signature,
                             const LimitList& limits,
                             const View* const* operands);

}  // namespace fathom
