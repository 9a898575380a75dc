//go:build !linux

package registry

import "os"

func datasync(f *os.File) error { return f.Sync() }
