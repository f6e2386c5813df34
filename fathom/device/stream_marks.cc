#include "fathom/device/stream_marks.h"

#include <utility>

namespace fathom {

Result<StreamMarks> StreamMarks::create(int64_t capacity) {
  StreamMarks marks;
  marks.events_.reserve(static_cast<size_t>(capacity));
  for (int64_t i = 0; i < capacity; ++i) {
    FATHOM_ASSIGN(Event event, Event::create());
    marks.events_.push_back(std::move(event));
  }
  return marks;
}

int64_t StreamMarks::mark(Stream& stream) {
  if (size_ == static_cast<int64_t>(events_.size())) {
    status_ = out_of_memory(str_cat("more than ", size_, " marks in a stream"));
  }
  if (!status_.ok()) return size_ - 1;
  status_ = events_[static_cast<size_t>(size_)].record_in_graph(stream);
  return size_++;
}

int64_t StreamMarks::newest(Stream& stream) {
  return size_ == 0 ? mark(stream) : size_ - 1;
}

Result<double> StreamMarks::us_between(int64_t from, int64_t to) const {
  return events_[static_cast<size_t>(to)].us_since(events_[static_cast<size_t>(from)]);
}

}  // namespace fathom
