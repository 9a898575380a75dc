// Package registry keeps sessions on disk: one folder per session, and nothing in
// memory that another process would have to be told about.
//
//	<dir>/sessions/<id>/session.json    the checkpoint: one Record, replaced as a whole
//	<dir>/sessions/<id>/events.log      appended only; see Entry for what a reader gets
//	<dir>/sessions/<id>/lock            held by whoever drives the session
//	<dir>/sessions/<id>/holder.json     who that is, for the error of everybody else
//	<dir>/sessions/<id>/turns/<n>/…     files of a turn, such as result.md
//	<dir>/sessions/quarantine/…         damaged sessions, set aside with their reason
//
// Any number of processes may have one registry open. Reading takes no lock;
// writing a session takes its lock, and each lock carries a higher fencing number.
//
// # What is durable when
//
// Create, Lock, Put, AppendSync and WriteFileSync are durable when they return:
// file and folder are synced, so that neither a kill nor a power cut undoes them.
// Append and WriteFile survive the death of every process, not a power cut.
//
// A record is replaced by rename, so a reader sees the old or the new one and
// never a mixture; a kill in between leaves a dot file, which the next Lock
// removes. The log is written in frames of length and CRC-32C: an incomplete frame
// at the end is what a kill leaves behind, and is cut off (a copy is kept in
// cut/); damage anywhere else is stepped over and reported, and stays where it is.
package registry
