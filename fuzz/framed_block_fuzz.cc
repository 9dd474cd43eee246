// Reading a file of framed blocks. Accepted blocks must be written again as the same bytes.
#include <span>

#include "fuzz/fuzz.h"
#include "mxrec/base/check.h"
#include "mxrec/io/framed_block.h"

namespace {

constexpr uint32_t kMagic = 0x54584D42;

class MemoryFile final : public mxrec::RandomAccessFile {
 public:
  explicit MemoryFile(std::string_view data) : data_(data) {}
  uint64_t size() const override { return data_.size(); }
  mxrec::Status ReadAt(uint64_t offset, std::span<char> buffer) const override {
    if (buffer.empty()) return mxrec::OkStatus();
    if (offset > data_.size() || buffer.size() > data_.size() - offset) return mxrec::DataLossError("memory: the file ends early");
    data_.copy(buffer.data(), buffer.size(), offset);
    return mxrec::OkStatus();
  }

 private:
  std::string_view data_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const MemoryFile file(input);
  std::string payload;
  for (mxrec::BlockPlace place{.file = "memory"}; place.offset < size; ++place.block) {
    const auto header = mxrec::ReadBlock(file, kMagic, uint64_t{1} << 40, place, &payload);
    if (!header.ok()) {
      MXREC_CHECK(header.status().code() == mxrec::StatusCode::kDataLoss) << header.status();
      break;
    }
    std::string again;
    mxrec::AppendBlock(kMagic, header->type, payload, &again);
    MXREC_CHECK(again == input.substr(place.offset, again.size())) << "block " << place.block;
    place.offset += again.size();
  }
  return 0;
}

std::vector<std::string> mxrec::FuzzSeeds() {
  std::string one, three;
  AppendBlock(kMagic, 1, "payload", &one);
  for (const char* payload : {"", "x", "a longer payload"}) AppendBlock(kMagic, 2, payload, &three);
  return {one, three};
}
