// The examples in deploy/: they parse, they name metrics that the server has, and their times fit
// the drain of the server.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <sstream>
#include <yaml-cpp/yaml.h>

#include "fathom/base/str_cat.h"
#include "fathom/serve/metrics/catalogue.h"
#include "fathom/text/json.h"

namespace fathom::serve {
namespace {

constexpr int kDrainSeconds = 30;  // --drain-timeout
constexpr int kGiveUpSeconds = 5;  // the process ends so long after it

std::string read(const std::string& path, const char* folder = "deploy") {
  std::ifstream file(str_cat(FATHOM_SOURCE_DIR, "/", folder, "/", path));
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

// The value of "Key=value" lines of a unit; all of them, in order.
std::vector<std::string> unit_values(const std::string& unit, const std::string& key) {
  std::vector<std::string> values;
  std::istringstream lines(unit);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + "=")) values.push_back(line.substr(key.size() + 1));
  }
  return values;
}

bool is_word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

std::string word_at(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && is_word_char(text[end]))
    ++end;
  return std::string(text.substr(at, end - at));
}

// The family of "name_bucket", "name_sum" or "name_count" if it is a histogram, of "name" else.
const MetricInfo* family_of(const std::string& series) {
  if (const MetricInfo* metric = find_metric(series)) {
    return metric->kind == MetricKind::kHistogram ? nullptr : metric;
  }
  for (const std::string_view suffix : {"_bucket", "_sum", "_count"}) {
    if (!series.ends_with(suffix)) continue;
    const MetricInfo* metric = find_metric(series.substr(0, series.size() - suffix.size()));
    if (metric != nullptr && metric->kind == MetricKind::kHistogram) return metric;
  }
  return nullptr;
}

// Labels of "{a="x",b=~"y"}" right behind a name.
std::vector<std::string> labels_at(std::string_view text, size_t at) {
  std::vector<std::string> labels;
  if (at >= text.size() || text[at] != '{') return labels;
  bool quoted = false;
  bool expects_name = true;
  for (++at; at < text.size() && (quoted || text[at] != '}'); ++at) {
    if (text[at] == '"') quoted = !quoted;
    if (!quoted && text[at] == ',') expects_name = true;
    if (!quoted && expects_name && is_word_char(text[at])) {
      labels.push_back(word_at(text, at));
      expects_name = false;
    }
  }
  return labels;
}

// What is wrong with the metrics that a query names; counts them in `names`.
std::string wrong_names(std::string_view query, std::multiset<std::string>& names) {
  constexpr std::string_view kPrefix = "fathom:";
  for (size_t at = query.find(kPrefix); at != std::string_view::npos;
       at = query.find(kPrefix, at + 1)) {
    const std::string series = word_at(query, at + kPrefix.size());
    const MetricInfo* family = family_of(series);
    if (family == nullptr) return str_cat(series, " is no series of the server, in ", query);
    names.insert(std::string(family->name));
    std::set<std::string> known = {"model_name", "engine", "instance", "job", "le"};
    std::istringstream own((std::string(family->labels)));
    for (std::string label; std::getline(own, label, ',');)
      known.insert(label);
    for (const std::string& label : labels_at(query, at + kPrefix.size() + series.size())) {
      if (!known.contains(label)) return str_cat(series, " has no label ", label, ", in ", query);
    }
  }
  return {};
}

TEST(Deploy, FindsNamesAndLabelsThatTheServerHasNot) {
  std::multiset<std::string> names;
  EXPECT_EQ(wrong_names("sum(rate(fathom:step_seconds_sum{phase=\"x\"}[5m]))", names), "");
  EXPECT_EQ(names, std::multiset<std::string>{"step_seconds"});
  EXPECT_NE(wrong_names("fathom:step_second", names), "");
  EXPECT_NE(wrong_names("fathom:step_seconds", names), "");
  EXPECT_NE(wrong_names("fathom:engine_healthy_count", names), "");
  EXPECT_NE(wrong_names("fathom:engine_healthy{instance=~\"a,b\",phase=\"x\"}", names), "");
}

