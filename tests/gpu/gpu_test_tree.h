// The tree whose models and fixtures tests on a GPU read: --root, which main sets.
#pragma once

#include <string>

namespace fathom {

inline std::string& gpu_test_tree() {
  static std::string tree = ".";
  return tree;
}

}  // namespace fathom
