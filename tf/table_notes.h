// What Python tells about the tables of its graphs, for the pass that warns of untrained ones (graph/untrained_tables_pass.h).
// Tables go by shared name, process-wide. Threads: any may call at any time.
#ifndef MXREC_TF_TABLE_NOTES_H_
#define MXREC_TF_TABLE_NOTES_H_

#include <string>

namespace mxrec {

// A new graph has a table of this shared name: forgets what was noted and warned of for the name.
void NoteTable(const std::string& shared_name);
// That graph has an op that updates the table.
void NoteTableUpdate(const std::string& shared_name);
// Whether to warn that a step leaves the table untrained: no update was noted, and it was not asked before.
bool ShallWarnOfUntrained(const std::string& shared_name);

}  // namespace mxrec

#endif  // MXREC_TF_TABLE_NOTES_H_