TEST(Deploy, DashboardShowsMetricsOfTheServer) {
  Result<Json> dashboard = parse_json(read("grafana/fathom.json"), {}, "fathom.json");
  ASSERT_TRUE(dashboard.ok()) << dashboard.status().message();
  const Json* panels = dashboard->find("panels");
  ASSERT_NE(panels, nullptr);

  std::multiset<std::string> names;
  std::set<int64_t> ids;
  std::set<std::pair<int64_t, int64_t>> places;
  for (const Json& panel : panels->items()) {
    EXPECT_TRUE(ids.insert(panel.find("id")->as_int()).second);
    const Json* grid = panel.find("gridPos");
    EXPECT_TRUE(places.emplace(grid->find("x")->as_int(), grid->find("y")->as_int()).second);
    EXPECT_FALSE(panel.find("title")->as_string().empty());
    ASSERT_FALSE(panel.find("targets")->items().empty());
    for (const Json& target : panel.find("targets")->items()) {
      const size_t before = names.size();
      EXPECT_EQ(wrong_names(target.find("expr")->as_string(), names), "");
      EXPECT_GT(names.size(), before) << "a query without a metric";
    }
  }
  for (const Json& variable : dashboard->find("templating")->find("list")->items()) {
    const Json* query = variable.find("query");
    if (query != nullptr && query->is_object()) {
      EXPECT_EQ(wrong_names(query->find("query")->as_string(), names), "");
    }
  }
  for (const std::string_view shown :
       {"num_requests_running", "generation_tokens_total", "time_to_first_token_seconds",
        "inter_token_latency_seconds", "kv_cache_usage_perc", "prefix_cache_hits_total",
        "num_requests_waiting", "num_preemptions_total", "request_errors_total",
        "device_memory_bytes", "step_seconds", "model_flops_total", "model_bytes_total"}) {
    EXPECT_TRUE(names.contains(std::string(shown))) << shown << " is shown nowhere";
  }
}

TEST(Deploy, AlertsAreOnMetricsOfTheServer) {
  const YAML::Node rules = YAML::Load(read("prometheus/rules.yaml"));
  std::multiset<std::string> names;
  for (const YAML::Node& group : rules["groups"]) {
    for (const YAML::Node& rule : group["rules"]) {
      EXPECT_TRUE(rule["alert"]);
      const size_t before = names.size();
      EXPECT_EQ(wrong_names(rule["expr"].as<std::string>(), names), "");
      EXPECT_GT(names.size(), before);
    }
  }
  EXPECT_TRUE(names.contains("engine_healthy"));
}

TEST(Deploy, AlertsNameCodesOfErrorsThatExist) {
  const std::string rules = read("prometheus/rules.yaml");
  const size_t begin = rules.find("code=~\"") + 7;
  std::istringstream codes(rules.substr(begin, rules.find('"', begin) - begin));
  int count = 0;
  for (std::string code; std::getline(codes, code, '|'); ++count)
    EXPECT_THAT(error_codes(), testing::Contains(code));
  EXPECT_GT(count, 1);
}

TEST(Deploy, ScrapesTheRouteOfMetrics) {
  const YAML::Node scrape = YAML::Load(read("prometheus/scrape.yaml"));
  EXPECT_EQ(scrape["rule_files"][0].as<std::string>(), "rules.yaml");
  EXPECT_EQ(scrape["scrape_configs"][0]["metrics_path"].as<std::string>(), "/metrics");
}

