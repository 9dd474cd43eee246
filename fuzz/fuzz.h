// What a fuzz target provides. The driver (fuzz/main.cc) feeds it; libFuzzer could as well.
//
// A target must return for every input: no crash, no hang, no leak, memory in proportion to the input. It should also check what
// must hold of accepted inputs (encode(decode(x)) == x, fast == reference) and stop with MXREC_CHECK when it does not.
#ifndef MXREC_FUZZ_FUZZ_H_
#define MXREC_FUZZ_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace mxrec {

// Optional: valid inputs, from which mutations start. Without them few inputs get past a checksum.
[[gnu::weak]] std::vector<std::string> FuzzSeeds();

}  // namespace mxrec

#endif  // MXREC_FUZZ_FUZZ_H_
