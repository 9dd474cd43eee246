// Store: how ranks that do not know each other's addresses meet. Each publishes bytes under keys and waits for those of the others.
//
// Keys are set once and stay; a second world in one process uses other keys (the caller puts its name in front). Values are small.
// Threads: any.
#ifndef MXREC_COMM_STORE_H_
#define MXREC_COMM_STORE_H_

#include <memory>
#include <string>
#include <string_view>

#include "mxrec/base/status.h"
#include "mxrec/comm/transport.h"

namespace mxrec {

class Store {
 public:
  virtual ~Store() = default;
  // AlreadyExists: the key has other bytes already.
  virtual Status Set(std::string_view key, std::string_view value) = 0;
  // Waits for the key. Cancelled: nobody set it before the deadline.
  virtual Result<std::string> Get(std::string_view key, Deadline deadline) = 0;
};

// For ranks in one process.
std::shared_ptr<Store> MakeMemoryStore();
// For ranks that see one folder, which is made when it is missing: a file for each key, published by renaming. The files stay until
// somebody removes the folder. Unavailable: the file system refuses.
Result<std::shared_ptr<Store>> MakeFileStore(std::string folder);
// The same store with `prefix` before every key.
std::shared_ptr<Store> MakePrefixStore(std::shared_ptr<Store> store, std::string prefix);

}  // namespace mxrec

#endif  // MXREC_COMM_STORE_H_
