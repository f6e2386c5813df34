// What `prompt` may be: a text, texts, ids, lists of ids; with a suffix, a gap to fill.
#include "fathom/serve/openai/completions/completion_request.h"

namespace fathom::serve {
namespace {

constexpr int64_t kMaxTextBytes = 16ll << 20;
constexpr std::string_view kFimBegin = "<｜fim▁begin｜>";
constexpr std::string_view kFimHole = "<｜fim▁hole｜>";
constexpr std::string_view kFimEnd = "<｜fim▁end｜>";

class PromptReader {
 public:
  PromptReader(Fields& fields, const ServedModel& model) : fields_(fields), model_(model) {}

  std::vector<EchoedPrompt> read() {
    suffix_ = fields_.text("suffix", kMaxTextBytes).value_or("");
    if (!fields_.boolean("add_special_tokens").value_or(true)) bos_ = AddBos::kNo;
    if (!suffix_.empty()) check_fim();
    const Json* prompt = fields_.value("prompt");
    if (fields_.ok() && prompt == nullptr) {
      fail("prompt", "missing, expected a string, strings, token ids or lists of them");
    }
    if (fields_.ok()) read_prompt(*prompt);
    return std::move(prompts_);
  }

 private:
  void fail(const std::string& where, std::string_view why, std::string code = "invalid_value") {
    fields_.fail(bad_value(where, str_cat(where, ": ", why), std::move(code)));
  }

  /// Models without weights of their own, of --dummy-weights, may have no tokenizer.
  bool check_text(const std::string& where) {
    if (model_.tokenizer != nullptr) return true;
    fail(where, "is text, which the model has no tokenizer for, expected token ids",
         "unsupported_parameter");
    return false;
  }

  void check_fim() {
    if (!check_text("suffix")) return;
    for (const std::string_view token : {kFimBegin, kFimHole, kFimEnd}) {
      const auto id = model_.tokenizer->token_to_id(token);
      if (id && model_.tokenizer->is_added(*id)) continue;
      return fail("suffix", "the model's vocabulary has no tokens for filling in the middle",
                  "unsupported_parameter");
    }
  }

  void read_prompt(const Json& prompt) {
    if (prompt.is_string()) return add_text(prompt.as_string(), "prompt");
    if (!prompt.is_array()) {
      return fail("prompt", str_cat("found ", prompt.kind_name(),
                                    ", expected a string, strings, token ids or lists of them"));
    }
    const std::vector<Json>& items = prompt.items();
    if (items.empty()) return fail("prompt", "is empty, expected at least one prompt or token id");
    if (items.front().is_number()) return add_ids(prompt, "prompt");
    if (const auto size = static_cast<int64_t>(items.size()); size > kMaxPrompts) {
      return fail("prompt", str_cat(size, " prompts, expected at most ", kMaxPrompts));
    }
    for (size_t i = 0; i < items.size() && fields_.ok(); ++i) {
      const std::string where = str_cat("prompt[", i, "]");
      if (items[i].kind() != items.front().kind()) {
        fail(where, str_cat("found ", items[i].kind_name(), ", expected ",
                            items.front().kind_name(), " as in prompt[0]"));
      } else if (items[i].is_string()) {
        add_text(items[i].as_string(), where);
      } else if (items[i].is_array()) {
        add_ids(items[i], where);
      } else {
        fail(where,
             str_cat("found ", items[i].kind_name(), ", expected a string or a list of token ids"));
      }
    }
  }

  void add_text(const std::string& text, const std::string& where) {
    if (!check_text(where)) return;
    const Tokenizer& tokenizer = *model_.tokenizer;
    EchoedPrompt prompt{.text = text, .tokens = {}};
    if (suffix_.empty()) {
      prompt.tokens = tokenizer.encode(text, {.add_bos = bos_});
    } else {
      PromptText gap;
      gap.control(kFimBegin).text(text).control(kFimHole).text(suffix_).control(kFimEnd);
      prompt.tokens = tokenizer.encode("", {.add_bos = bos_});
      const std::vector<int32_t> ids = gap.encode(tokenizer);
      prompt.tokens.insert(prompt.tokens.end(), ids.begin(), ids.end());
    }
    prompt.hidden_bos = !prompt.tokens.empty() && prompt.tokens.front() == tokenizer.bos_id();
    if (prompt.tokens.empty()) return fail(where, "is empty, expected at least one token");
    prompts_.push_back(std::move(prompt));
  }

  void add_ids(const Json& ids, const std::string& where) {
    if (!suffix_.empty()) return fail("suffix", "needs a prompt that is text");
    if (ids.items().empty()) return fail(where, "is empty, expected at least one token id");
    EchoedPrompt prompt;
    prompt.tokens = read_token_ids(fields_, ids, where, model_.vocab_size);
    if (model_.tokenizer != nullptr) prompt.text = model_.tokenizer->decode(prompt.tokens);
    prompts_.push_back(std::move(prompt));
  }

  Fields& fields_;
  const ServedModel& model_;
  std::string suffix_;
  AddBos bos_ = AddBos::kAsConfigured;
  std::vector<EchoedPrompt> prompts_;
};

}  // namespace

std::vector<EchoedPrompt> read_prompts(Fields& fields, const ServedModel& model) {
  return PromptReader(fields, model).read();
}

}  // namespace fathom::serve
