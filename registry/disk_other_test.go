//go:build !linux

package registry

var diskHelpers map[string]func(dir string) error
