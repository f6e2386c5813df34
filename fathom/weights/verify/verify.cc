#include "fathom/weights/verify/verify.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "fathom/base/hint.h"
#include "fathom/os/file.h"
#include "fathom/os/sha256.h"
#include "fathom/weights/verify/tensor_check.h"

namespace fathom {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;  // a multiple of every element's size

// One file to be read.
struct Item {
  std::string name;
  const RecordedFile* recorded = nullptr;  // null: not recorded
  int shard = -1;                          // of the checkpoint; -1: another file
  std::span<const TensorRef> tensors;      // of the shard, in the order of their data
};

// What reading one file found.
struct Found {
  VerifiedFile file;
  int64_t tensors = 0;
  std::vector<std::string> faults;
};

class Reader {
 public:
  Reader(const std::string& directory, const TensorCheck* check, const VerifyProgress& progress)
      : directory_(directory), check_(check), progress_(progress) {}

  void add_total(int64_t bytes) { total_ += bytes; }

  Found read(const Item& item) {
    Found out;
    out.file.name = item.name;
    if (item.recorded != nullptr) out.file.recorded_by = item.recorded->recorded_by;
    const Status status = read_bytes(item, out);
    if (!status.ok()) out.faults.push_back(in_one_line(status.message()));
    return out;
  }

 private:
  Status read_bytes(const Item& item, Found& out) {
    FATHOM_ASSIGN(const File file, File::open(join_path(directory_, item.name)));
    out.file.bytes = file.size();
    Sha256 hash;
    std::vector<std::byte> piece(static_cast<size_t>(std::min(kPieceBytes, file.size())));
    const auto take = [&](int64_t offset, int64_t size) -> Result<std::span<const std::byte>> {
      const auto bytes = std::span(piece).first(static_cast<size_t>(size));
      FATHOM_TRY(file.read_at(offset, bytes));
      if (item.recorded != nullptr) hash.update(std::span<const std::byte>(bytes));
      advance(size);
      return std::span<const std::byte>(bytes);
    };
    // The header, or all of a file that is no shard; then tensor by tensor, which tile the rest.
    const int64_t begin = item.tensors.empty() ? file.size() : item.tensors.front().entry.begin;
    for (int64_t at = 0; at < begin; at += kPieceBytes)
      FATHOM_TRY(take(at, std::min(kPieceBytes, begin - at)).status());
    for (const TensorRef& tensor : item.tensors) {
      ++out.tensors;
      bool sound = true;
      for (int64_t at = 0; at < tensor.entry.bytes(); at += kPieceBytes) {
        const int64_t size = std::min(kPieceBytes, tensor.entry.bytes() - at);
        FATHOM_ASSIGN(const auto values, take(tensor.entry.begin + at, size));
        if (!sound) continue;
        const Status status = check_->check(tensor, values, at);
        sound = status.ok();
        if (!sound) out.faults.push_back(in_one_line(status.message()));
      }
    }
    if (item.recorded != nullptr) compare(*item.recorded, to_hex(hash.finish()), out);
    return {};
  }

  void compare(const RecordedFile& recorded, const std::string& digest, Found& out) const {
    out.file.hash = digest == recorded.file.sha256 ? VerifiedFile::Hash::kMatches
                                                   : VerifiedFile::Hash::kDiffers;
    if (out.file.hash == VerifiedFile::Hash::kMatches) return;
    out.faults.push_back(str_cat(join_path(directory_, out.file.name), ": is not the file that ",
                                 recorded.recorded_by, " records: its SHA-256 is ", digest,
                                 ", expected ", recorded.file.sha256));
  }

  void advance(int64_t bytes) {
    if (!progress_) return;
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    progress_(done_, total_);
  }

  const std::string& directory_;
  const TensorCheck* check_;
  const VerifyProgress& progress_;
  std::mutex mutex_;
  int64_t done_ = 0;
  int64_t total_ = 0;
};

// By name, so that the report does not depend on who read what.
std::vector<Item> items_of(const Checkpoint* checkpoint,
                           const std::vector<RecordedFile>& recorded) {
  std::map<std::string, Item> items;
  for (const RecordedFile& file : recorded)
    items[file.file.name] = {.name = file.file.name, .recorded = &file, .shard = -1, .tensors = {}};
  if (checkpoint != nullptr) {
    const auto all = checkpoint->tensors();
    for (size_t begin = 0, f = 0; f < checkpoint->file_names().size(); ++f) {
      size_t end = begin;
      while (end < all.size() && all[end].file == static_cast<int>(f))
        ++end;
      Item& item = items[checkpoint->file_names()[f]];
      item.name = checkpoint->file_names()[f];
      item.shard = static_cast<int>(f);
      item.tensors = all.subspan(begin, end - begin);
      begin = end;
    }
  }
  std::vector<Item> out;
  for (auto& [name, item] : items)
    out.push_back(std::move(item));
  return out;
}

}  // namespace

VerifyReport verify_files(const std::string& directory,
                          const Checkpoint* checkpoint,
                          ThreadPool& pool,
                          const VerifyProgress& progress) {
  VerifyReport report;
  std::optional<TensorCheck> check;
  if (checkpoint != nullptr) {
    check.emplace(*checkpoint);
    report.faults = check->faults();
    for (const std::string& fault : checkpoint->index_faults())
      report.faults.push_back(fault);
  }
  Result<std::vector<RecordedFile>> recorded = recorded_files(directory);
  if (!recorded.ok()) {
    report.faults.push_back(in_one_line(recorded.status().message()));
    recorded = std::vector<RecordedFile>{};
  }
  const std::vector<Item> items = items_of(checkpoint, *recorded);
  Reader reader(directory, check ? &*check : nullptr, progress);
  for (const Item& item : items) {
    const Result<File> file = File::open(join_path(directory, item.name));
    reader.add_total(file.ok() ? file->size() : 0);  // one that does not open is a fault below
  }
  std::vector<Found> found(items.size());
  std::atomic<size_t> next{0};
  pool.run([&](int, int) {
    for (size_t i = next++; i < items.size(); i = next++)
      found[i] = reader.read(items[i]);
  });
  for (Found& f : found) {
    report.tensors += f.tensors;
    report.bytes += f.file.bytes;
    report.files.push_back(std::move(f.file));
    for (std::string& fault : f.faults)
      report.faults.push_back(std::move(fault));
  }
  return report;
}

}  // namespace fathom
