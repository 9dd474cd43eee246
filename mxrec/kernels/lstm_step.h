// LstmStep: one step of an LSTM cell for a run of rows of a batch.
#ifndef MXREC_KERNELS_LSTM_STEP_H_
#define MXREC_KERNELS_LSTM_STEP_H_

#include <cstddef>

namespace mxrec {

// What goes in: x [batch, inputs], h and c [batch, hidden], w [inputs + hidden, 4 hidden], b [4 hidden]. The columns of w and b
// are the gates i, j, f, o, each hidden wide; its rows those for x, then those for h.
struct LstmInputs {
  const float *x, *h, *c, *w, *b;
  size_t inputs, hidden;
  float forget_bias;
};

// What comes out, all [batch, hidden]:
//   i, o = sigmoid, j = tanh of their part of [x h] w + b;  f = sigmoid of its part + forget_bias
//   c' = c f + i j,  tanh_c = tanh(c'),  h' = o tanh_c
struct LstmOutputs {
  float *c, *h, *i, *j, *f, *o, *tanh_c;
};

// Computes the rows [begin, end) of the batch; a row's result does not depend on the others. NaN in gives NaN out.
// Error: that of the sums, and of sigmoid and tanh (docs/numerics.md). Threads: reads and writes only its arguments.
void LstmStep(const LstmInputs& in, size_t begin, size_t end, const LstmOutputs& out);

}  // namespace mxrec

#endif  // MXREC_KERNELS_LSTM_STEP_H_
