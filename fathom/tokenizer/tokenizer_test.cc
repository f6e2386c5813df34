#include "fathom/tokenizer/tokenizer.h"

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "fathom/os/file.h"
#include "fathom/text/byte_level.h"
#include "fathom/text/json_writer.h"
#include "fathom/text/utf8.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

const std::string& tiny_text() {
  static const std::string text =
      *read_file(FATHOM_SOURCE_DIR "/tests/golden/tokenizer/tiny-v3/tokenizer.json", 1 << 20);
  return text;
}

const Json& tiny_json() {
  static const Json json = *parse_json(tiny_text(), {}, "tiny");
  return json;
}

const Tokenizer& tiny() {
  static const Tokenizer tokenizer =
      *Tokenizer::load(FATHOM_SOURCE_DIR "/tests/golden/tokenizer/tiny-v3");
  return tokenizer;
}

// The smallest complete file: a token a byte, no merges, the list of V3.
Json minimal() {
  std::vector<JsonMember> vocab;
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    vocab.emplace_back(byte_level_encode({&raw, 1}), Json::integer(byte));
  }
  return Json::object({
      {"added_tokens", Json::array()},
      {"normalizer", Json{}},
      {"pre_tokenizer", *tiny_json().find("pre_tokenizer")},
      {"post_processor", Json{}},
      {"decoder", Json{}},
      {"model", Json::object({{"type", Json::string("BPE")},
                              {"vocab", Json::object(std::move(vocab))},
                              {"merges", Json::array()}})},
  });
}

// The member at a path of keys; made if it is missing.
Json& at(Json& json, std::initializer_list<std::string_view> path) {
  Json* place = &json;
  for (const std::string_view key : path) {
    Json* next = nullptr;
    for (auto& [name, value] : place->members()) {
      if (name == key) next = &value;
    }
    if (next == nullptr) next = &place->members().emplace_back(key, Json{}).second;
    place = next;
  }
  return *place;
}

Json parse(std::string_view text) {
  auto json = parse_json(text, {}, "test");
  EXPECT_TRUE(json.ok()) << json.status().message();
  return *std::move(json);
}

Result<Tokenizer> load(const Json& file, std::string_view config = "") {
  return Tokenizer::load_from_json(dump_json(file), config, "");
}

std::string error_of(const Json& file, std::string_view config = "") {
  const auto result = load(file, config);
  return result.ok() ? "accepted" : result.status().message();
}

std::string error_with(std::initializer_list<std::string_view> path, std::string_view value) {
  Json file = minimal();
  at(file, path) = parse(value);
  return error_of(file);
}

TEST(Tokenizer, KnowsItsNamedTokens) {
  EXPECT_EQ(tiny().bos_id(), 0);
  EXPECT_EQ(tiny().eos_id(), 1);
  EXPECT_EQ(tiny().pad_id(), 1);
  EXPECT_EQ(tiny().vocab_size(), 4096);
  EXPECT_EQ(tiny().token_to_id("<｜User｜>"), 4092);
  EXPECT_EQ(tiny().token_to_id("no such token"), std::nullopt);
  EXPECT_TRUE(tiny().is_special(0));
  EXPECT_FALSE(tiny().is_special(4092));
  EXPECT_TRUE(tiny().is_added(4092));
  for (const int32_t id : {-1, 3, 4096, INT32_MAX}) {
    EXPECT_FALSE(tiny().is_added(id));
    EXPECT_FALSE(tiny().is_special(id));
  }
}

TEST(Tokenizer, AddsTheBeginningWhereAsked) {
  const std::vector<int32_t> plain = tiny().encode("Hello");
  std::vector<int32_t> with_bos = plain;
  with_bos.insert(with_bos.begin(), 0);

  EXPECT_EQ(tiny().encode("Hello", {.add_bos = AddBos::kYes}), with_bos);
  EXPECT_EQ(tiny().encode("Hello", {.add_bos = AddBos::kAsConfigured}), with_bos);
  EXPECT_EQ(load(tiny_json())->encode("Hello", {.add_bos = AddBos::kYes}), plain);
  EXPECT_EQ(load(tiny_json(), R"({"bos_token":"<｜begin▁of▁sentence｜>","add_bos_token":false})")
                ->encode("Hello", {.add_bos = AddBos::kAsConfigured}),
            plain);
}

