// Decoding varints. Every number has one encoding, so accepted bytes must come back.
#include "fuzz/fuzz.h"
#include "mxrec/base/check.h"
#include "mxrec/io/varint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  std::string_view rest = input;
  std::string again;
  uint64_t value;
  while (mxrec::ConsumeVarint(&rest, &value)) mxrec::AppendVarint(value, &again);
  MXREC_CHECK(again == input.substr(0, input.size() - rest.size()));
  return 0;
}

std::vector<std::string> mxrec::FuzzSeeds() {
  std::string numbers;
  for (int bit = 0; bit < 64; ++bit) AppendVarint(uint64_t{1} << bit, &numbers);
  AppendVarint(~uint64_t{0}, &numbers);
  return {numbers, std::string(1, '\0')};
}
