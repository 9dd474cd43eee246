// PrepareRows: what the common options (optimizer.h) do to rows and their gradients before a rule sees them.
#ifndef MXREC_OPTIM_PREPARE_ROWS_H_
#define MXREC_OPTIM_PREPARE_ROWS_H_

#include "mxrec/optim/optimizer.h"

namespace mxrec::internal {

// 0 = off, each.
struct CommonOptions {
  float row_clip_norm = 0, l2_regularization = 0, weight_decay = 0;
  bool any() const { return row_clip_norm != 0 || l2_regularization != 0 || weight_decay != 0; }
};

// Sets the constants from 12 on, which are PrepareRows' own.
void SetPrepareConstants(const CommonOptions& options, float learning_rate, StepConstants* constants);

// Writes the gradients that the rule shall see to prepared [count, dim] and decays the values of the rows.
using PrepareFunction = void (*)(const StepConstants& constants, const RowBatch& batch, float* prepared);
void PrepareRows(const StepConstants& constants, const RowBatch& batch, float* prepared);
// The same, one element at a time.
void PrepareRowsReference(const StepConstants& constants, const RowBatch& batch, float* prepared);

}  // namespace mxrec::internal

#endif  // MXREC_OPTIM_PREPARE_ROWS_H_
