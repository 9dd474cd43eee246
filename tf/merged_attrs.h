// Attributes of the MxrecAllReduce nodes that the graph pass makes of several (tf/graph/merge_pass.h), for their kernel.
#ifndef MXREC_TF_MERGED_ATTRS_H_
#define MXREC_TF_MERGED_ATTRS_H_

namespace mxrec {

// Of a merged node, one entry a tensor: what the ranks call it, the node it was, and the Python line of that ("" if unknown).
inline constexpr char kMergedNamesAttr[] = "_mxrec_merged_names";
inline constexpr char kMergedNodesAttr[] = "_mxrec_merged_nodes";
inline constexpr char kMergedLinesAttr[] = "_mxrec_merged_lines";
// Of a merged node: its group has to exist when the kernel is made, as for HcomAllReduce.
inline constexpr char kMergedHcomAttr[] = "_mxrec_merged_hcom";

}  // namespace mxrec

#endif  // MXREC_TF_MERGED_ATTRS_H_
