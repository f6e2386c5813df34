// tokenize: text or a conversation to token ids, and back.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/engine/model_setup.h"
#include "cli/flags.h"
#include "cli/io/chat_input.h"
#include "cli/io/terminal.h"
#include "cli/io/text_input.h"
#include "cli/not_empty.h"
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/chat/chat.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom::cli {
namespace {

struct Flags {
  std::string model;
  std::string text;
  std::string file;
  std::string chat;
  ChatFlags prompt;
  bool raw_schema = false;
  bool service = false;
  std::string decode;
  bool text_given = false;
  bool decode_given = false;
  bool ids_only = false;
  bool json = false;
  bool show = false;
  bool bos = false;
  bool plain = false;
};

// A token as people read it: control characters and spaces made visible.
std::string visible(std::string_view bytes) {
  std::string out;
  append_json_string(out, bytes, JsonCharset::kUtf8);
  return out;
}

Result<std::vector<int32_t>> encode_chat(const Tokenizer& tokenizer,
                                         const std::string& directory,
                                         const Flags& flags) {
  std::string model_type;
  if (flags.prompt.chat_format.empty()) {
    FATHOM_ASSIGN(model_type, model_type_of(directory));
  }
  FATHOM_ASSIGN(const ChatFormat* format,
                chat_format_of_model(model_type, directory, tokenizer, flags.prompt.chat_format));
  ChatReading reading = format->reading();
  if (flags.service) reading.author = ChatReading::Author::kService;
  FATHOM_ASSIGN(const ChatConversation conversation, read_conversation(flags.chat, reading));
  FATHOM_ASSIGN(ChatOptions options, chat_options(flags.prompt));
  if (flags.raw_schema) options.tool_schema = ToolSchema::kRaw;
  FATHOM_ASSIGN(const PromptText prompt, format->format(conversation, options));
  return prompt.encode(tokenizer);
}

// Bytes that are no text alone, as parts of a character are, become U+FFFD.
std::string tokens_json(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  JsonWriter out(JsonStyle::kIndented);
  out.begin_object().key("schema").string("fathom.tokenize/1");
  out.key("count").integer(static_cast<int64_t>(ids.size())).key("tokens").begin_array();
  for (const int32_t id : ids) {
    const bool added = tokenizer.is_added(id);
    out.begin_object().key("id").integer(id);
    out.key("text").string(added ? tokenizer.token_text(id) : tokenizer.token_bytes(id));
    out.key("control").boolean(added).key("special").boolean(tokenizer.is_special(id));
    out.end_object();
  }
  out.end_array().end_object();
  return out.take();
}

void print_ids(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, const Flags& flags) {
  if (flags.json) {
    std::printf("%s\n", tokens_json(tokenizer, ids).c_str());
    return;
  }
  if (flags.ids_only) {
    std::printf("%s\n", format_ids(ids).c_str());
    return;
  }
  for (int32_t id : ids) {
    const bool control = tokenizer.is_added(id);
    const std::string_view bytes = control ? tokenizer.token_text(id) : tokenizer.token_bytes(id);
    std::printf("%7d  ", id);
    write_text(visible(bytes));
    std::printf("%s\n", !flags.show || !control    ? ""
                        : tokenizer.is_special(id) ? "  special"
                                                   : "  control");
  }
  std::printf("%zu tokens\n", ids.size());
}

Result<int> tokenize(const Flags& flags) {
  FATHOM_TRY(check_chat_format(flags.prompt.chat_format));
  FATHOM_ASSIGN(const std::string directory, resolve_model_argument(flags.model));
  FATHOM_ASSIGN(const Tokenizer tokenizer, load_tokenizer(directory));
  if (flags.decode_given) {
    FATHOM_ASSIGN(const std::string text,
                  flags.decode == "-" ? read_standard_input() : Result<std::string>(flags.decode));
    FATHOM_ASSIGN(const std::vector<int32_t> ids, parse_ids(text));
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= tokenizer.vocab_size()) {
        return invalid_argument(
            str_cat("id ", i, " is ", ids[i], ", expected 0 to ", tokenizer.vocab_size() - 1));
      }
    }
    write_text(tokenizer.decode(ids) + "\n");
    return kExitOk;
  }
  if (flags.bos && !tokenizer.bos_id()) {
    return invalid_argument(str_cat("--bos: ", directory,
                                    " names no token of the beginning, expected a bos_token in "
                                    "tokenizer_config.json"));
  }
  std::vector<int32_t> ids;
  if (!flags.chat.empty()) {
    FATHOM_ASSIGN(ids, encode_chat(tokenizer, directory, flags));
  } else {
    std::string text = flags.text;
    if (!flags.file.empty()) {
      FATHOM_ASSIGN(text, read_text(flags.file));
    } else if (!flags.text_given || flags.text == "-") {
      FATHOM_ASSIGN(text, read_standard_input());
    }
    ids = tokenizer.encode(
        text, {.add_bos = flags.bos ? AddBos::kYes : AddBos::kNo,
               .added_tokens = flags.plain ? AddedTokens::kAsText : AddedTokens::kParse});
  }
  print_ids(tokenizer, ids, flags);
  return kExitOk;
}

}  // namespace

Command add_tokenize(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("tokenize", "Text or chat to token ids, and back");
  sub->add_option("MODEL", flags->model, "Directory with tokenizer.json")->required();
  // One of four texts; flags that say how another of them is read would do nothing.
  CLI::Option* text =
      sub->add_option("-p,--prompt", flags->text,
                      "Text; standard input for -, and without -f, --chat and --decode");
  CLI::Option* file =
      sub->add_option("-f,--file", flags->file, "File with the text, - for standard input");
  CLI::Option* chat = sub->add_option("--chat", flags->chat,
                                      "JSON file with messages and tools: encode the prompt");
  CLI::Option* decode = sub->add_option("--decode", flags->decode,
                                        "Ids to turn into text, such as \"1, 2, 3\"; - reads them");
  file->check(not_empty("a file, or - for standard input"))->excludes(text);
  chat->check(not_empty("a file, or - for standard input"))->excludes(text, file);
  text->check(empty_is_a_value());
  decode->check(empty_is_a_value())->excludes(text, file, chat);
  add_chat_flags(*sub, flags->prompt, chat);
  sub->add_flag("--raw-schema", flags->raw_schema,
                "V3.2, V4: print schemas of tools with all keys of the client")
      ->needs(chat);
  sub->add_flag("--service", flags->service,
                "V3.2, V4: developer messages, tasks and tools of single messages count")
      ->needs(chat);
  sub->add_flag("--ids", flags->ids_only, "Print ids alone, as a JSON list")->excludes(decode);
  sub->add_flag("--json", flags->json, "Print every token as JSON (fathom.tokenize/1)")
      ->excludes(decode, sub->get_option("--ids"));
  sub->add_flag("--show", flags->show, "Mark control tokens")->excludes(decode);
  sub->add_flag("--bos", flags->bos, "Begin with the token of the beginning")
      ->excludes(chat, decode);
  sub->add_flag("--plain", flags->plain, "Text such as <think> stays text")->excludes(chat, decode);
  return {sub, [=](const GlobalFlags&) {
            flags->text_given = text->count() > 0;
            flags->decode_given = decode->count() > 0;
            return tokenize(*flags);
          }};
}

}  // namespace fathom::cli
