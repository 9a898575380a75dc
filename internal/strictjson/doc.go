// Package strictjson reads JSON that people write by hand, and tells them all that
// is wrong with it: file, line, column and key of every problem, with the nearest
// valid key for a misspelt one.
//
// Accepted beyond plain JSON are comments, trailing commas, a byte order mark and
// any line ends. Everything else that could mean something other than what its
// author thinks is a problem: unknown and duplicate keys, keys in another case,
// null, numbers where texts belong, encodings other than UTF-8, files that are too
// large or nested too deeply.
//
// Decode fills structs by their json tags. What a file does not mention keeps its
// value, so that defaults are set before. Rules that go beyond a single value are
// checked afterwards, and reported at the place that Document.At gives.
package strictjson
