package dropin

import "io/fs"

// checkOwner has nothing to look at here: file modes do not tell who may write.
func checkOwner(string, fs.FileInfo) error { return nil }
