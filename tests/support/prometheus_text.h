// A strict reader of the Prometheus text format 0.0.4, written from its description: HELP and TYPE
// once and before the samples of a family, families not mixed, no series twice, names and escapes
// by the grammar, histograms cumulative with +Inf equal to _count. For tests.
#pragma once

#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/base/str_cat.h"

namespace fathom {

struct PrometheusSample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

struct PrometheusFamily {
  std::string name;
  std::string help;
  std::string type;
  std::vector<PrometheusSample> samples;
};

class PrometheusReader {
 public:
  static Result<std::vector<PrometheusFamily>> read(std::string_view text) {
    PrometheusReader reader;
    if (text.empty() || text.back() != '\n') return corrupt("the text does not end with a line");
    for (int line = 1; !text.empty(); ++line) {
      const size_t end = text.find('\n');
      if (Status s = reader.read_line(text.substr(0, end)); !s.ok()) {
        return std::move(s).add_context(str_cat("line ", line));
      }
      text.remove_prefix(end + 1);
    }
    for (const PrometheusFamily& family : reader.families_)
      FATHOM_TRY(check_family(family));
    return std::move(reader.families_);
  }

 private:
  static bool is_name(std::string_view name, bool colons) {
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
    for (const char c : name) {
      const bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                        (c >= '0' && c <= '9') || c == '_' || (colons && c == ':');
      if (!good) return false;
    }
    return true;
  }

  Status read_line(std::string_view line) {
    if (line.starts_with("# HELP ")) return read_comment(line.substr(7), true);
    if (line.starts_with("# TYPE ")) return read_comment(line.substr(7), false);
    if (line.empty() || line[0] == '#') return corrupt("an empty line or a comment");
    return read_sample(line);
  }

  Status read_comment(std::string_view rest, bool help) {
    const size_t space = rest.find(' ');
    if (space == std::string_view::npos) return corrupt("HELP or TYPE without a text");
    const std::string name(rest.substr(0, space));
    const std::string text(rest.substr(space + 1));
    if (!is_name(name, true)) return corrupt(str_cat("bad name ", name));
    if (help) {
      if (!known_.insert(name).second) return corrupt(str_cat("family ", name, " twice"));
      families_.push_back({.name = name, .help = text, .type = {}, .samples = {}});
      return {};
    }
    if (families_.empty() || families_.back().name != name) return corrupt("TYPE without HELP");
    if (!families_.back().type.empty()) return corrupt("TYPE twice");
    if (!families_.back().samples.empty()) return corrupt("TYPE behind samples");
    if (text != "counter" && text != "gauge" && text != "histogram") {
      return corrupt(str_cat("unknown type ", text));
    }
    families_.back().type = text;
    return {};
  }

  Status read_labels(std::string_view line, size_t& at, PrometheusSample& sample) {
    ++at;  // {
    while (at < line.size() && line[at] != '}') {
      const size_t equals = line.find("=\"", at);
      if (equals == std::string_view::npos) return corrupt("a label without a value");
      const std::string name(line.substr(at, equals - at));
      if (!is_name(name, false)) return corrupt(str_cat("bad label ", name));
      std::string value;
      for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
        if (line[at] != '\\') {
          value += line[at];
          continue;
        }
        if (++at >= line.size()) return corrupt("an escape at the end");
        if (line[at] != 'n' && line[at] != '\\' && line[at] != '"') return corrupt("bad escape");
        value += line[at] == 'n' ? '\n' : line[at];
      }
      if (at >= line.size()) return corrupt("a label that does not end");
      ++at;
      if (!sample.labels.emplace(name, value).second) return corrupt("a label twice");
      if (at < line.size() && line[at] == ',') ++at;
    }
    if (at >= line.size()) return corrupt("labels that do not end");
    ++at;
    return {};
  }

  static std::optional<double> number(std::string_view text) {
    if (text == "+Inf") return std::numeric_limits<double>::infinity();
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
  }

  Status read_sample(std::string_view line) {
    PrometheusSample sample;
    size_t at = line.find_first_of("{ ");
    if (at == std::string_view::npos) return corrupt("a sample without a value");
    sample.name = line.substr(0, at);
    if (!is_name(sample.name, true)) return corrupt(str_cat("bad name ", sample.name));
    if (line[at] == '{') FATHOM_TRY(read_labels(line, at, sample));
    if (at >= line.size() || line[at] != ' ') return corrupt("no blank before the value");
    const std::optional<double> value = number(line.substr(at + 1));
    if (!value || std::isnan(*value)) return corrupt("a value that is no number");
    sample.value = *value;
    std::string series = sample.name;
    for (const auto& [name, text] : sample.labels)
      series += '\0' + name + '\0' + text;
    if (!series_.insert(series).second) return corrupt(str_cat("series twice: ", line));
    if (families_.empty() || families_.back().type.empty()) return corrupt("no TYPE before");
    if (!belongs(sample.name, families_.back())) {
      return corrupt(str_cat(sample.name, " among samples of ", families_.back().name));
    }
    families_.back().samples.push_back(std::move(sample));
    return {};
  }

  static bool belongs(const std::string& name, const PrometheusFamily& family) {
    if (family.type != "histogram") return name == family.name;
    return name == family.name + "_bucket" || name == family.name + "_sum" ||
           name == family.name + "_count";
  }

  static Status check_family(const PrometheusFamily& family) {
    if (family.type.empty()) return corrupt(str_cat(family.name, " has no TYPE"));
    if (family.type == "counter" && !family.name.ends_with("_total")) {
      return corrupt(str_cat("counter ", family.name, " does not end in _total"));
    }
    if (family.type != "histogram") return {};

    struct Seen {
      double below = -std::numeric_limits<double>::infinity();  // the last boundary
      double count = 0;                                         // up to it
      std::optional<double> sum;
      std::optional<double> total;
    };

    std::map<std::map<std::string, std::string>, Seen> histograms;
    for (PrometheusSample s : family.samples) {
      const std::string where = str_cat("histogram ", family.name, ": ");
      if (!s.name.ends_with("_bucket")) {
        Seen& seen = histograms[s.labels];
        (s.name.ends_with("_sum") ? seen.sum : seen.total) = s.value;
        continue;
      }
      const auto le = s.labels.find("le");
      if (le == s.labels.end()) return corrupt(where + "a bucket without le");
      const std::optional<double> boundary = number(le->second);
      if (!boundary) return corrupt(where + "le is no number");
      s.labels.erase("le");
      Seen& seen = histograms[s.labels];
      if (*boundary <= seen.below) return corrupt(where + "boundaries do not rise");
      if (s.value < seen.count) return corrupt(where + "buckets are not cumulative");
      seen.below = *boundary;
      seen.count = s.value;
    }
    for (const auto& [labels, seen] : histograms) {
      const std::string where = str_cat("histogram ", family.name, ": ");
      if (!seen.sum || !seen.total) return corrupt(where + "_sum or _count is missing");
      if (!std::isinf(seen.below)) return corrupt(where + "the last bucket is not +Inf");
      if (seen.count != *seen.total) return corrupt(where + "+Inf is not _count");
    }
    return {};
  }

  std::vector<PrometheusFamily> families_;
  std::set<std::string> known_;
  std::set<std::string> series_;
};

}  // namespace fathom
