//go:build !windows

package registry

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// replaceFile puts data in the place of path. The folder's entry is not synced.
func replaceFile(path string, data []byte) error {
	// The temporary file belongs beside its target: renameio may otherwise choose
	// the system's folder, where nobody would clean up after a kill.
	return renameio.WriteFile(path, data, 0o600, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(0o600))
}

// syncDir makes the entries of a folder durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	// Some file systems cannot sync a folder, and have nothing to sync there.
	if err := f.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("sync folder: %w", err)
	}
	return nil
}

// canRenameOpen reports whether a folder can be renamed while files in it are open.
const canRenameOpen = true
