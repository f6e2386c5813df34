// A case of the decode kernels, which files of cases share.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"

namespace fathom {

struct DecodeShape {
  CaseSpec spec;
  std::vector<int64_t> kv_lens;
  int64_t queries = 1;
  int64_t n = 4;
  int64_t l = 32;
  int64_t r = 16;
  int64_t page_size = 16;
  Format q = Format::kBf16;
  Format cache = Format::kBf16;
  float kv_scale = 1.0f;
  double q_scale = 1.0;  ///< large: one key gets nearly all the weight
  Fill keys = {};
  int64_t spare_pages = 2;   ///< columns of the block table that nobody's keys fill
  int64_t shared_pages = 0;  ///< > 0: requests draw their pages from a pool of this size
  Format o = Format::kNone;  ///< none: that of q
  bool q_apart = false;      ///< q in two parts, of which the second is a slice
  bool sinks = false;
  float o_scale = 1.0f;
  bool by_slot = false;    ///< the block table holds slots
  int64_t slots_each = 0;  ///< > 0: every query has keys of its own, so many, some of them none
  std::function<double(int64_t)> lift = nullptr;  ///< added to the logits of key i of a request
  /// Of each request, rows of the tree behind its root that are its last keys; the queries are the
  /// last ones. -1: a chain. Empty: no trees.
  std::vector<int64_t> trees = {};
  bool lse = true;
  int64_t q_gap = 2, o_gap = 4;  ///< between heads

  Format out() const { return o == Format::kNone ? q : o; }
};

/// Adds the case to mla_decode_multi, and to mla_decode if it has one query a request.
void add_decode_case(CaseList& list, const DecodeShape& s);

// What mla_decode_edge_cases.cc adds.
void add_decode_model_widths(CaseList& list);
void add_decode_large_weights(CaseList& list);
void add_decode_trees(CaseList& list);

}  // namespace fathom
