//go:build unix

package dropin

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// checkOwner refuses what others than the user and root could change.
func checkOwner(path string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s may be changed by others (mode %#o): run chmod go-w on it", path, info.Mode().Perm())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%s belongs to user %d: a plugin must belong to you or to root", path, st.Uid)
	}
	return nil
}