// Probes, drain and rights of a pod.
void check_pod(const YAML::Node& pod) {
  ASSERT_TRUE(pod["containers"]);
  const YAML::Node c = pod["containers"][0];
  EXPECT_EQ(c["livenessProbe"]["httpGet"]["path"].as<std::string>(), "/health/live");
  EXPECT_EQ(c["readinessProbe"]["httpGet"]["path"].as<std::string>(), "/health/ready");
  EXPECT_EQ(c["startupProbe"]["httpGet"]["path"].as<std::string>(), "/health/ready");
  const int pre_stop = c["lifecycle"]["preStop"]["exec"]["command"][1].as<int>();
  EXPECT_GT(pod["terminationGracePeriodSeconds"].as<int>(),
            pre_stop + kDrainSeconds + kGiveUpSeconds);
  EXPECT_TRUE(pod["securityContext"]["runAsNonRoot"].as<bool>());
  EXPECT_FALSE(c["securityContext"]["allowPrivilegeEscalation"].as<bool>());
  EXPECT_TRUE(c["securityContext"]["readOnlyRootFilesystem"].as<bool>());
  EXPECT_TRUE(c["volumeMounts"][0]["readOnly"].as<bool>());
  EXPECT_EQ(c["resources"]["requests"]["memory"].as<std::string>(),
            c["resources"]["limits"]["memory"].as<std::string>());
  // Another address than loopback needs a key.
  EXPECT_EQ(c["env"][0]["name"].as<std::string>(), "FATHOM_API_KEY");
  EXPECT_TRUE(c["env"][0]["valueFrom"]["secretKeyRef"]);
}

TEST(Deploy, PodsAreProbedDrainedAndConfined) {
  std::map<std::string, YAML::Node> kinds;
  for (const YAML::Node& document : YAML::LoadAll(read("kubernetes/fathom.yaml")))
    kinds[document["kind"].as<std::string>()] = document;
  ASSERT_TRUE(kinds.contains("Deployment") && kinds.contains("Service"));
  check_pod(kinds["Deployment"]["spec"]["template"]["spec"]);
  EXPECT_EQ(kinds["Service"]["spec"]["selector"]["app.kubernetes.io/name"].as<std::string>(),
            kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
                .as<std::string>());

  const YAML::Node set = YAML::Load(read("kubernetes/leaderworkerset.yaml"));
  ASSERT_EQ(set["kind"].as<std::string>(), "LeaderWorkerSet");
  check_pod(set["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]);
}

// A group of several pods would be several servers: nothing connects them.
TEST(Deploy, GroupsHaveOnePod) {
  const std::string text = read("kubernetes/leaderworkerset.yaml");
  EXPECT_EQ(YAML::Load(text)["spec"]["leaderWorkerTemplate"]["size"].as<int>(), 1);
  EXPECT_EQ(text.find("--nnodes"), std::string::npos);
  EXPECT_EQ(text.find("--tp"), std::string::npos);
}

TEST(Deploy, UnitStartsAgainAfterAFaultAndWaitsForTheDrain) {
  const std::string unit = read("systemd/fathom.service");
  const auto values = [&](const char* key) { return unit_values(unit, key); };
  const auto is = [](const char* value) { return std::vector<std::string>{value}; };

  EXPECT_EQ(values("Restart"), is("on-failure"));
  EXPECT_EQ(values("RestartForceExitStatus"), is("70"));
  EXPECT_EQ(values("RestartPreventExitStatus"), is("64 65 69 78"));
  EXPECT_EQ(values("KillSignal"), is("SIGTERM"));
  ASSERT_EQ(values("TimeoutStopSec").size(), 1u);
  EXPECT_GT(values("TimeoutStopSec")[0], str_cat(kDrainSeconds + kGiveUpSeconds));
  EXPECT_EQ(values("TimeoutStopSec")[0].size(), 2u);
  for (const char* key : {"DynamicUser", "NoNewPrivileges", "ProtectHome", "PrivateTmp"})
    EXPECT_EQ(values(key), is("yes")) << key;
  EXPECT_EQ(values("ProtectSystem"), is("strict"));
  EXPECT_EQ(values("CapabilityBoundingSet"), is(""));
}

TEST(Deploy, ImageIsNotRootAndIsProbed) {
  const std::string text = read("container/Containerfile");

  EXPECT_NE(text.find("\nFROM docker.io/library/debian:12-slim\n"), std::string::npos);
  EXPECT_GT(text.find("\nUSER 10001:10001\n"), text.find("debian:12-slim"));
  EXPECT_NE(text.find("\nSTOPSIGNAL SIGTERM\n"), std::string::npos);
  EXPECT_NE(text.find("\nHEALTHCHECK "), std::string::npos);
  EXPECT_NE(text.find("GET /health/ready HTTP/1.1"), std::string::npos);
  EXPECT_EQ(text.find("insecure"), std::string::npos);
}

TEST(Deploy, ReadmeNamesEveryFile) {
  const std::string readme = read("README.md");
  const std::filesystem::path root = str_cat(FATHOM_SOURCE_DIR, "/deploy");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || name == "README.md" || name.ends_with("ignore")) continue;
    EXPECT_NE(readme.find(name), std::string::npos) << name;
  }
}

