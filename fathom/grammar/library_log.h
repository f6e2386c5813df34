// What the grammar library has to say while it reads a grammar.
//
// It warns where it will not enforce something ("ignoring multipleOf"). Such a grammar is refused,
// so the warnings of one call are collected. The library knows no other way than a function of the
// whole program; the collector is therefore found by thread.
#pragma once

#include <string>

namespace fathom {

/// Collects the warnings that the library gives on this thread while it lives. One at a time.
class LibraryWarnings {
 public:
  LibraryWarnings();
  ~LibraryWarnings();
  LibraryWarnings(const LibraryWarnings&) = delete;
  LibraryWarnings& operator=(const LibraryWarnings&) = delete;

  /// The first warning; empty if there was none.
  const std::string& first() const { return first_; }

  /// Takes a message from the library.
  static void take(int level, const std::string& message);

 private:
  std::string first_;
};

}  // namespace fathom
