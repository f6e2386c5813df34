#include "fathom/report/axis_names.h"

#include <algorithm>
#include <optional>

#include "fathom/base/str_cat.h"

namespace fathom {
namespace {

constexpr StepSymbol kStepSymbols[] = {
    {"T", "tokens of the step, or rows of one request or block of it"},
    {"B", "requests"},
    {"Q", "query tokens of a request"},
    {"R", "rows whose logits are wanted"},
    {"S", "keys that are expanded at once"},
    {"L", "keys of the longest request whose keys are scored"},
    {"M", "pages of the longest request"},
    {"P", "positions of the rotary table"},
    {"pages", "pages of the cache"},
    {"page_size", "tokens of a page"},
    {"page_rows", "rows of a page, each of several tokens"},
    {"rows", "such rows that the step completes"},
    {"entries", "tokens that one of them is pooled from"},
    {"seen_rows", "such rows of the longest request, if none are chosen of them"},
    {"sequences", "sequences with a ring of rows in the cache"},
    {"ring", "rows of such a ring"},
    {"step_rows", "rows beside each other in place of a ring, one of each token of a range"},
    {"slots", "places for (token, expert) pairs sorted by expert, padding included"},
    {"blocks", "blocks of such places, each of one expert"},
    {"scales", "scales of a quantised row, one for 16 values"},
    {"ids", "tokens that may be chosen, without the padding of the vocabulary"},
    {"listed", "tokens of all rows whose logits a penalty moves"},
    {"biased", "tokens of all rows with a bias"},
    {"masks", "rows that a grammar limits"},
    {"words", "words of such a row's mask"},
    {"guesses", "most probable tokens of a row"},
    {"kept", "states that are kept for the draft layer"},
};

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool is_word(char c) {
  return is_letter(c) || (c >= '0' && c <= '9');
}

// Calls word(name) for each symbol of an expression and copies what is between.
template <class F>
std::string replace_symbols(std::string_view text, F&& word) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (!is_letter(text[i])) {
      out += text[i++];
      while (i < text.size() && is_word(out.back()) && is_word(text[i]))
        out += text[i++];
      continue;
    }
    const size_t begin = i;
    while (i < text.size() && is_word(text[i]))
      ++i;
    out += word(text.substr(begin, i - begin));
  }
  return out;
}

std::vector<std::string> split_axes(std::string_view text) {
  std::vector<std::string> out(1);
  int depth = 0;
  for (char c : text) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c == ',' && depth == 0) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

bool is_compound(std::string_view text) {
  return !std::all_of(text.begin(), text.end(), is_word);
}

// Names for one record.
class Namer {
 public:
  Namer(const OpRecord& record,
        const Signature& signature,
        std::string_view limits,
        const SymbolTable& model)
      : record_(record), signature_(signature), limits_(limits), model_(model) {}

  Result<NamedAxes> run() {
    read_declared();
    out_.operands.resize(record_.num_operands);
    for (int i = 0; i < record_.num_operands; ++i) {
      if (!counts(i)) continue;
      for (int d = 0; d < operand(i).rank; ++d) {
        FATHOM_ASSIGN(std::string text, name_of(i, d));
        AxisName axis;
        axis.text = std::move(text);
        axis.fixed = fixed_size(axis.text).has_value();
        axis.number = axis.fixed ? str_cat(dim(i, d)) : with_numbers(axis.text, model_);
        out_.operands[static_cast<size_t>(i)].push_back(std::move(axis));
      }
    }
    FATHOM_TRY(bind_step());
    return std::move(out_);
  }

 private:
  const OperandRecord& operand(int i) const { return record_.operands[static_cast<size_t>(i)]; }

  int64_t dim(int i, int d) const { return operand(i).dims[static_cast<size_t>(d)]; }

  std::string_view expression(int i, int d) const {
    return signature_.operands[static_cast<size_t>(i)].axes[static_cast<size_t>(d)].expr.text;
  }

  bool counts(int i) const {
    if (operand(i).format == Format::kNone) return false;
    for (int d = 0; d < operand(i).rank; ++d)
      if (dim(i, d) == 0) return false;
    return true;
  }

  std::string place(int i, int d) const {
    return str_cat(std::string_view(record_.op.name), ": ", std::string_view(record_.kernel), ": ",
                   std::string_view(operand(i).name, operand(i).name_length), ", axis ", d, " of ",
                   static_cast<int>(operand(i).rank), " (size ", dim(i, d), ")");
  }

