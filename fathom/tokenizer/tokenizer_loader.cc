// Reads tokenizer.json and tokenizer_config.json.
#include <algorithm>

#include "fathom/base/log.h"
#include "fathom/os/file.h"
#include "fathom/text/byte_level.h"
#include "fathom/text/file_kind.h"
#include "fathom/text/utf8.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom {
namespace {

// What is refused beyond.
constexpr int64_t kMaxTokenizerBytes = 64ll << 20;
constexpr int64_t kMaxConfigBytes = 4ll << 20;
constexpr int64_t kMaxAddedTokens = 65'536;

std::string quoted(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  return str_cat('"', utf8_lossy(text.substr(0, kMaxBytes)),
                 text.size() > kMaxBytes ? "...\"" : "\"");
}

// The token of the beginning of every DeepSeek family.
constexpr std::string_view kUsualBos = "<｜begin▁of▁sentence｜>";

bool is_absent(const Json* value) {
  return value == nullptr || value->is_null();
}

}  // namespace

// Fills a Tokenizer part by part. Messages begin with the file.
class TokenizerLoader {
 public:
  TokenizerLoader(std::string file, std::string config_file)
      : file_(std::move(file)), config_file_(std::move(config_file)) {}

  Result<Tokenizer> load(std::string_view text, std::string_view config_text) {
    JsonLimits limits;
    limits.max_bytes = kMaxTokenizerBytes;
    limits.big_integer = JsonLimits::BigInteger::kRound;
    FATHOM_ASSIGN(const Json json, parse_json_file(text, limits, file_));
    if (!json.is_object()) return wrong_kind("the document", &json, "an object");
    const Json* model = json.find("model");
    if (is_absent(model) || !model->is_object()) return wrong_kind("model", model, "an object");

    FATHOM_TRY(check_model(*model));
    FATHOM_TRY(check_normalizer(json.find("normalizer")));
    FATHOM_TRY(read_vocabulary(*model));
    FATHOM_TRY(read_added_tokens(json.find("added_tokens")));
    FATHOM_TRY(read_merges(*model));
    const Json* pre_tokenizer = json.find("pre_tokenizer");
    if (is_absent(pre_tokenizer)) return wrong_kind("pre_tokenizer", pre_tokenizer, "an object");
    FATHOM_ASSIGN(result_.pretokenizer_, Pretokenizer::from_json(*pre_tokenizer, file_));
    FATHOM_TRY(check_decoder(json.find("decoder")));
    FATHOM_TRY(read_post_processor(json.find("post_processor")));
    if (!config_text.empty()) FATHOM_TRY(read_config(config_text));
    return std::move(result_);
  }

 private:
  Status wrong_kind(std::string_view key, const Json* found, std::string_view expected) const {
    return corrupt(str_cat(file_, ": ", key, " is ",
                           found == nullptr ? "missing" : found->kind_name(), ", expected ",
                           expected));
  }

  // The "type" of an object such as the decoder; empty if it has none.
  static std::string_view type_of(const Json& value) {
    const Json* type = value.find("type");
    return type != nullptr && type->is_string() ? std::string_view{type->as_string()} : "";
  }

  Status check_model(const Json& model) const {
    // Old files have no type; their merges tell the kind.
    if (const Json* type = model.find("type"); type != nullptr && type_of(model) != "BPE") {
      return unsupported(
          str_cat(file_, ": the model is ", quoted(type_of(model)), ", expected BPE"));
    }
    for (const auto* key : {"byte_fallback", "ignore_merges"}) {
      const Json* flag = model.find(key);
      if (is_absent(flag) || (flag->is_bool() && !flag->as_bool())) continue;
      return unsupported(str_cat(file_, ": model.", key, " is set, expected false"));
    }
    for (const auto* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json* affix = model.find(key);
      if (is_absent(affix) || (affix->is_string() && affix->as_string().empty())) continue;
      return unsupported(str_cat(file_, ": model.", key, " is set, expected none"));
    }
    const Json* dropout = model.find("dropout");
    if (is_absent(dropout) || (dropout->is_number() && dropout->as_double() == 0)) return {};
    return unsupported(str_cat(file_, ": model.dropout is set, expected none"));
  }

  Status check_normalizer(const Json* normalizer) const {
    if (is_absent(normalizer)) return {};
    const Json* steps = normalizer->find("normalizers");
    const bool is_empty = type_of(*normalizer) == "Sequence" && steps != nullptr &&
                          steps->is_array() && steps->items().empty();
    if (is_empty) return {};
    return unsupported(str_cat(file_, ": the normalizer ", quoted(type_of(*normalizer)),
                               " is not known here, expected none"));
  }

