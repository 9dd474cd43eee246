// Crc32c: the checksum of every stored block (Castagnoli polynomial, reflected, initial and final inversion; as in iSCSI, RFC
// 3720). Crc32c("123456789") = 0xE3069283. Runs at memory speed through ISA-L.
#ifndef MXREC_IO_CRC32C_H_
#define MXREC_IO_CRC32C_H_

#include <cstdint>
#include <string_view>

namespace mxrec {

// Of data, or of what `crc` is the checksum of with data appended: Crc32c(a + b) == Crc32c(b, Crc32c(a)).
uint32_t Crc32c(std::string_view data, uint32_t crc = 0);
// Crc32c(a + b) from the checksums of a and b and the length of b, in O(log length): parts can be summed in parallel.
uint32_t Crc32cCombine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

}  // namespace mxrec

#endif  // MXREC_IO_CRC32C_H_
