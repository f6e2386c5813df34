#include "fathom/tokenizer/pretokenize.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>

#include "fathom/base/check.h"
#include "fathom/text/unicode_class.h"
#include "fathom/text/utf8.h"

namespace fathom {
namespace {

// A pattern or a type as a message quotes it.
std::string quoted(std::string_view text) {
  constexpr size_t kMaxBytes = 300;
  if (text.size() <= kMaxBytes) return str_cat('"', text, '"');
  return str_cat('"', utf8_lossy(text.substr(0, kMaxBytes)), "...\"");
}

// One code point of a piece. Past the end: length 0, class kOther, a value that no test matches.
struct Char {
  char32_t value = 0xFFFFFFFF;
  uint32_t length = 0;
  CharClass cls = CharClass::kOther;

  bool is_letter_or_mark() const { return cls == CharClass::kLetter || cls == CharClass::kMark; }

  bool is_punctuation_or_symbol() const {
    return cls == CharClass::kPunctuation || cls == CharClass::kSymbol;
  }

  bool is_space() const { return cls == CharClass::kSpace; }

  bool is_line_end() const { return value == '\r' || value == '\n'; }

  bool is_ascii_letter() const {
    return (value >= 'A' && value <= 'Z') || (value >= 'a' && value <= 'z');
  }

