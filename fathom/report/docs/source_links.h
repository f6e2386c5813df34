// Places in the source as text: a link where the sources are at hand, file and function elsewhere.
#pragma once

#include <string>
#include <string_view>

#include "fathom/report/recording.h"

namespace fathom {

struct SourceLinks {
  bool linked = false;
  std::string root;    ///< from the document to the project, "../../..", where linked
  bool lines = false;  ///< line numbers too; without them documents stay when code above moves

  /// "`mla_attend()` in [mla_project.cc](../../../fathom/layers/attention/mla_project.cc)".
  std::string place(const CallSite& site) const;

  /// A file of the project: "[rmsnorm.h](../../../fathom/kernels/norm/rmsnorm/rmsnorm.h)".
  std::string file(std::string_view path, int line = 0) const;
};

/// A Markdown page whose links that occur more than once are written by reference, with their
/// targets once at its end: "[mlp.cc][1]" ... "[1]: ../../../fathom/layers/ffn/mlp.cc". Reads and
/// links the same, and takes a third less space.
std::string with_shared_links(std::string_view page);

/// "fathom/kernels/norm/rmsnorm/rmsnorm.h": where the contract of a kernel is.
std::string contract_path(std::string_view kernel);

}  // namespace fathom
