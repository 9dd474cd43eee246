// CRC32C by ISA-L against the definition, bit by bit, whole and in pieces.
#include "fuzz/fuzz.h"
#include "mxrec/base/check.h"
#include "mxrec/io/crc32c.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint32_t expected = ~0u;
  for (size_t i = 0; i < size; ++i) {
    expected ^= data[i];
    for (int bit = 0; bit < 8; ++bit) expected = (expected >> 1) ^ ((expected & 1) != 0 ? 0x82F63B78u : 0);
  }
  expected = ~expected;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  MXREC_CHECK(mxrec::Crc32c(input) == expected);
  const size_t cut = size == 0 ? 0 : (data[0] * size) / 256;
  const uint32_t head = mxrec::Crc32c(input.substr(0, cut));
  MXREC_CHECK(mxrec::Crc32c(input.substr(cut), head) == expected);
  MXREC_CHECK(mxrec::Crc32cCombine(head, mxrec::Crc32c(input.substr(cut)), size - cut) == expected);
  return 0;
}
