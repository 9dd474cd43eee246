// InterruptWatch: lets Ctrl-C stop a long save.
//
// Python notes a SIGINT at once but raises KeyboardInterrupt only when the main thread is back from TensorFlow, that is, after
// the save. So while a watch lives, a handler of ours stands in the place of Python's and wakes a thread, which asks Python (the
// rule) what to do: stop the saves, when the main thread waits in a session's run and Ctrl-C is to raise KeyboardInterrupt
// there; else the signal is handed on to Python's handler at once. So scripts with a handler of their own and main threads that run
// Python notice nothing. Programs without Python set no rule and are left alone.
#ifndef MXREC_TF_INTERRUPT_H_
#define MXREC_TF_INTERRUPT_H_

#include <atomic>
#include <cstdint>

namespace mxrec {

// Asked on a thread of ours after a SIGINT: nonzero when the saves shall stop; the rule then also sees to the
// KeyboardInterrupt.
using InterruptRule = int (*)();
// Null (at first): nothing is watched.
void SetInterruptRule(InterruptRule rule);

// Threads: any. Several may live at once.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;
  // Whether the rule has said stop since this was made. Cheap.
  bool interrupted() const;

 private:
  bool watching_ = false;
  uint64_t stops_before_ = 0;
};

}  // namespace mxrec

#endif  // MXREC_TF_INTERRUPT_H_