  Status check_decoder(const Json* decoder) const {
    if (is_absent(decoder) || type_of(*decoder) == "ByteLevel") return {};
    return unsupported(
        str_cat(file_, ": the decoder is ", quoted(type_of(*decoder)), ", expected ByteLevel"));
  }

  // Puts the file in front of an error of a part that does not know it.
  Status in_file(Status status) const {
    return status.ok() ? Status{}
                       : Status::error(status.code(), str_cat(file_, ": ", status.message()));
  }

  Status read_vocabulary(const Json& model) {
    const Json* vocab = model.find("vocab");
    if (is_absent(vocab) || !vocab->is_object())
      return wrong_kind("model.vocab", vocab, "an object");
    const auto& entries = vocab->members();
    if (static_cast<int64_t>(entries.size()) > kMaxVocabulary) {
      return corrupt(str_cat(file_, ": the vocabulary has ", entries.size(),
                             " entries, more than the limit of ", kMaxVocabulary));
    }
    size_t num_text_bytes = 0;
    for (const auto& entry : entries)
      num_text_bytes += entry.first.size();
    result_.vocabulary_.reserve(entries.size(), num_text_bytes * 2);
    for (const auto& [text, id] : entries) {
      if (!id.is_int()) return wrong_kind(str_cat("the id of ", quoted(text)), &id, "an integer");
      FATHOM_TRY(in_file(result_.vocabulary_.add(text, id.as_int())));
    }
    return {};
  }

  Status read_added_tokens(const Json* list) {
    if (is_absent(list)) return {};
    if (!list->is_array()) return wrong_kind("added_tokens", list, "an array");
    if (static_cast<int64_t>(list->items().size()) > kMaxAddedTokens) {
      return corrupt(str_cat(file_, ": there are ", list->items().size(),
                             " added tokens, more than the limit of ", kMaxAddedTokens));
    }
    int64_t index = 0;
    for (const Json& token : list->items()) {
      Status status = read_added_token(token);
      if (!status.ok())
        return in_file(std::move(status).add_context(str_cat("added_tokens[", index, "]")));
      ++index;
    }
    result_.raw_added_.finish();
    result_.normalized_added_.finish();
    return {};
  }

  Status read_added_token(const Json& token) {
    const Json* id = token.find("id");
    const Json* content = token.find("content");
    if (id == nullptr || !id->is_int()) return corrupt("the id is missing or no integer");
    if (content == nullptr || !content->is_string())
      return corrupt("the content is missing or no string");
    const std::string& text = content->as_string();
    bool is_special = false;
    bool is_normalized = false;
    for (const auto& [name, value] : token.members()) {
      if (name == "id" || name == "content") continue;
      if (!value.is_bool())
        return corrupt(str_cat(quoted(text), ": ", quoted(name), " is ", value.kind_name(),
                               ", expected a boolean"));
      if (name == "special") is_special = value.as_bool();
      if (name == "normalized") is_normalized = value.as_bool();
      const bool changes_matching = name == "single_word" || name == "lstrip" || name == "rstrip";
      if (changes_matching && value.as_bool()) {
        return unsupported(str_cat(quoted(text), ": ", name, " is set, expected false"));
      }
    }
    const auto known = result_.vocabulary_.find(text);
    if (!known) FATHOM_TRY(result_.vocabulary_.add(text, id->as_int()));
    if (known && *known != id->as_int()) {
      return corrupt(str_cat(quoted(text), " has the id ", id->as_int(), ", but ", *known,
                             " in the vocabulary"));
    }
    return note_added(static_cast<int32_t>(id->as_int()), text, is_special, is_normalized);
  }

  Status note_added(int32_t id, const std::string& text, bool is_special, bool is_normalized) {
    auto& traits = result_.traits_;
    if (traits.size() <= static_cast<size_t>(id)) traits.resize(id + 1);
    if (traits[id] != 0) return corrupt(str_cat(quoted(text), " is added twice"));
    traits[id] = static_cast<uint8_t>(Tokenizer::kAdded | (is_special ? Tokenizer::kSpecial : 0));
    (is_normalized ? result_.normalized_added_ : result_.raw_added_).add(text, id);
    return {};
  }

