#include "fathom/models/dry/dry_records.h"

#include "fathom/trace/recorder.h"

namespace fathom {

Result<std::vector<OpRecord>> dry_records(const Model& model,
                                          const BatchShape& shape,
                                          DryRunOptions options) {
  // The calls are counted first: how many a request in chunks of keys makes is the model's
  // business.
  Recorder counter(RecordLevel::kShapes, 1);
  options.recorder = &counter;
  FATHOM_TRY(dry_run(model, shape, options).status());
  Recorder recorder(RecordLevel::kShapes, counter.total());
  options.recorder = &recorder;
  FATHOM_TRY(dry_run(model, shape, options).status());
  return recorder.records();
}

}  // namespace fathom