TEST(Deploy, DocumentNamesEveryMetric) {
  const std::string text = read("serving.md", "docs");
  for (const MetricInfo& metric : metric_catalogue()) {
    const std::string labels = metric.labels.empty() ? "" : str_cat("{", metric.labels, "}");
    EXPECT_NE(text.find(str_cat("`", metric.name, labels, "`")), std::string::npos)
        << metric.name << labels;
  }
}

// The words that begin with "--" of a text, "--[no-]x" as "--x" and "--no-x".
std::set<std::string> flags_of(std::string_view text) {
  std::set<std::string> flags;
  for (size_t at = text.find("--"); at != std::string_view::npos; at = text.find("--", at + 2)) {
    if (at > 0 && (is_word_char(text[at - 1]) || text[at - 1] == '-')) continue;
    size_t begin = at + 2;
    const bool both = text.substr(begin).starts_with("[no-]");
    if (both) begin += 5;
    size_t end = begin;
    while (end < text.size() && (is_word_char(text[end]) || text[end] == '-'))
      ++end;
    if (end == begin) continue;
    flags.insert("--" + std::string(text.substr(begin, end - begin)));
  }
  return flags;
}

// Those of every command and of the engine, as the program prints them, and those of serve alone.
std::set<std::string> known_flags() {
  std::set<std::string> flags = flags_of(read("flags.md", "docs/generated"));
  flags.merge(flags_of(read("serve_flags.cc", "cli/serve")));
  return flags;
}

// Flags of the program that a text gives it; those of podman, curl and others are not meant.
TEST(Deploy, GivesFlagsThatTheProgramHas) {
  const std::set<std::string> known = known_flags();
  std::set<std::string> given;
  for (const YAML::Node& document : YAML::LoadAll(read("kubernetes/fathom.yaml"))) {
    if (document["kind"].as<std::string>() != "Deployment") continue;
    for (const YAML::Node& arg : document["spec"]["template"]["spec"]["containers"][0]["args"])
      given.merge(flags_of(arg.as<std::string>()));
  }
  const YAML::Node set = YAML::Load(read("kubernetes/leaderworkerset.yaml"));
  for (const YAML::Node& arg :
       set["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["args"])
    given.merge(flags_of(arg.as<std::string>()));
  given.merge(flags_of(unit_values(read("systemd/fathom.service"), "ExecStart").at(0)));
  const std::string image = read("container/Containerfile");
  given.merge(flags_of(image.substr(image.rfind("\nCMD"))));

  EXPECT_TRUE(given.contains("--api-key-file") && given.contains("--drain-timeout") &&
              given.contains("--host"));
  for (const std::string& flag : given)
    EXPECT_TRUE(known.contains(flag)) << flag;
}

// The tables of flags of docs/serving.md.
TEST(Deploy, DocumentNamesFlagsThatTheProgramHas) {
  const std::set<std::string> known = known_flags();
  const std::string text = read("serving.md", "docs");
  const size_t begin = text.find("\n## Flags\n");
  const size_t end = text.find("\n## Routes\n");
  ASSERT_LT(begin, end);
  std::istringstream lines(text.substr(begin, end - begin));
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `-")) continue;
    const size_t second = line.find(" | ", 2);
    const size_t third = line.find(" | ", second + 3);
    for (const std::string& flag : flags_of(line.substr(0, third))) {
      EXPECT_TRUE(known.contains(flag)) << flag << " in " << line;
      ++count;
    }
  }
  EXPECT_GT(count, 60);
}

}  // namespace
}  // namespace fathom::serve
