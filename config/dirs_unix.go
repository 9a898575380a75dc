//go:build !windows

package config

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

const (
	homeVariable  = "HOME"
	enforcesModes = true
)

// runtimeDir is in /tmp rather than in the home folder, since sockets need short
// paths and a file system that is local. Make checks whose it is.
func (e *environment) runtimeDir() string {
	return filepath.Join("/tmp", "subspan-"+strconv.Itoa(os.Getuid()))
}

// ownedByUser refuses a file of another user. Root's are as good as one's own.
func ownedByUser(_ string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("its owner is unknown")
	}
	if uid := uint32(os.Geteuid()); st.Uid != uid && st.Uid != 0 {
		return fmt.Errorf("it belongs to user %d, not to you (%d)", st.Uid, uid)
	}
	return nil
}
