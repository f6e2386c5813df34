// The hand-written scanners against PCRE2 with the same patterns: a property over random text.
#ifdef FATHOM_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <array>
#include <gtest/gtest.h>
#include <memory>
#include <pcre2.h>
#include <random>

#include "fathom/base/str_cat.h"
#include "fathom/os/file.h"
#include "fathom/text/json.h"
#include "fathom/text/unicode_class.h"
#include "fathom/text/utf8.h"
#include "fathom/tokenizer/pretokenize.h"

namespace fathom {
namespace {

constexpr int kNumCases = 20'000;

// One pattern, compiled with Unicode properties.
class Oracle {
 public:
  explicit Oracle(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
    EXPECT_NE(code_, nullptr) << pattern;
    match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }

  // The first match at or after `from`, as begin and end.
  bool find(std::string_view text, size_t from, size_t& begin, size_t& end) const {
    const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                               from, PCRE2_NO_UTF_CHECK, match_.get(), nullptr);
    if (rc <= 0) return false;
    begin = pcre2_get_ovector_pointer(match_.get())[0];
    end = pcre2_get_ovector_pointer(match_.get())[1];
    return true;
  }

  // Isolated: matches are parts of their own, and so is what lies between them.
  void split(std::string_view piece, std::vector<std::string>& parts) const {
    size_t done = 0;
    size_t begin = 0;
    size_t end = 0;
    while (done < piece.size() && find(piece, done, begin, end) && end > begin) {
      if (begin > done) parts.emplace_back(piece.substr(done, begin - done));
      parts.emplace_back(piece.substr(begin, end - begin));
      done = end;
    }
    if (done < piece.size()) parts.emplace_back(piece.substr(done));
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }

    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };

  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

// The pre-tokenizer of a list of the golden file, and its patterns.
struct Subject {
  Pretokenizer pretokenizer;
  std::vector<Oracle> steps;
};

Subject load(const char* list) {
  const std::string path = FATHOM_UNPACKED_TOKENIZERS "/pieces.json";
  const auto json = parse_json(*read_file(path, 4 << 20), {}, path);
  const Json& description = *json->find("lists")->find(list)->find("pre_tokenizer");
  Subject subject;
  subject.pretokenizer = *Pretokenizer::from_json(description, path);
  for (const Json& step : description.find("pretokenizers")->items()) {
    const std::string& type = step.find("type")->as_string();
    if (type == "Split")
      subject.steps.emplace_back(step.find("pattern")->find("Regex")->as_string());
    if (type == "Digits") subject.steps.emplace_back("\\p{N}");
  }
  return subject;
}

// Characters that PCRE2's version of Unicode and ours class alike, by class.
std::vector<std::vector<char32_t>> shared_characters() {
  const std::array<const char*, 7> patterns = {"[^\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\s]",
                                               "\\p{L}",
                                               "\\p{M}",
                                               "\\p{N}",
                                               "\\p{P}",
                                               "\\p{S}",
                                               "\\s"};
  std::vector<std::vector<char32_t>> characters;
  for (size_t kind = 0; kind < patterns.size(); ++kind) {
    const Oracle oracle{patterns[kind]};
    auto& list = characters.emplace_back();
    for (char32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      if (static_cast<size_t>(char_class(c)) != kind) continue;
      std::string text;
      append_utf8(text, c);
      size_t begin = 0;
      size_t end = 0;
      if (oracle.find(text, 0, begin, end)) list.push_back(c);
    }
  }
  return characters;
}

const std::vector<std::vector<char32_t>>& characters() {
  static const auto lists = shared_characters();
  return lists;
}

std::string random_text(std::mt19937_64& random) {
  static const std::u32string kOften =
      U" \t\r\n\v\f\u0085\u00A0\u3000azAZ019!.,_<|>'\"()中かカ・ー゛゠가éßΩµ\u0301\u200B";
  std::string text;
  const size_t length = 1 + random() % 24;
  for (size_t i = 0; i < length; ++i) {
    const bool often = random() % 3 != 0;
    const auto& list = characters()[random() % characters().size()];
    const char32_t c = often ? kOften[random() % kOften.size()] : list[random() % list.size()];
    const size_t times = random() % 6 == 0 ? 1 + random() % 4 : 1;
    for (size_t k = 0; k < times; ++k)
      append_utf8(text, c);
  }
  return text;
}

std::vector<std::string> expected_pieces(const Subject& subject, const std::string& text) {
  std::vector<std::string> pieces = {text};
  for (const Oracle& step : subject.steps) {
    std::vector<std::string> parts;
    for (const std::string& piece : pieces)
      step.split(piece, parts);
    pieces = std::move(parts);
  }
  return pieces;
}

std::vector<std::string> our_pieces(const Subject& subject, std::string_view text) {
  std::vector<uint32_t> ends;
  subject.pretokenizer.split(text, ends);
  std::vector<std::string> pieces;
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

class PretokenizeOracle : public ::testing::TestWithParam<const char*> {};

TEST_P(PretokenizeOracle, ScannersCutLikeTheRegularExpressions) {
  const Subject subject = load(GetParam());
  const uint64_t seed = 61;
  std::mt19937_64 random{seed};
  for (int i = 0; i < kNumCases; ++i) {
    const std::string text = random_text(random);
    ASSERT_EQ(our_pieces(subject, text), expected_pieces(subject, text))
        << "case " << i << " of seed " << seed << ": " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Lists, PretokenizeOracle, ::testing::Values("v2", "v3"));

// An older Unicode differs only in what it does not know yet, and PCRE2 still takes U+180E for
// white space, which Unicode does no more.
TEST(PretokenizeOracle, ClassesDifferFromPcre2OnlyWhereItKnowsNothing) {
  const Oracle unassigned{"\\p{Cn}"};
  std::vector<bool> is_shared(0x110000, false);
  size_t num_shared = 0;
  for (const auto& list : characters()) {
    for (const char32_t c : list)
      is_shared[c] = true;
    num_shared += list.size();
  }
  EXPECT_GT(num_shared, 1'000'000u);
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (is_shared[c] || (c >= 0xD800 && c <= 0xDFFF) || c == 0x180E) continue;
    std::string text;
    append_utf8(text, c);
    size_t begin = 0;
    size_t end = 0;
    ASSERT_TRUE(unassigned.find(text, 0, begin, end)) << "U+" << std::hex << uint32_t{c};
  }
}

}  // namespace
}  // namespace fathom
#endif  // FATHOM_HAVE_PCRE2
