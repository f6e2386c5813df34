// Reads the fields of a request's JSON object, one by one, with their limits. The first error stays
// and the rest reads as absent, so a reader is a list of fields and one look at error() at the end.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/runtime/sample/params.h"
#include "fathom/serve/api_error.h"
#include "fathom/text/json.h"

namespace fathom::serve {

/// Limits of a request's document: strings of 16 MiB, and a depth of 128, which holds the deepest
/// schema (GrammarLimits::max_json_depth) and what stands around it.
JsonLimits body_limits(int64_t max_bytes);

/// The object of a body. Errors of it: 400 invalid_json.
struct ParsedBody {
  Json json;
  std::optional<ApiError> error;
};

ParsedBody parse_body(std::string_view body);

class Fields {
 public:
  /// `object` outlives this. `path` stands before names in messages: "stream_options".
  explicit Fields(const Json& object, std::string path = {});

  // Absent and null are the same: std::nullopt or a null pointer.

  /// Errors: not an integer (1.0 is one: clients write it), outside [low, high].
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high);

  /// Errors: not a number, not in [low, high], or `low` itself where `above_low`.
  std::optional<double> number(std::string_view name,
                               double low,
                               double high,
                               bool above_low = false);
  std::optional<bool> boolean(std::string_view name);
  std::optional<std::string> text(std::string_view name, int64_t max_bytes);

  /// A text that must be there; empty after an error.
  std::string required_text(std::string_view name, int64_t max_bytes);
  const Json* array(std::string_view name, int64_t max_items);
  const Json* object(std::string_view name);

  /// Any value but null.
  const Json* value(std::string_view name);

  /// One of these words. The index, or absent.
  std::optional<size_t> word(std::string_view name, const std::vector<std::string_view>& words);

  /// The field is known and does nothing here.
  void ignore(std::string_view name) { seen_.insert(std::string(name)); }

  /// The field is known and not supported: an error unless it is absent, null or `harmless`.
  void refuse(std::string_view name, std::string_view why, const Json& harmless = {});

  void fail(ApiError error);

  bool ok() const { return !error_; }

  const std::optional<ApiError>& error() const { return error_; }

  /// Where a field stands: "path.name".
  std::string at(std::string_view name) const;

  /// Fails with the first field that nobody read or ignored: for --strict-api.
  void refuse_unknown();

 private:
  const Json* find(std::string_view name);
  void wrong_kind(std::string_view name, const Json& found, std::string_view expected);

  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> seen_;
  std::optional<ApiError> error_;
};

/// Reads temperature, top_p, top_k, min_p, the penalties, seed, logit_bias, min_tokens, stop,
/// stop_token_ids and ignore_eos over the values in `params`, which are the server's defaults.
/// max_tokens, n and log-probabilities differ by route and are the caller's.
void read_sampling(Fields& fields, int64_t vocab_size, SamplingParams& params);

/// Reads stop strings, one text or an array of them, under the name that a protocol gives them.
void read_stop(Fields& fields, std::string_view name, SamplingParams& params);

}  // namespace fathom::serve
