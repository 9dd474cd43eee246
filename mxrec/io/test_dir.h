// TestDir: a fresh folder for one test, removed at its end.
#ifndef MXREC_IO_TEST_DIR_H_
#define MXREC_IO_TEST_DIR_H_

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "mxrec/base/check.h"
#include "mxrec/io/env.h"

namespace mxrec {

class TestDir {
 public:
  TestDir() {
    std::string name = (std::filesystem::temp_directory_path() / "mxrec-test-XXXXXX").string();
    MXREC_CHECK(mkdtemp(name.data()) != nullptr) << name;
    path_ = name;
  }
  ~TestDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestDir(const TestDir&) = delete;
  TestDir& operator=(const TestDir&) = delete;
  const std::string& path() const { return path_; }
  std::string File(std::string_view name) const { return JoinPath(path_, name); }

 private:
  std::string path_;
};

}  // namespace mxrec

#endif  // MXREC_IO_TEST_DIR_H_
