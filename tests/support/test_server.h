// A served model without an engine: a small tokenizer with every marker, and grammars that only
// remember what they were asked for.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/check.h"
#include "fathom/os/file.h"
#include "fathom/serve/exchange.h"
#include "fathom/serve/served_model.h"
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/chat/control_tokens.h"

namespace fathom::serve {

/// tests/golden/tokenizer/tiny-v3 and the markers of all formats as added tokens.
inline Tokenizer tokenizer_with_markers() {
  const std::string dir = FATHOM_SOURCE_DIR "/tests/golden/tokenizer/tiny-v3/";
  const auto text = read_file(dir + "tokenizer.json", 64 << 20);
  const auto config = read_file(dir + "tokenizer_config.json", 64 << 20);
  FATHOM_CHECK(text.ok() && config.ok(), "the golden tokenizer");
  Json json = *parse_json(*text, {.max_bytes = 64 << 20}, "tokenizer.json");
  std::vector<Json>* added = nullptr;
  for (auto& [key, value] : json.members()) {
    if (key == "added_tokens") added = &value.items();
  }
  int64_t next = 4096;
  const std::vector<Json> given = *added;
  const auto add = [&](std::string_view token) {
    for (const Json& known : given) {
      if (known.find("content")->as_string() == token) return;
    }
    Json copy = given.back();
    for (auto& [key, value] : copy.members()) {
      if (key == "id") value = Json::integer(next);
      if (key == "content") value = Json::string(std::string(token));
      if (key == "special") value = Json::boolean(false);
    }
    added->push_back(std::move(copy));
    ++next;
  };
  for (const std::string_view token : control::kAll)
    add(token);
  for (const std::string_view token : {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"})
    add(token);
  auto tokenizer = Tokenizer::load_from_json(dump_json(json), *config, "tiny-v3 with markers");
  FATHOM_CHECK(tokenizer.ok(), tokenizer.ok() ? "" : tokenizer.status().message());
  return std::move(tokenizer).value();
}

/// Compiles anything but the texts "bad" and "huge" and a tool of the name "bad".
class FakeGrammars final : public GrammarCompiler {
 public:
  Result<std::shared_ptr<const CompiledGrammar>> compile(const GrammarSpec& spec) override {
    specs.push_back(spec);
    if (spec.text == "bad") return invalid_argument("invalid_schema: it is bad");
    if (!spec.tools.empty() && spec.tools[0].name == "bad") {
      return invalid_argument("invalid_schema: tool 'bad': it is bad");
    }
    if (spec.text == "huge") return invalid_argument("grammar_too_complex: 100001 states");
    return std::shared_ptr<const CompiledGrammar>(std::make_shared<Nothing>());
  }

  GrammarStats stats() const override { return {}; }

  std::vector<GrammarSpec> specs;

 private:
  struct Nothing final : CompiledGrammar {
    std::unique_ptr<TokenConstraint> start() const override { return nullptr; }
  };
};

struct TestServer {
  explicit TestServer(const ChatFormat& format = chat_v4()) : tokenizer(tokenizer_with_markers()) {
    model.names = {"deep", "alias"};
    model.tokenizer = &tokenizer;
    model.chat_format = &format;
    model.no_chat = "this checkpoint has no known chat format (--chat-format)";
    model.grammars = &grammars;
    model.max_model_len = 4'000;
    model.vocab_size = 4'130;
    model.created_s = 1'700'000'000;
    model.system_fingerprint = "fp_0123456789ab";
  }

  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  int32_t id(std::string_view token) const { return tokenizer.token_to_id(token).value_or(-1); }

  Tokenizer tokenizer;
  FakeGrammars grammars;
  ServedModel model;
};

/// One with a longer context, for the most tools.
inline TestServer& roomy_server() {
  static TestServer* const made = [] {
    auto* const one = new TestServer;
    one->model.max_model_len = 8'000;
    return one;
  }();
  return *made;
}

inline HttpRequest post_of(std::string body) {
  HttpRequest request;
  request.method = "POST";
  request.body = std::move(body);
  return request;
}

}  // namespace fathom::serve
