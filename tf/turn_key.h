// What a collective node is known by to its kernel and to the watch of its steps (tf/kernels/step_watch.h).
#ifndef MXREC_TF_TURN_KEY_H_
#define MXREC_TF_TURN_KEY_H_

#include <string>

#include "tensorflow/core/framework/node_def_util.h"

namespace mxrec {

inline std::string TurnKey(const std::string& node, const tensorflow::AttrSlice& attrs) {
  std::string key = node;
  for (const char* const attribute : {"group", "tensor_name", "dest_rank", "src_rank", "sr_tag"}) {
    key.append("\n");
    if (const tensorflow::AttrValue* const value = attrs.Find(attribute); value != nullptr) {
      key.append(value->value_case() == tensorflow::AttrValue::kI ? std::to_string(value->i()) : value->s());
    }
  }
  return key;
}

}  // namespace mxrec

#endif  // MXREC_TF_TURN_KEY_H_
