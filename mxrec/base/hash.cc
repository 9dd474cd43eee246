#include "mxrec/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace mxrec {

uint64_t Hash64(std::string_view bytes, uint64_t seed) { return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed); }

struct Hasher64::State {
  XXH3_state_t xxh;
};

Hasher64::Hasher64(uint64_t seed) : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->xxh);
  XXH3_64bits_reset_withSeed(&state_->xxh, seed);
}

Hasher64::~Hasher64() = default;

void Hasher64::Update(std::string_view bytes) { XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size()); }

uint64_t Hasher64::digest() const { return XXH3_64bits_digest(&state_->xxh); }

}  // namespace mxrec
