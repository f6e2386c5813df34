// Text to token ids and back, for the byte-level BPE vocabularies of the DeepSeek families.
//
// Encoding: added tokens are cut out of the raw text where the caller allows it (added_tokens.h),
// the rest is cut into pieces (pretokenize.h), each piece is merged from bytes up (bpe.h).
// Decoding: the bytes of all tokens in a row, then UTF-8 once; stream_decoder.h does it piecewise.
//
// The reference is Hugging Face tokenizers 0.23 with `add_special_tokens=False`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/text/json.h"
#include "fathom/tokenizer/added_tokens.h"
#include "fathom/tokenizer/bpe.h"
#include "fathom/tokenizer/pretokenize.h"
#include "fathom/tokenizer/vocabulary.h"

namespace fathom {

/// Whether encode begins with the token of the beginning.
enum class AddBos {
  kNo,
  kYes,           ///< if the vocabulary names one
  kAsConfigured,  ///< as add_bos_token of tokenizer_config.json says
};

/// What text such as "<｜User｜>" or "<think>" becomes.
enum class AddedTokens {
  kAsText,  ///< ordinary tokens; text of users never becomes a control token
  kParse,   ///< the added token, as the reference does
};

/// Whether decode leaves out the tokens that tokenizer.json marks as special.
enum class SpecialTokens { kKeep, kSkip };

struct EncodeOptions {
  AddBos add_bos = AddBos::kNo;
  AddedTokens added_tokens = AddedTokens::kAsText;
};

/// A loaded vocabulary. Immutable, so safe to share between threads.
class Tokenizer {
 public:
  /// Reads tokenizer.json and, if it is there, tokenizer_config.json. Errors: NotFound, Io, and
  /// those of load_from_json.
  static Result<Tokenizer> load(const std::string& dir);

  /// The same from the texts of the two files; an empty `config_text` means no configuration.
  /// `what` stands before file names in messages. Errors: Corrupt for malformed files, a file that
  /// contradicts itself and limits; Unsupported for what no DeepSeek family uses, by name.
  static Result<Tokenizer> load_from_json(std::string_view text,
                                          std::string_view config_text,
                                          std::string_view what);

  /// The ids of a text of at most 700 MB. Invalid UTF-8 counts as U+FFFD. Linear time, up to the
  /// logarithm of the longest piece. With AddedTokens::kAsText no id is one of an added token.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// The text of ids. Ids without a token (a model's logits may be wider than the vocabulary) give
  /// nothing; bytes that are not UTF-8 give U+FFFD.
  std::string decode(std::span<const int32_t> ids,
                     SpecialTokens special_tokens = SpecialTokens::kKeep) const;

  /// The bytes of one token, possibly part of a character; empty for an id without a token.
  std::string_view token_bytes(int32_t id) const { return vocabulary_.bytes(id); }

  /// The token as tokenizer.json writes it ("Ġthe"); empty for an id without a token.
  std::string_view token_text(int32_t id) const { return vocabulary_.text(id); }

  /// The id of a token as tokenizer.json writes it.
  std::optional<int32_t> token_to_id(std::string_view text) const { return vocabulary_.find(text); }

  /// One past the largest id. A model's logits may be wider.
  int32_t vocab_size() const { return vocabulary_.size(); }

  std::optional<int32_t> bos_id() const { return bos_id_; }

  std::optional<int32_t> eos_id() const { return eos_id_; }

  std::optional<int32_t> pad_id() const { return pad_id_; }

  /// tokenizer_config.json, for what is said there of chat templates; null if there is none.
  const Json& config() const { return config_; }

  /// Whether tokenizer.json marks the token as special. `<think>` and the tool markers are added,
  /// but not special.
  bool is_special(int32_t id) const { return has_trait(id, kSpecial); }

  /// Whether the token is an added one: a control token or a marker, never made by merges.
  bool is_added(int32_t id) const { return has_trait(id, kAdded); }

 private:
  friend class TokenizerLoader;

  static constexpr uint8_t kAdded = 1;
  static constexpr uint8_t kSpecial = 2;

  bool has_trait(int32_t id, uint8_t trait) const {
    return id >= 0 && static_cast<size_t>(id) < traits_.size() && (traits_[id] & trait) != 0;
  }

  // What encode works with: the output and the memory kept between pieces.
  struct Work;

  // Cuts out the added tokens of one matcher and hands the rest on.
  void encode_around(const AddedTokenMatcher& matcher,
                     std::string_view text,
                     const AddedTokenMatcher* next,
                     Work& work) const;
  void encode_plain(std::string_view text, Work& work) const;

  Vocabulary vocabulary_;
  Bpe bpe_;
  Pretokenizer pretokenizer_;
  // Added tokens that are looked for first (normalized = false), and those looked for in what is
  // left (normalized = true; the normaliser itself does nothing).
  AddedTokenMatcher raw_added_;
  AddedTokenMatcher normalized_added_;
  std::vector<uint8_t> traits_;  // by id
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
  std::optional<int32_t> pad_id_;
  Json config_;
  bool adds_bos_ = false;
};

}  // namespace fathom
