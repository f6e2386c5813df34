// Vocabularies and text. The first byte picks the form of the input:
//
//   even   tokenizer.json, a zero byte, text: loads or is refused; a loaded one encodes the text to
//          ids in range and back
//   odd    text for the vocabulary of tiny-v3, compared with a naive encoder, streamed and whole;
//          also as an answer, in pieces and whole
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/os/file.h"
#include "fathom/text/byte_level.h"
#include "fathom/text/json.h"
#include "fathom/text/utf8.h"
#include "fathom/tokenizer/answer/answer_parser.h"
#include "fathom/tokenizer/pretokenize.h"
#include "fathom/tokenizer/stream_decoder.h"
#include "fathom/tokenizer/tokenizer.h"

namespace {

using fathom::AddedTokens;
using fathom::Json;
using fathom::Tokenizer;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

void check_loaded(const Tokenizer& tokenizer, std::string_view text) {
  const std::string valid = fathom::utf8_lossy(text);
  for (const auto added : {AddedTokens::kAsText, AddedTokens::kParse}) {
    const auto ids = tokenizer.encode(text, {.added_tokens = added});
    for (const int32_t id : ids) {
      require(id >= 0 && id < tokenizer.vocab_size(), "id out of range");
      require(added == AddedTokens::kParse || !tokenizer.is_added(id),
              "text became a control token");
    }
    if (added == AddedTokens::kAsText)
      require(tokenizer.decode(ids) == valid, "text does not come back");
    fathom::StreamDecoder stream{tokenizer};
    std::string streamed;
    for (const int32_t id : ids)
      streamed += stream.push(id);
    streamed += stream.flush();
    require(streamed == tokenizer.decode(ids), "streamed text differs");
  }
}

void load_hostile(std::string_view input) {
  const size_t zero = input.find('\0');
  const std::string_view file = input.substr(0, zero);
  const std::string_view text = zero == input.npos ? "" : input.substr(zero + 1);
  const auto tokenizer = Tokenizer::load_from_json(file, "", "");
  if (!tokenizer.ok()) {
    require(fathom::is_valid_utf8(tokenizer.status().message()), "a message is no UTF-8");
    return;
  }
  check_loaded(*tokenizer, text);
}

// tiny-v3 with the merges as pairs of byte strings.
struct Reference {
  Tokenizer tokenizer;
  fathom::Pretokenizer pretokenizer;
  std::map<std::string, int32_t> ids;
  std::map<std::pair<std::string, std::string>, size_t> ranks;
};

const Reference& reference() {
  static const Reference made = [] {
    const std::string dir = FATHOM_SOURCE_DIR "/tests/golden/tokenizer/tiny-v3";
    const std::string text = *fathom::read_file(dir + "/tokenizer.json", 1 << 20);
    const Json json = *fathom::parse_json(text, {}, "tiny");
    Reference result;
    result.tokenizer = *Tokenizer::load(dir);
    result.pretokenizer = *fathom::Pretokenizer::from_json(*json.find("pre_tokenizer"), "tiny");
    const Json& model = *json.find("model");
    for (const auto& [token, id] : model.find("vocab")->members()) {
      result.ids[fathom::byte_level_decode(token)] = static_cast<int32_t>(id.as_int());
    }
    for (const Json& merge : model.find("merges")->items()) {
      const auto& pair = merge.items();
      const size_t rank = result.ranks.size();
      result.ranks[{fathom::byte_level_decode(pair[0].as_string()),
                    fathom::byte_level_decode(pair[1].as_string())}] = rank;
    }
    return result;
  }();
  return made;
}

void naive_encode(const Reference& r, std::string_view piece, std::vector<int32_t>& ids) {
  std::vector<std::string> parts;
  for (const char c : piece)
    parts.emplace_back(1, c);
  while (true) {
    size_t best = parts.size();
    size_t best_rank = SIZE_MAX;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = r.ranks.find({parts[i], parts[i + 1]});
      if (found == r.ranks.end() || found->second >= best_rank) continue;
      best = i;
      best_rank = found->second;
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  for (const std::string& part : parts)
    ids.push_back(r.ids.at(part));
}

void encode_text(std::string_view text) {
  const Reference& r = reference();
  check_loaded(r.tokenizer, text);
  constexpr size_t kMaxNaive = 300;
  if (text.size() > kMaxNaive) return;
  const std::string valid = fathom::utf8_lossy(text);
  std::vector<uint32_t> ends;
  r.pretokenizer.split(valid, ends);
  require(valid.empty() == ends.empty() && (ends.empty() || ends.back() == valid.size()),
          "pieces do not cover the text");
  require(std::is_sorted(ends.begin(), ends.end()), "pieces out of order");
  std::vector<int32_t> expected;
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    naive_encode(r, std::string_view{valid}.substr(begin, end - begin), expected);
    begin = end;
  }
  require(r.tokenizer.encode(text) == expected, "ids differ from the naive encoder");
}

// The parts of an answer as one string.
struct Answer {
  std::string reasoning;
  std::string content;
  std::string calls;

  void add(const fathom::AnswerDelta& delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    for (const auto& call : delta.tool_calls) {
      if (!call.name.empty()) calls += "\n" + call.name + "\n";
      calls += call.arguments;
    }
  }
};

void parse_answer(std::string_view text) {
  using Calls = fathom::AnswerGrammar::ToolCalls;
  text = text.substr(0, 600);
  for (const auto calls : {Calls::kNone, Calls::kFencedJson, Calls::kBareJson}) {
    for (const bool reasoning : {false, true}) {
      const fathom::AnswerGrammar grammar{
          .tool_calls = calls, .knows_thinking = true, .starts_in_reasoning = reasoning};
      fathom::AnswerParser whole_parser{grammar};
      Answer whole;
      whole.add(whole_parser.push(text));
      whole.add(whole_parser.finish());
      fathom::AnswerParser parser{grammar};
      Answer streamed;
      for (const char& c : text)
        streamed.add(parser.push({&c, 1}));
      streamed.add(parser.finish());
      require(streamed.reasoning == whole.reasoning, "reasoning depends on the pieces");
      require(streamed.content == whole.content, "content depends on the pieces");
      require(streamed.calls == whole.calls, "calls depend on the pieces");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input{reinterpret_cast<const char*>(data) + 1, size - 1};
  if (data[0] % 2 == 0) {
    load_hostile(input);
  } else {
    encode_text(input);
    parse_answer(input);
  }
  return 0;
}