TEST(Tokenizer, TextBecomesAnAddedTokenOnlyWhereAsked) {
  const std::string text = "a<think>b<｜User｜>";

  EXPECT_THAT(tiny().encode(text, {.added_tokens = AddedTokens::kParse}),
              ::testing::ElementsAre(67, 4094, 68, 4092));
  for (const int32_t id : tiny().encode(text))
    EXPECT_FALSE(tiny().is_added(id));
  EXPECT_EQ(tiny().decode(tiny().encode(text)), text);
}

TEST(Tokenizer, RawTokensComeBeforeNormalizedOnes) {
  Json file = minimal();
  at(file, {"added_tokens"}) = parse(R"([
      {"id":300,"content":"<ab","normalized":true},
      {"id":301,"content":"b>","normalized":false}])");
  const auto tokenizer = load(file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();

  EXPECT_THAT(tokenizer->encode("<ab>", {.added_tokens = AddedTokens::kParse}),
              ::testing::ElementsAre('<', 'a', 301));
  EXPECT_THAT(tokenizer->encode("<abb>", {.added_tokens = AddedTokens::kParse}),
              ::testing::ElementsAre(300, 301));
}

TEST(Tokenizer, DecodesIdsWithoutATokenToNothing) {
  EXPECT_EQ(tiny().decode(std::vector<int32_t>{67, -1, 4096, 5'000'000, 68}), "ab");
  EXPECT_EQ(tiny().token_bytes(4096), "");
  EXPECT_EQ(tiny().decode({}), "");
}

TEST(Tokenizer, DecodesPartsOfCharactersToReplacements) {
  const auto id = [](std::string_view bytes) {
    return *tiny().token_to_id(byte_level_encode(bytes));
  };

  EXPECT_EQ(tiny().decode(std::vector<int32_t>{id("\xF0"), id("\x9F"), id("a")}), "\uFFFDa");
  EXPECT_EQ(tiny().decode(std::vector<int32_t>{id("\xFF"), id("\xC3"), id("\xA9")}), "\uFFFDé");
}

TEST(Tokenizer, EncodesInvalidUtf8AsReplacements) {
  EXPECT_EQ(tiny().encode("a\xFF\xF0\x9Fz"), tiny().encode("a\uFFFD\uFFFDz"));
}

TEST(Tokenizer, DecodingUndoesEncoding) {
  std::mt19937 random{51};
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    const int length = static_cast<int>(random() % 40);
    for (int k = 0; k < length; ++k) {
      const auto kind = random() % 4;
      auto c = static_cast<char32_t>(0x20 + random() % 0x5F);
      if (kind == 1) c = static_cast<char32_t>(random() % 0x80);
      if (kind == 2) c = static_cast<char32_t>(random() % 0xD800);
      if (kind == 3) c = static_cast<char32_t>(0xE000 + random() % (0x110000 - 0xE000));
      append_utf8(text, c);
    }
    for (const auto added : {AddedTokens::kAsText, AddedTokens::kParse}) {
      const auto ids = tiny().encode(text, {.added_tokens = added});
      ASSERT_EQ(tiny().decode(ids), text) << "case " << i << " of seed 51";
    }
  }
}

// One piece of a mebibyte: anything but linear time would not end.
TEST(Tokenizer, AMebibyteOfOneCharacterComesBack) {
  for (const std::string_view c : {"a", " ", "\n", "1", "<", "中", "\t "}) {
    std::string text;
    while (text.size() < 1 << 20)
      text += c;
    for (const auto added : {AddedTokens::kAsText, AddedTokens::kParse}) {
      EXPECT_EQ(tiny().decode(tiny().encode(text, {.added_tokens = added})), text) << c;
    }
  }
}

