// Pages that people write name kernels that are there.
#include <algorithm>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <vector>

#include "fathom/base/str_cat.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/os/file.h"

namespace fathom {
namespace {

/// Words in backticks that are made as kernels' names are: lower case with an ending that kernels
/// alone have.
std::set<std::string> kernel_names_in(const std::string& text) {
  constexpr const char* kEndings[] = {"_gemm", "_bmm",     "_mm",     "_moe",   "_attention",
                                      "norm",  "_mul",     "_decode", "_gate",  "_softmax",
                                      "_rope", "_sigmoid", "_multi",  "_skewed"};
  std::set<std::string> names;
  for (size_t at = text.find('`'); at != std::string::npos; at = text.find('`', at)) {
    const size_t end = text.find('`', at + 1);
    if (end == std::string::npos) break;
    const std::string word = text.substr(at + 1, end - at - 1);
    at = end + 1;
    const bool plain = std::all_of(word.begin(), word.end(), [](char c) {
      return c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    });
    const bool ends = std::any_of(std::begin(kEndings), std::end(kEndings),
                                  [&](const char* ending) { return word.ends_with(ending); });
    if (plain && ends) names.insert(word);
  }
  return names;
}

TEST(DocumentedKernels, AreKernelsOrReferenceNames) {
  size_t named = 0;
  for (const char* page : {"README.md", "docs/architecture.md", "docs/benchmarking.md",
                           "docs/inside.md", "docs/numerics.md", "docs/performance.md"}) {
    const std::string text = read_file(str_cat(FATHOM_SOURCE_DIR "/", page), 1 << 20).value();
    const std::set<std::string> names = kernel_names_in(text);
    named += names.size();
    for (const std::string& name : names)
      EXPECT_NE(find_kernel(name), nullptr) << page << " names " << name;
  }
  EXPECT_GT(named, 20u);
}

TEST(DocumentedKernels, AnUnknownNameIsFound) {
  EXPECT_EQ(kernel_names_in("runs `bf16_gemm`, not `bf17_gemm` nor `--seq`"),
            (std::set<std::string>{"bf16_gemm", "bf17_gemm"}));
  EXPECT_EQ(find_kernel("bf17_gemm"), nullptr);
}

}  // namespace
}  // namespace fathom
