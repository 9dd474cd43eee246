#include "tf/table_notes.h"

#include <mutex>
#include <set>

namespace mxrec {
namespace {

struct Notes {
  std::mutex mutex;
  std::set<std::string> updated, warned;
};
Notes& TheNotes() {
  static Notes* const notes = new Notes;  // never destroyed: sessions may outlive static objects
  return *notes;
}

}  // namespace

void NoteTable(const std::string& shared_name) {
  Notes& notes = TheNotes();
  const std::lock_guard<std::mutex> lock(notes.mutex);
  notes.updated.erase(shared_name);
  notes.warned.erase(shared_name);
}

void NoteTableUpdate(const std::string& shared_name) {
  Notes& notes = TheNotes();
  const std::lock_guard<std::mutex> lock(notes.mutex);
  notes.updated.insert(shared_name);
}

bool ShallWarnOfUntrained(const std::string& shared_name) {
  Notes& notes = TheNotes();
  const std::lock_guard<std::mutex> lock(notes.mutex);
  return !notes.updated.contains(shared_name) && notes.warned.insert(shared_name).second;
}

}  // namespace mxrec