TEST(TokenizerLoad, AcceptsTheMinimalFile) {
  const auto tokenizer = load(minimal());

  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_THAT(tokenizer->encode("ab"), ::testing::ElementsAre('a', 'b'));
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  EXPECT_EQ(tokenizer->vocab_size(), 256);
}

TEST(TokenizerLoad, AcceptsBothFormsOfMerges) {
  Json file = minimal();
  at(file, {"model", "vocab", "ab"}) = Json::integer(256);
  at(file, {"model", "vocab", "abab"}) = Json::integer(257);
  at(file, {"model", "merges"}) = parse(R"(["a b",["ab","ab"]])");
  const auto tokenizer = load(file);

  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_THAT(tokenizer->encode("ababab"), ::testing::ElementsAre(257, 256));
}

TEST(TokenizerLoad, NamesTheFileOfAnError) {
  EXPECT_THAT(Tokenizer::load_from_json("[", "", "/m").status().message(),
              HasSubstr("/m/tokenizer.json: byte 1"));
  EXPECT_THAT(Tokenizer::load_from_json(dump_json(minimal()), "[]", "/m").status().message(),
              HasSubstr("/m/tokenizer_config.json: the document is an array"));
  EXPECT_EQ(Tokenizer::load("/no/such/folder").status().code(), StatusCode::kNotFound);
}

TEST(TokenizerLoad, EmptyConfigurationFileIsNotAnAbsentOne) {
  const TempDir dir;
  std::ofstream(dir.file("tokenizer.json")) << dump_json(minimal());
  ASSERT_TRUE(Tokenizer::load(dir.path()).ok());
  std::ofstream(dir.file("tokenizer_config.json")) << "";

  EXPECT_EQ(Tokenizer::load(dir.path()).status().message(),
            dir.file("tokenizer_config.json") + ": is 0 bytes long, expected a JSON object");
}