  // Names may end in a division, "H/128", where a limit ties scales to what they scale.
  std::optional<int64_t> fixed_size(std::string_view text) const {
    if (const size_t slash = text.rfind('/'); slash != std::string_view::npos) {
      const auto left = fixed_size(text.substr(0, slash));
      const auto right = fixed_size(text.substr(slash + 1));
      return left && right && *right > 0 ? std::optional(*left / *right) : std::nullopt;
    }
    const Result<int64_t> value = eval_axis(text, model_);
    return value.ok() ? std::optional(*value) : std::nullopt;
  }

  // What layers and weight specs said, and what that says of the signature's symbols. "T*K,": the
  // second axis is left to the signature.
  void read_declared() {
    declared_.resize(record_.num_operands);
    for (int i = 0; i < record_.num_operands; ++i) {
      if (!counts(i) || operand(i).axes == nullptr) continue;
      std::vector<std::string> texts = split_axes(operand(i).axes);
      if (texts.size() != operand(i).rank) continue;
      for (int d = 0; d < operand(i).rank; ++d) {
        const std::string& text = texts[static_cast<size_t>(d)];
        if (text.empty()) continue;
        const auto size = fixed_size(text);
        if (size && *size != dim(i, d)) continue;  // another axis with this symbol may know better
        const std::string symbol(expression(i, d));
        auto& known = size ? fixed_ : loose_;
        if (!is_compound(symbol)) known.try_emplace(symbol, text);
      }
      declared_[static_cast<size_t>(i)] = std::move(texts);
    }
  }

  Result<std::string> name_of(int i, int d) const {
    const auto& texts = declared_[static_cast<size_t>(i)];
    const std::string own = texts.empty() ? std::string{} : texts[static_cast<size_t>(d)];
    const auto own_size = own.empty() ? std::nullopt : fixed_size(own);
    if (own_size && *own_size == dim(i, d)) return own;
    const std::string symbol(expression(i, d));
    if (const auto at = fixed_.find(symbol); at != fixed_.end()) return at->second;
    if (!own.empty() && !own_size) return own;
    if (const auto at = loose_.find(symbol); at != loose_.end()) return at->second;
    if (!symbol.empty() && symbol[0] >= '0' && symbol[0] <= '9' && !is_compound(symbol)) {
      return symbol;
    }
    if (is_compound(symbol)) {
      if (const std::string text = compound(symbol); !text.empty()) return text;
    }
    if (const std::string text = limited_axis(symbol); !text.empty()) return text;
    if (const std::string text = scaled_axis(i, d); !text.empty()) return text;
    if (dim(i, d) == 1) return std::string("1");
    if (own_size) {
      return internal_error(str_cat(place(i, d), " is named ", own, ", which is ", *own_size));
    }
    return internal_error(str_cat(place(i, d), " has no name"));
  }

