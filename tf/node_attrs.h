// Hidden attributes of nodes: what Python and the graph passes write, for the passes and the kernels.
#ifndef MXREC_TF_NODE_ATTRS_H_
#define MXREC_TF_NODE_ATTRS_H_

namespace mxrec {

// The Python line that built a collective op (python/mxrec/_collective.py, note_line).
inline constexpr char kLineAttr[] = "_mxrec_line";

// Of a node that the graph pass made of several (tf/graph/merge_pass.h), one entry a tensor: what the ranks call it, the node it
// was, and the Python line of that ("" if unknown).
inline constexpr char kMergedNamesAttr[] = "_mxrec_merged_names";
inline constexpr char kMergedNodesAttr[] = "_mxrec_merged_nodes";
inline constexpr char kMergedLinesAttr[] = "_mxrec_merged_lines";
// Of a merged node: its group has to exist when the kernel is made, as for HcomAllReduce.
inline constexpr char kMergedHcomAttr[] = "_mxrec_merged_hcom";

// Of an MxrecStepWatch: what it watches (tf/kernels/step_watch.h). An attribute of the op, not a hidden one.
inline constexpr char kWatchedAttr[] = "watched";

}  // namespace mxrec

#endif  // MXREC_TF_NODE_ATTRS_H_
