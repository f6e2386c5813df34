#include "fathom/bench/files/catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/os/file.h"

namespace fathom {
namespace {

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string whole_catalogue() {
  return write_kernel_catalogue(all_kernels(), all_cases());
}

// Where two texts part, for a message that helps.
std::string first_difference(std::string_view a, std::string_view b) {
  size_t line = 1;
  while (!a.empty() || !b.empty()) {
    const std::string_view left = a.substr(0, a.find('\n'));
    const std::string_view right = b.substr(0, b.find('\n'));
    if (left != right) return str_cat("line ", line, ": '", left, "' against '", right, "'");
    a.remove_prefix(std::min(a.size(), left.size() + 1));
    b.remove_prefix(std::min(b.size(), right.size() + 1));
    ++line;
  }
  return {};
}

TEST(Catalogue, CheckedInPageIsWhatThisProgramPrints) {
  const std::string path = FATHOM_SOURCE_DIR "/docs/generated/kernel_catalogue.md";
  const Result<std::string> page = read_file(path, 16 << 20);
  ASSERT_TRUE(page.ok()) << page.status().message() << "; run ./dev docs";

  EXPECT_EQ(first_difference(*page, whole_catalogue()), "")
      << "docs/generated/kernel_catalogue.md is out of date; run ./dev docs and look at the change";
}

TEST(Catalogue, VariantsOfOtherMachinesAreListedToo) {
  EXPECT_TRUE(holds(whole_catalogue(), "| avx512 |"));
}

TEST(Catalogue, EveryKernelAndEveryTimedCaseIsThere) {
  const std::string text = whole_catalogue();

  for (const KernelEntry& kernel : all_kernels()) {
    EXPECT_TRUE(holds(text, str_cat("### ", kernel.info.name, "\n"))) << kernel.info.name;
    for (const Case* c : all_cases().of(kernel.info.name)) {
      if (!c->spec.bench || !c->spec.suite.empty()) continue;
      EXPECT_TRUE(holds(text, str_cat("`", c->spec.name, "`"))) << c->kernel << " " << c->spec.name;
    }
  }
  EXPECT_FALSE(holds(text, "not stated")) << "a contract without .flops";
}

std::vector<VariantEntry> two_variants(const KernelSet&) {
  return {{.name = "wide",
           .needs = Isa::kAvx512,
           .limits = "K%32==0",
           .traits = kDeterministic,
           .unit = MathUnit::kBf16,
           .some_formats = true},
          {.name = "portable",
           .needs = Isa::kPortable,
           .limits = "",
           .traits = kDeterministic | kBatchInvariant,
           .unit = MathUnit::kF32}};
}

Case a_case(std::string name, bool bench) {
  return {.kernel = "twice",
          .spec = {.name = std::move(name), .bench = bench},
          .make = nullptr,
          .make_for_gpu = nullptr};
}

TEST(Catalogue, AnEntryIsWhatTheContractSays) {
  const KernelEntry twice{.info = {.name = "twice",
                                   .reference_names = {"ref_twice", "ref_double"},
                                   .signature = "x[T,K]:bf16|f32 -> y[T,K]:bf16|f32",
                                   .limits = "K>=1",
                                   .equation = "y = 2 x",
                                   .source = "arithmetic",
                                   .flops = "T*K"},
                          .family = "act",
                          .group = "scaling",
                          .cpu = true,
                          .variants = two_variants,
                          .counts_bytes = true};
  CaseList cases;
  cases.add_case(a_case("t1", false));
  cases.add_case(a_case("t2", false));
  cases.add_case(a_case("t3_real", true));
  cases.add_case(a_case("t4_real", true));
  Case of_suite = a_case("t5_real", true);
  of_suite.spec.suite = "some_suite";
  cases.add_case(of_suite);

  const std::string text = write_kernel_catalogue({&twice, 1}, cases);

  EXPECT_THAT(text,
              testing::EndsWith(
                  "\n## act/scaling\n\n### twice\n\n"
                  "Reference names: `ref_twice`, `ref_double`\n\n"
                  "Equation: `y = 2 x`\n\n"
                  "```text\nx[T,K]:bf16|f32 -> y[T,K]:bf16|f32\n```\n\n"
                  "Limits: `K>=1`\n\n"
                  "Cost: FLOPs `T*K`; bytes counted by the contract; scratch memory no\n\n"
                  "| backend | variant | instruction set | limits | math | deterministic | "
                  "batch invariant |\n|---|---|---|---|---|---|---|\n"
                  "| cpu | wide | avx512 | `K%32==0`, some formats | bf16 | yes | no |\n"
                  "| cpu | portable | portable | none | f32 | yes | yes |\n\n"
                  "Cases: 2 for tests, 2 timed: `t3_real`, `t4_real`; 1 of the suite some_suite\n\n"
                  "Source: arithmetic\n"));
}

}  // namespace
}  // namespace fathom