  // From "K==128*G" that G is K's name over 128, from "E1==E+1" that E1 is E's plus 1.
  std::string limited_axis(std::string_view symbol) const {
    std::string_view rest = limits_;
    while (!rest.empty()) {
      const size_t end = std::min(rest.find(", "), rest.size());
      const std::string_view limit = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 2, rest.size()));
      const size_t equal = limit.find("==");
      if (equal == std::string_view::npos || limit.find('%') != std::string_view::npos) continue;
      const std::string_view left = limit.substr(0, equal);
      const std::string_view right = limit.substr(equal + 2);
      if (left == symbol) return compound(right);
      const size_t times = right.find('*');
      if (times == std::string_view::npos || right.substr(times + 1) != symbol) continue;
      if (const std::string whole = compound(left); !whole.empty()) {
        return str_cat(is_compound(whole) ? str_cat("(", whole, ")") : whole, "/",
                       right.substr(0, times));
      }
    }
    return {};
  }

  // Scales have an axis for each axis of what they scale: "w_scales" goes with "w". Empty where the
  // sizes differ.
  std::string scaled_axis(int i, int d) const {
    const std::string_view name(operand(i).name, operand(i).name_length);
    const std::string_view scaled = name.substr(0, name.rfind('_'));
    for (int other = 0; other < record_.num_operands; ++other) {
      const OperandRecord& o = operand(other);
      const auto& texts = declared_[static_cast<size_t>(other)];
      if (other == i || std::string_view(o.name, o.name_length) != scaled) continue;
      if (d >= o.rank || texts.empty() || dim(other, d) != dim(i, d)) continue;
      return texts[static_cast<size_t>(d)];
    }
    return {};
  }

  // "2*D" with D known as "Ns*I" gives "2*(Ns*I)"; empty if a symbol is not known.
  std::string compound(std::string_view text) const {
    bool all = true;
    std::string out = replace_symbols(text, [&](std::string_view word) -> std::string {
      const std::string name(word);
      const auto fixed = fixed_.find(name);
      const auto loose = loose_.find(name);
      if (fixed == fixed_.end() && loose == loose_.end()) {
        all = false;
        return {};
      }
      const std::string& found = fixed != fixed_.end() ? fixed->second : loose->second;
      return is_compound(found) ? str_cat("(", found, ")") : found;
    });
    return all ? out : std::string{};
  }

  // Symbols of the step: first those that stand alone, then one unknown at a time from expressions,
  // which are linear in it.
  Status bind_step() {
    FATHOM_TRY(for_loose([&](int i, int d, const std::string& text) -> Status {
      if (is_compound(text)) return {};
      const auto [at, fresh] = out_.step.try_emplace(text, dim(i, d));
      if (fresh || at->second == dim(i, d)) return {};
      return internal_error(str_cat(place(i, d), " is named ", text, ", which is ", at->second));
    }));
    FATHOM_TRY(for_loose([&](int i, int d, const std::string& text) -> Status {
      return is_compound(text) ? solve(i, d, text) : Status{};
    }));
    for (const auto& entry : out_.step) {
      const auto known = step_symbols();
      if (std::none_of(known.begin(), known.end(),
                       [&](const StepSymbol& s) { return s.name == entry.first; })) {
        return internal_error(str_cat(std::string_view(record_.op.name), ": ",
                                      std::string_view(record_.kernel), ": symbol ", entry.first,
                                      " is neither a size of the model nor of a step"));
      }
    }
    return {};
  }

  template <class F>
  Status for_loose(F&& f) {
    for (int i = 0; i < record_.num_operands; ++i) {
      const auto& axes = out_.operands[static_cast<size_t>(i)];
      for (size_t d = 0; d < axes.size(); ++d) {
        if (!axes[d].fixed) FATHOM_TRY(f(i, static_cast<int>(d), axes[d].text));
      }
    }
    return {};
  }

  Status solve(int i, int d, const std::string& text) {
    SymbolTable known = model_;
    std::string unknown;
    replace_symbols(text, [&](std::string_view word) -> std::string {
      const std::string name(word);
      if (model_.find(name)) return {};
      if (const auto at = out_.step.find(name); at != out_.step.end()) {
        known.set(name, at->second);
      } else {
        unknown = name;
      }
      return {};
    });
    if (!unknown.empty()) {
      known.set(unknown, 0);
      const Result<int64_t> at_0 = eval_axis(text, known);
      known.set(unknown, 1);
      const Result<int64_t> at_1 = eval_axis(text, known);
      if (at_0.ok() && at_1.ok() && *at_1 != *at_0 && (dim(i, d) - *at_0) % (*at_1 - *at_0) == 0) {
        out_.step[unknown] = (dim(i, d) - *at_0) / (*at_1 - *at_0);
        known.set(unknown, out_.step[unknown]);
      }
    }
    const Result<int64_t> value = eval_axis(text, known);
    if (value.ok() && *value == dim(i, d)) return {};
    return internal_error(str_cat(place(i, d), " is named ", text, ", which ",
                                  value.ok() ? str_cat("is ", *value) : value.status().message()));
  }

  const OpRecord& record_;
  const Signature& signature_;
  std::string_view limits_;
  const SymbolTable& model_;
  std::vector<std::vector<std::string>> declared_;
  std::map<std::string, std::string> fixed_;  // symbol of the signature to a name of the model
  std::map<std::string, std::string> loose_;  // ... to a name of the step
  NamedAxes out_;
};

}  // namespace

std::span<const StepSymbol> step_symbols() {
  return kStepSymbols;
}

std::string with_numbers(std::string_view axis, const SymbolTable& model) {
  return replace_symbols(axis, [&](std::string_view word) -> std::string {
    const auto value = model.find(word);
    return value ? str_cat(*value) : std::string(word);
  });
}

Result<NamedAxes> name_axes(const OpRecord& record,
                            const Signature& signature,
                            std::string_view limits,
                            const SymbolTable& model) {
  return Namer(record, signature, limits, model).run();
}

}  // namespace fathom
