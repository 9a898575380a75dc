package registry

import (
	"path/filepath"

	"github.com/gofrs/flock"
)

// Driven reports whether some process, this one included, holds a session's lock
// now. It lets go of the lock at once when it gets it, and by the time the caller
// acts on the answer it may be another: only Lock decides.
func (r *Registry) Driven(id string) bool {
	f := flock.New(filepath.Join(r.Dir(id), lockFile))
	free, err := f.TryRLock()
	if err != nil {
		return false // no lock file: nobody ever drove it
	}
	f.Close()
	return !free
}