TEST(TokenizerLoad, RefusesOtherModels) {
  EXPECT_THAT(error_with({"model", "type"}, R"("Unigram")"), HasSubstr("the model is \"Unigram\""));
  EXPECT_THAT(error_with({"model", "byte_fallback"}, "true"), HasSubstr("byte_fallback is set"));
  EXPECT_THAT(error_with({"model", "ignore_merges"}, "true"), HasSubstr("ignore_merges is set"));
  EXPECT_THAT(error_with({"model", "dropout"}, "0.1"), HasSubstr("dropout is set"));
  EXPECT_THAT(error_with({"model", "end_of_word_suffix"}, R"("</w>")"),
              HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(error_with({"normalizer"}, R"({"type":"NFC"})"), HasSubstr("the normalizer \"NFC\""));
  EXPECT_THAT(error_with({"decoder"}, R"({"type":"Fuse"})"), HasSubstr("the decoder is \"Fuse\""));
  EXPECT_EQ(error_with({"model", "dropout"}, "0.0"), "accepted");
  EXPECT_EQ(error_with({"normalizer"}, R"({"type":"Sequence","normalizers":[]})"), "accepted");
}

TEST(TokenizerLoad, RefusesMissingAndMisshapenParts) {
  EXPECT_THAT(error_of(parse("[]")), HasSubstr("the document is an array, expected an object"));
  EXPECT_THAT(error_of(parse("{}")), HasSubstr("model is missing, expected an object"));
  EXPECT_THAT(error_with({"model"}, "1"), HasSubstr("model is an integer"));
  EXPECT_THAT(error_with({"model", "vocab"}, "[]"), HasSubstr("model.vocab is an array"));
  EXPECT_THAT(error_with({"model", "merges"}, "{}"), HasSubstr("model.merges is an object"));
  EXPECT_THAT(error_with({"pre_tokenizer"}, "null"), HasSubstr("pre_tokenizer is null"));
  EXPECT_THAT(error_with({"added_tokens"}, "{}"), HasSubstr("added_tokens is an object"));
  EXPECT_THAT(error_with({"model", "vocab", "x1"}, "1.5"),
              HasSubstr("the id of \"x1\" is a number"));
  EXPECT_THAT(error_with({"model", "vocab", "x1"}, "-1"), HasSubstr("has the id -1"));
  EXPECT_THAT(error_with({"model", "vocab", "x1"}, "3"), HasSubstr("both have the id 3"));
}

TEST(TokenizerLoad, RefusesAVocabularyWithoutAllBytes) {
  Json file = minimal();
  auto& vocab = at(file, {"model", "vocab"}).members();
  vocab.erase(vocab.begin() + 0xFF);
  EXPECT_EQ(error_of(file), "accepted") << "FF does not occur in UTF-8";
  vocab.erase(vocab.begin() + 0x41);
  EXPECT_THAT(error_of(file), HasSubstr("no token for the byte 65"));
}

// Older vocabularies lack the bytes that UTF-8 does not use, and add them as tokens.
TEST(TokenizerLoad, AcceptsAddedTokensInPlaceOfUnusedBytes) {
  Json file = minimal();
  at(file, {"added_tokens"}) = parse(R"([{"id":255,"content":"ÿ"}])");
  const auto tokenizer = load(file);

  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_THAT(tokenizer->encode("ÿ", {.added_tokens = AddedTokens::kParse}),
              ::testing::ElementsAre(255));
  EXPECT_THAT(tokenizer->encode("ÿ"), ::testing::ElementsAre(0xC3, 0xBF));
}

TEST(TokenizerLoad, RefusesBrokenMerges) {
  const auto error = [](std::string_view merges) {
    return error_with({"model", "merges"}, merges);
  };

  EXPECT_THAT(error(R"(["ab"])"), HasSubstr("merges[0] is no pair"));
  EXPECT_THAT(error(R"(["a b c"])"), HasSubstr("merges[0] is no pair"));
  EXPECT_THAT(error(R"([["a"]])"), HasSubstr("merges[0] is no pair"));
  EXPECT_THAT(error(R"([["a",1]])"), HasSubstr("merges[0] is no pair"));
  EXPECT_THAT(error(R"([1])"), HasSubstr("merges[0] is no pair"));
  EXPECT_THAT(error(R"(["a b"])"), HasSubstr("merges[0] needs the token \"ab\""));
  EXPECT_THAT(error(R"(["a zz"])"), HasSubstr("merges[0] needs the token \"zz\""));
}

TEST(TokenizerLoad, RefusesMergesThatMakeControlTokens) {
  Json file = minimal();
  at(file, {"added_tokens"}) = parse(R"([{"id":300,"content":"<>"}])");
  at(file, {"model", "merges"}) = parse(R"(["< >"])");

  EXPECT_THAT(error_of(file), HasSubstr("merges[0] makes the added token \"<>\""));
}

TEST(TokenizerLoad, RefusesBrokenAddedTokens) {
  const auto error = [](std::string_view tokens) { return error_with({"added_tokens"}, tokens); };

  EXPECT_THAT(error("[1]"), HasSubstr("added_tokens[0]: the id is missing"));
  EXPECT_THAT(error(R"([{"id":300}])"), HasSubstr("added_tokens[0]: the content is missing"));
  EXPECT_THAT(error(R"([{"id":300,"content":""}])"), HasSubstr("is empty"));
  EXPECT_THAT(error(R"([{"id":300,"content":"x","special":1}])"), HasSubstr("expected a boolean"));
  EXPECT_THAT(error(R"([{"id":300,"content":"x1","lstrip":true}])"), HasSubstr("lstrip is set"));
  EXPECT_THAT(error(R"([{"id":300,"content":"a"}])"), HasSubstr("has the id 300, but 97"));
  EXPECT_THAT(error(R"([{"id":97,"content":"a1"}])"), HasSubstr("both have the id 97"));
  EXPECT_THAT(error(R"([{"id":300,"content":"x1"},{"id":300,"content":"x1"}])"),
              HasSubstr("added_tokens[1]: \"x1\" is added twice"));
  EXPECT_THAT(error(R"([{"id":97,"content":"a"}])"), HasSubstr("no token for the byte 97"));
}

TEST(TokenizerLoad, ReadsATemplateThatAddsTheBeginning) {
  Json file = tiny_json();
  const auto with = [&](std::string_view processor) {
    at(file, {"post_processor"}) = parse(processor);
    const auto tokenizer = load(file);
    if (!tokenizer.ok()) return tokenizer.status().message();
    return str_cat("adds ", tokenizer->encode("", {.add_bos = AddBos::kAsConfigured}).size());
  };

  EXPECT_EQ(with(R"({"type":"ByteLevel"})"), "adds 0");
  EXPECT_EQ(with(R"({"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}}]})"), "adds 0");
  EXPECT_EQ(with(R"({"type":"TemplateProcessing","single":
                  [{"SpecialToken":{"id":"<｜begin▁of▁sentence｜>"}},{"Sequence":{"id":"A"}}]})"),
            "adds 1");
  EXPECT_EQ(with(R"({"type":"Sequence","processors":[{"type":"ByteLevel"},
                  {"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}}]}]})"),
            "adds 0");
  EXPECT_THAT(
      with(R"({"type":"TemplateProcessing","single":[{"Sequence":{}},{"SpecialToken":{}}]})"),
      HasSubstr("template is not known"));
  EXPECT_THAT(with(R"({"type":"TemplateProcessing","single":
                  [{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}]})"),
              HasSubstr("adds \"<s>\", which is no token"));
  EXPECT_THAT(with(R"({"type":"BertProcessing"})"), HasSubstr("\"BertProcessing\" is not known"));
  EXPECT_THAT(with(R"({"type":"Sequence","processors":[{"type":"Sequence","processors":[]}]})"),
              HasSubstr("nests sequences"));
}

