// mxrec-ckpt: looks into checkpoints without TensorFlow.
#include <iostream>
#include <string>
#include <vector>

#include "mxrec/base/thread_pool.h"
#include "tools/mxrec-ckpt/commands.h"

int main(int argc, char** argv) {
  mxrec::ThreadPool pool(mxrec::ThreadPool::HardwareThreads());
  return mxrec::RunCkptCommand(std::vector<std::string>(argv + 1, argv + argc), &pool, std::cout, std::cerr);
}
