package registry

import (
	"os"
	"path/filepath"
)

// replaceFile puts data in the place of path; os.Rename replaces in one step here.
func replaceFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(data); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// syncDir does nothing: Windows journals the entries of a folder by itself.
func syncDir(string) error { return nil }

// canRenameOpen reports whether a folder can be renamed while files in it are open.
const canRenameOpen = false