TEST(TokenizerLoad, RefusesBrokenConfigurations) {
  const auto error = [](std::string_view config) { return error_of(minimal(), config); };

  EXPECT_EQ(error(R"({"bos_token":"a","eos_token":{"content":"b"},"pad_token":null,
                      "model_max_length":1000000000000000019884624838656})"),
            "accepted");
  EXPECT_THAT(error(R"({"bos_token":"<s>"})"),
              HasSubstr("bos_token is \"<s>\", which tokenizer.json does not hold"));
  EXPECT_THAT(error(R"({"eos_token":5})"), HasSubstr("eos_token is an integer"));
  EXPECT_THAT(error(R"({"pad_token":{}})"), HasSubstr("pad_token is an object"));
  EXPECT_THAT(error(R"({"add_bos_token":1})"), HasSubstr("add_bos_token is an integer"));
  EXPECT_THAT(error(R"({"add_eos_token":true})"), HasSubstr("add_eos_token is set"));
}

TEST(TokenizerLoad, EnforcesTheNumberOfAddedTokens) {
  const auto list = [](int count) {
    std::vector<Json> tokens;
    for (int i = 0; i < count; ++i) {
      tokens.push_back(Json::object(
          {{"id", Json::integer(300 + i)}, {"content", Json::string(str_cat("<", i, ">"))}}));
    }
    return Json::array(std::move(tokens));
  };
  Json file = minimal();
  at(file, {"added_tokens"}) = list(65'536);
  EXPECT_EQ(error_of(file), "accepted");
  at(file, {"added_tokens"}) = list(65'537);
  EXPECT_THAT(error_of(file), HasSubstr("there are 65537 added tokens"));
}

}  // namespace
}  // namespace fathom