  bool is_ascii_punctuation() const { return value < 0x80 && is_punctuation_or_symbol(); }
};

Char char_at(std::string_view text, size_t offset) {
  if (offset >= text.size()) return {};
  const Utf8Step step = decode_utf8(text, offset);
  return {step.code_point, static_cast<uint32_t>(step.length), char_class(step.code_point)};
}

// The end of the longest run of fitting characters from `offset`.
template <class Predicate>
size_t run_end(std::string_view text, size_t offset, Predicate fits) {
  for (Char c = char_at(text, offset); c.length != 0 && fits(c); c = char_at(text, offset)) {
    offset += c.length;
  }
  return offset;
}

// [fits]+
template <class Predicate>
void isolate_runs(std::string_view piece, CutList& cuts, Predicate fits) {
  for (size_t offset = 0; offset < piece.size();) {
    const size_t end = run_end(piece, offset, fits);
    if (end > offset) {
      cuts.isolate(offset, end);
      offset = end;
    } else {
      offset += char_at(piece, offset).length;
    }
  }
}

// \s?[fits]+
template <class Predicate>
void isolate_runs_with_space(std::string_view piece, CutList& cuts, Predicate fits) {
  for (size_t offset = 0; offset < piece.size();) {
    const Char c = char_at(piece, offset);
    size_t end = offset;
    if (c.is_space()) end = run_end(piece, offset + c.length, fits);
    // The space may itself fit (U+3000); alone it is taken only without the optional one.
    if (end <= offset + c.length) end = run_end(piece, offset, fits);
    if (end > offset) cuts.isolate(offset, end);
    offset = std::max(end, offset + c.length);
  }
}

// [fits], one character at a time
template <class Predicate>
void isolate_each(std::string_view piece, CutList& cuts, Predicate fits) {
  for (size_t offset = 0; offset < piece.size();) {
    const Char c = char_at(piece, offset);
    if (fits(c)) cuts.isolate(offset, offset + c.length);
    offset += c.length;
  }
}

// \p{N}{1,3}: groups of three from the left.
void digit_groups(std::string_view piece, CutList& cuts) {
  constexpr int kGroup = 3;
  int num_digits = 0;
  for (size_t offset = 0; offset < piece.size();) {
    const Char c = char_at(piece, offset);
    const bool is_digit = c.cls == CharClass::kNumber;
    if (is_digit ? num_digits % kGroup == 0 : num_digits > 0) cuts.cut(offset);
    num_digits = is_digit ? num_digits + 1 : 0;
    offset += c.length;
  }
}

// [一-龥぀-ゟ゠-ヿ]+
void han_and_kana_runs(std::string_view piece, CutList& cuts) {
  isolate_runs(piece, cuts, [](Char c) {
    return (c.value >= 0x4E00 && c.value <= 0x9FA5) || (c.value >= 0x3040 && c.value <= 0x30FF);
  });
}

// The end of the match of the main expression of V3 that begins at `offset`, or `offset` if none
// does. The alternatives in their order, P standing for one of ASCII's punctuation and symbols:
//   1  P[A-Za-z]+
//   2  [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
//   3   ?[\p{P}\p{S}]+[\r\n]*
//   4  \s*[\r\n]+
//   5  \s+(?!\S)
//   6  \s+
size_t match_word(std::string_view text, size_t offset) {
  const Char c = char_at(text, offset);
  const size_t after = offset + c.length;
  const Char next = char_at(text, after);
  const auto is_letter_or_mark = [](Char x) { return x.is_letter_or_mark(); };

  if (c.is_ascii_punctuation() && next.is_ascii_letter()) {
    return run_end(text, after, [](Char x) { return x.is_ascii_letter(); });
  }
  if (c.is_letter_or_mark()) return run_end(text, offset, is_letter_or_mark);
  const bool may_lead = !c.is_line_end() && !c.is_punctuation_or_symbol();
  if (may_lead && next.is_letter_or_mark()) return run_end(text, after, is_letter_or_mark);

  if (c.is_punctuation_or_symbol() || (c.value == ' ' && next.is_punctuation_or_symbol())) {
    const size_t end = run_end(text, after, [](Char x) { return x.is_punctuation_or_symbol(); });
    return run_end(text, end, [](Char x) { return x.is_line_end(); });
  }
  if (!c.is_space()) return offset;

  size_t last = offset;            // where the last character of the white space begins
  size_t after_line_end = offset;  // behind its last line end, if there is one
  size_t end = offset;
  for (Char x = c; x.is_space(); x = char_at(text, end)) {
    last = end;
    end += x.length;
    if (x.is_line_end()) after_line_end = end;
  }
  if (after_line_end > offset) return after_line_end;
  // Alternative 5 leaves the last space to a word that follows; alternative 6 takes a single one.
  return end == text.size() || last == offset ? end : last;
}

void words(std::string_view piece, CutList& cuts) {
  for (size_t offset = 0; offset < piece.size();) {
    const size_t end = match_word(piece, offset);
    if (end > offset) {
      cuts.isolate(offset, end);
      offset = end;
    } else {
      offset += char_at(piece, offset).length;
    }
  }
}

struct Range {
  char32_t first;
  char32_t last;
};

template <size_t n>
bool in_ranges(const std::array<Range, n>& ranges, char32_t c) {
  const auto range =
      std::lower_bound(ranges.begin(), ranges.end(), c,
                       [](const Range& r, char32_t value) { return r.last < value; });
  return range != ranges.end() && range->first <= c;
}

// The letters with case that V2's second pattern lists, an older version of \p{Lu}, \p{Ll} and
// \p{Lt}.
// clang-format off
constexpr std::array<Range, 84> kCasedLetters = {{
    {0x0041, 0x005A}, {0x0061, 0x007A}, {0x00B5, 0x00B5}, {0x00C0, 0x00D6}, {0x00D8, 0x00F6},
    {0x00F8, 0x01BA}, {0x01BC, 0x01BF}, {0x01C4, 0x0293}, {0x0295, 0x02AF}, {0x0370, 0x0373},
    {0x0376, 0x0377}, {0x037B, 0x037D}, {0x037F, 0x037F}, {0x0386, 0x0386}, {0x0388, 0x038A},
    {0x038C, 0x038C}, {0x038E, 0x03A1}, {0x03A3, 0x03F5}, {0x03F7, 0x0481}, {0x048A, 0x052F},
    {0x0531, 0x0556}, {0x10A0, 0x10C5}, {0x13A0, 0x13F5}, {0x13F8, 0x13FD}, {0x1C90, 0x1CBA},
    {0x1CBD, 0x1CBF}, {0x1D00, 0x1D2B}, {0x1D6B, 0x1D77}, {0x1D79, 0x1D9A}, {0x1E00, 0x1F15},
    {0x1F18, 0x1F1D}, {0x1F20, 0x1F45}, {0x1F48, 0x1F4D}, {0x1F50, 0x1F57}, {0x1F59, 0x1F59},
    {0x1F5B, 0x1F5B}, {0x1F5D, 0x1F5D}, {0x1F5F, 0x1F7D}, {0x1F80, 0x1FB4}, {0x1FB6, 0x1FBC},
    {0x1FBE, 0x1FBE}, {0x1FC2, 0x1FC4}, {0x1FC6, 0x1FCC}, {0x1FD0, 0x1FD3}, {0x1FD6, 0x1FDB},
    {0x1FE0, 0x1FEC}, {0x1FF2, 0x1FF4}, {0x1FF6, 0x1FFC}, {0x2102, 0x2102}, {0x2107, 0x2107},
    {0x210A, 0x2113}, {0x2115, 0x2115}, {0x2119, 0x211D}, {0x2124, 0x2124}, {0x2126, 0x2126},
    {0x2128, 0x2128}, {0x212A, 0x212D}, {0x212F, 0x2134}, {0x2139, 0x2139}, {0x213C, 0x213F},
    {0x2145, 0x2149}, {0x214E, 0x214E}, {0x2183, 0x2184}, {0x2C00, 0x2C7B}, {0x2C7E, 0x2CE4},
    {0x2CEB, 0x2CEE}, {0x2CF2, 0x2CF3}, {0xA640, 0xA66D}, {0xA680, 0xA69B}, {0xA722, 0xA76F},
    {0xA771, 0xA787}, {0xA78B, 0xA78E}, {0xAB70, 0xABBF}, {0xFB00, 0xFB06}, {0xFB13, 0xFB17},
    {0xFF21, 0xFF3A}, {0xFF41, 0xFF5A}, {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
    {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
}};

// [!-/:-~！-／：-～‘-‟　-。]; the second range holds ASCII's letters too.
constexpr std::array<Range, 6> kSigns = {{
    {0x0021, 0x002F}, {0x003A, 0x007E}, {0x2018, 0x201F}, {0x3000, 0x3002}, {0xFF01, 0xFF0F},
    {0xFF1A, 0xFF5E},
}};

// clang-format on

// The second pattern of V2 as its tokenizer.json writes it: ranges of one or two characters without
// a dash.
std::string cased_letters_pattern() {
  std::string pattern = "\\s?[";
  for (const Range& range : kCasedLetters) {
    append_utf8(pattern, range.first);
    if (range.last > range.first + 1) pattern += '-';
    if (range.last > range.first) append_utf8(pattern, range.last);
  }
  return pattern + "]+";
}

// [\r\n]
void line_ends(std::string_view piece, CutList& cuts) {
  isolate_each(piece, cuts, [](Char c) { return c.is_line_end(); });
}

void cased_letters(std::string_view piece, CutList& cuts) {
  isolate_runs_with_space(piece, cuts, [](Char c) { return in_ranges(kCasedLetters, c.value); });
}

void signs(std::string_view piece, CutList& cuts) {
  isolate_runs_with_space(piece, cuts, [](Char c) { return in_ranges(kSigns, c.value); });
}

// \s+$, on pieces that hold line ends only if they are nothing else.
void trailing_space(std::string_view piece, CutList& cuts) {
  size_t after_text = 0;
  for (size_t offset = 0; offset < piece.size();) {
    const Char c = char_at(piece, offset);
    offset += c.length;
    if (!c.is_space()) after_text = offset;
  }
  cuts.cut(after_text);
}

// [一-龥ࠀ-一가-퟿]+: U+0800 to U+9FA5, and Hangul.
void han_and_wide_runs(std::string_view piece, CutList& cuts) {
  isolate_runs(piece, cuts, [](Char c) {
    return (c.value >= 0x0800 && c.value <= 0x9FA5) || (c.value >= 0xAC00 && c.value <= 0xD7FF);
  });
}

// The step called Digits, with individual_digits on.
void single_digits(std::string_view piece, CutList& cuts) {
  isolate_each(piece, cuts, [](Char c) { return c.cls == CharClass::kNumber; });
}

}  // namespace

// The known lists, and how a list of a file is compared with them.
struct PretokenizerSteps {
  struct Known {
    std::string type;     // "Split", "Digits"
    std::string pattern;  // of a Split
    Pretokenizer::Step step;
  };

  using List = std::vector<Known>;

  static List deepseek_v3() {
    return {
        {"Split", R"(\p{N}{1,3})", digit_groups},
        {"Split", "[一-龥\u3040-ゟ゠-ヿ]+", han_and_kana_runs},
        {"Split",
         "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
         "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
         "\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
         words},
    };
  }

  // DeepSeek LLM, DeepSeek-MoE, V2, V2-Lite and V2.5. The first Coder's list begins like it.
  static List deepseek_v2() {
    return {
        {"Split", "[\r\n]", line_ends},
        {"Split", cased_letters_pattern(), cased_letters},
        {"Split", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", signs},
        {"Split", "\\s+$", trailing_space},
        {"Split", "[一-龥\u0800-一가-\uD7FF]+", han_and_wide_runs},
        {"Digits", "", single_digits},
    };
  }

  static Status check_flag(const Json& step,
                           std::string_view key,
                           bool expected,
                           std::string_view what) {
    const Json* flag = step.find(key);
    if (flag != nullptr && flag->is_bool() && flag->as_bool() == expected) return {};
    return unsupported(
        str_cat(what, ": a pre-tokenizer step has another ", key, " than ", expected));
  }

  // The type of a step, or an error if it has none.
  static Result<std::string> type_of(const Json& step, std::string_view what) {
    const Json* type = step.find("type");
    if (type != nullptr && type->is_string()) return type->as_string();
    return corrupt(str_cat(what, ": a pre-tokenizer step has no type, expected a string"));
  }

  // The regular expression of a split; empty if there is none.
  static std::string_view pattern_of(const Json& step) {
    const Json* pattern = step.find("pattern");
    const Json* regex = pattern != nullptr ? pattern->find("Regex") : nullptr;
    return regex != nullptr && regex->is_string() ? std::string_view{regex->as_string()} : "";
  }

  static Status check_step(const Json& step, const Known& known, std::string_view what) {
    FATHOM_ASSIGN(const std::string type, type_of(step, what));
    if (type == "Split") {
      const std::string_view pattern = pattern_of(step);
      if (pattern.empty()) {
        return unsupported(str_cat(what, ": a pre-tokenizer split has no regular expression"));
      }
      if (known.type != type || pattern != known.pattern) {
        return unsupported(
            str_cat(what, ": the pre-tokenizer pattern ", quoted(pattern), " is not known here"));
      }
      FATHOM_TRY(check_flag(step, "invert", false, what));
      const Json* behavior = step.find("behavior");
      if (behavior == nullptr || !behavior->is_string() || behavior->as_string() != "Isolated") {
        return unsupported(str_cat(what, ": the split ", quoted(known.pattern),
                                   " has another behavior than Isolated"));
      }
      return {};
    }
    if (type != known.type) {
      return unsupported(
          str_cat(what, ": the pre-tokenizer step ", quoted(type), " is not known here"));
    }
    return check_flag(step, "individual_digits", true, what);
  }

  // The last step of every list: bytes in place of characters, without a pattern of its own.
  static Status check_byte_level(const Json& step, std::string_view what) {
    FATHOM_ASSIGN(const std::string type, type_of(step, what));
    if (type != "ByteLevel") {
      return unsupported(
          str_cat(what, ": the last pre-tokenizer step is ", quoted(type), ", expected ByteLevel"));
    }
    FATHOM_TRY(check_flag(step, "add_prefix_space", false, what));
    return check_flag(step, "use_regex", false, what);
  }
};

Result<Pretokenizer> Pretokenizer::from_json(const Json& pre_tokenizer, std::string_view what) {
  using Steps = PretokenizerSteps;
  const Json* steps = pre_tokenizer.find("pretokenizers");
  FATHOM_ASSIGN(const std::string type, Steps::type_of(pre_tokenizer, what));
  if (type != "Sequence") {
    return unsupported(
        str_cat(what, ": the pre-tokenizer is ", quoted(type), ", expected a Sequence"));
  }
  if (steps == nullptr || !steps->is_array() || steps->items().empty()) {
    return corrupt(str_cat(what, ": the pre-tokenizer sequence has no steps"));
  }
  const auto& items = steps->items();
  // The first pattern tells the lists apart; one that begins neither is reported below.
  Steps::List known = Steps::deepseek_v2();
  if (Steps::pattern_of(items.front()) != known.front().pattern) known = Steps::deepseek_v3();
  for (size_t i = 0; i < known.size() && i < items.size(); ++i) {
    FATHOM_TRY(Steps::check_step(items[i], known[i], what));
  }
  if (items.size() != known.size() + 1) {
    return unsupported(str_cat(what, ": the pre-tokenizer has ", items.size(), " steps, expected ",
                               known.size() + 1));
  }
  FATHOM_TRY(Steps::check_byte_level(items.back(), what));
  Pretokenizer result;
  for (const auto& entry : known)
    result.steps_.push_back(entry.step);
  return result;
}

void Pretokenizer::split(std::string_view text, std::vector<uint32_t>& ends) const {
  FATHOM_CHECK(text.size() < UINT32_MAX, "text of 4 GiB or more");
  ends.clear();
  if (text.empty()) return;
  ends.push_back(static_cast<uint32_t>(text.size()));
  std::vector<uint32_t> pieces;
  for (const Step step : steps_) {
    std::swap(pieces, ends);
    ends.clear();
    uint32_t begin = 0;
    for (const uint32_t end : pieces) {
      const std::string_view piece = text.substr(begin, end - begin);
      CutList cuts{begin, ends};
      step(piece, cuts);
      cuts.cut(piece.size());
      begin = end;
    }
  }
}

}  // namespace fathom