  Status read_merges(const Json& model) {
    const Json* list = model.find("merges");
    if (is_absent(list) || !list->is_array()) return wrong_kind("model.merges", list, "an array");
    const auto& items = list->items();
    if (static_cast<int64_t>(items.size()) > kMaxMerges) {
      return corrupt(str_cat(file_, ": there are ", items.size(),
                             " merges, more than the limit of ", kMaxMerges));
    }
    std::vector<BpeMerge> merges;
    merges.reserve(items.size());
    std::string joined;
    for (const Json& item : items) {
      const auto pair = pair_of(item);
      if (!pair) {
        return corrupt(str_cat(file_, ": merges[", merges.size(),
                               "] is no pair, expected \"A B\" or [\"A\", \"B\"]"));
      }
      joined.assign(pair->first).append(pair->second);
      FATHOM_ASSIGN(const int32_t left, merge_part(pair->first, merges.size()));
      FATHOM_ASSIGN(const int32_t right, merge_part(pair->second, merges.size()));
      FATHOM_ASSIGN(const int32_t result, merge_part(joined, merges.size()));
      // Text of users never becomes a control token, so no merge may make one.
      if (result_.is_added(result)) {
        return unsupported(
            str_cat(file_, ": merges[", merges.size(), "] makes the added token ", quoted(joined)));
      }
      merges.push_back({left, right, result});
    }
    FATHOM_ASSIGN(const Bpe::ByteTokens byte_tokens, read_byte_tokens());
    auto bpe = Bpe::make(byte_tokens, merges);
    if (!bpe.ok()) return in_file(std::move(bpe).status());
    result_.bpe_ = *std::move(bpe);
    return {};
  }

  static std::optional<std::pair<std::string_view, std::string_view>> pair_of(const Json& item) {
    if (item.is_string()) {
      const std::string_view text = item.as_string();
      const size_t space = text.find(' ');
      if (space == text.npos || text.find(' ', space + 1) != text.npos) return std::nullopt;
      return std::pair{text.substr(0, space), text.substr(space + 1)};
    }
    if (!item.is_array() || item.items().size() != 2) return std::nullopt;
    const Json& left = item.items()[0];
    const Json& right = item.items()[1];
    if (!left.is_string() || !right.is_string()) return std::nullopt;
    return std::pair<std::string_view, std::string_view>{left.as_string(), right.as_string()};
  }

  Result<int32_t> merge_part(std::string_view text, size_t index) const {
    if (const auto id = result_.vocabulary_.find(text)) return *id;
    return corrupt(str_cat(file_, ": merges[", index, "] needs the token ", quoted(text),
                           ", which is not in the vocabulary"));
  }

  Result<Bpe::ByteTokens> read_byte_tokens() const {
    Bpe::ByteTokens tokens{};
    for (int byte = 0; byte < 256; ++byte) {
      const char raw = static_cast<char>(byte);
      const auto id = result_.vocabulary_.find(byte_level_encode({&raw, 1}));
      // An added token may stand in the place of a byte that UTF-8 does not use.
      const bool is_usable = id && !result_.is_added(*id);
      tokens[byte] = is_usable ? *id : Bpe::kNoToken;
      const bool occurs_in_utf8 = byte < 0xF5 && byte != 0xC0 && byte != 0xC1;
      if (!is_usable && occurs_in_utf8) {
        return unsupported(str_cat(file_, ": the vocabulary has no token for the byte ", byte));
      }
    }
    return tokens;
  }

  // Byte-level post-processing adds nothing. A template may add the token of the beginning, which
  // tokenizer_config.json says too; files written by newer versions hold one.
  Status read_post_processor(const Json* processor) {
    if (is_absent(processor) || type_of(*processor) == "ByteLevel") return {};
    if (type_of(*processor) == "Sequence") {
      const Json* steps = processor->find("processors");
      if (steps == nullptr || !steps->is_array())
        return wrong_kind("post_processor.processors", steps, "an array");
      for (const Json& step : steps->items()) {
        if (type_of(step) == "Sequence")
          return unsupported(str_cat(file_, ": the post-processor nests sequences"));
        FATHOM_TRY(read_post_processor(&step));
      }
      return {};
    }
    if (type_of(*processor) == "TemplateProcessing") return read_template(*processor);
    return unsupported(
        str_cat(file_, ": the post-processor ", quoted(type_of(*processor)), " is not known here"));
  }

  // A template for one text: special tokens and the text, such as [BOS, text].
  Status read_template(const Json& processor) {
    const Json* single = processor.find("single");
    if (single == nullptr || !single->is_array())
      return wrong_kind("post_processor.single", single, "an array");
    const auto& items = single->items();
    const bool is_bare = items.size() == 1 && items[0].find("Sequence") != nullptr;
    const bool begins_special = items.size() == 2 && items[0].find("SpecialToken") != nullptr &&
                                items[1].find("Sequence") != nullptr;
    if (!is_bare && !begins_special) {
      return unsupported(str_cat(file_,
                                 ": the post-processor's template is not known here, expected the "
                                 "text, or one token and the text"));
    }
    if (is_bare) return {};
    const Json* name = items[0].find("SpecialToken")->find("id");
    if (name == nullptr || !name->is_string())
      return wrong_kind("post_processor.single[0]", name, "a token");
    result_.bos_id_ = result_.vocabulary_.find(name->as_string());
    if (!result_.bos_id_)
      return corrupt(str_cat(file_, ": the post-processor adds ", quoted(name->as_string()),
                             ", which is no token"));
    result_.adds_bos_ = true;
    return {};
  }

  Status read_config(std::string_view text) {
    JsonLimits limits;
    limits.max_bytes = kMaxConfigBytes;
    limits.big_integer = JsonLimits::BigInteger::kRound;
    FATHOM_ASSIGN(result_.config_, parse_json_file(text, limits, config_file_));
    const Json& config = result_.config_;
    if (!config.is_object()) {
      return corrupt(
          str_cat(config_file_, ": the document is ", config.kind_name(), ", expected an object"));
    }
    FATHOM_TRY(read_named_token(config, "bos_token", result_.bos_id_));
    FATHOM_TRY(read_named_token(config, "eos_token", result_.eos_id_));
    FATHOM_TRY(read_named_token(config, "pad_token", result_.pad_id_));
    if (const Json* flag = config.find("add_bos_token"); !is_absent(flag)) {
      if (!flag->is_bool())
        return corrupt(str_cat(config_file_, ": add_bos_token is ", flag->kind_name(),
                               ", expected a boolean"));
      result_.adds_bos_ = flag->as_bool();
    }
    const Json* adds_eos = config.find("add_eos_token");
    if (is_absent(adds_eos) || (adds_eos->is_bool() && !adds_eos->as_bool())) return {};
    return unsupported(str_cat(config_file_, ": add_eos_token is set, expected false"));
  }

  // "bos_token" and the like: a string, an object with a content, or null.
  Status read_named_token(const Json& config,
                          std::string_view key,
                          std::optional<int32_t>& id) const {
    const Json* value = config.find(key);
    if (is_absent(value)) return {};
    const Json* content = value->is_object() ? value->find("content") : value;
    if (content == nullptr || !content->is_string()) {
      return corrupt(
          str_cat(config_file_, ": ", key, " is ", value->kind_name(), ", expected a token"));
    }
    id = result_.vocabulary_.find(content->as_string());
    if (id) return {};
    return corrupt(str_cat(config_file_, ": ", key, " is ", quoted(content->as_string()),
                           ", which ", file_, " does not hold"));
  }

  std::string file_;
  std::string config_file_;
  Tokenizer result_;
};

Result<Tokenizer> Tokenizer::load_from_json(std::string_view text,
                                            std::string_view config_text,
                                            std::string_view what) {
  const std::string prefix = what.empty() ? "" : str_cat(what, "/");
  TokenizerLoader loader{prefix + "tokenizer.json", prefix + "tokenizer_config.json"};
  return loader.load(text, config_text);
}

Result<Tokenizer> Tokenizer::load(const std::string& dir) {
  FATHOM_ASSIGN(const std::string text,
                read_file(join_path(dir, "tokenizer.json"), kMaxTokenizerBytes));
  const std::string config_path = join_path(dir, "tokenizer_config.json");
  Result<std::string> config_text = read_file(config_path, kMaxConfigBytes);
  if (!config_text.ok()) {
    if (config_text.status().code() != StatusCode::kNotFound)
      return std::move(config_text).status();
    FATHOM_ASSIGN(Tokenizer bare, load_from_json(text, "", dir));
    // Models answer worse without it, and nothing else shows that it is not there.
    if (!bare.bos_id() && bare.token_to_id(kUsualBos)) {
      log_warn(config_path, " is missing: texts begin without ", kUsualBos,
               ", which the model was trained with; copy the file from where the model came from");
    }
    return bare;
  }
  if (config_text->empty()) {
    return corrupt(str_cat(config_path, ": is 0 bytes long, expected a JSON object"));
  }
  return load_from_json(text, *config_text, dir);
}

}  // namespace fathom
