package config

import (
	"io/fs"
	"path/filepath"
)

const (
	homeVariable = "USERPROFILE"
	// The profile's access lists keep others out; mode bits mean nothing here.
	enforcesModes = false
)

func (e *environment) local(name string) string {
	if v := e.get("LOCALAPPDATA"); filepath.IsAbs(v) {
		return filepath.Join(v, "subspan", name)
	}
	return e.home("AppData", "Local", "subspan", name)
}

func (e *environment) stateHome() string  { return e.local("state") }
func (e *environment) runtimeDir() string { return e.local("run") }
func (e *environment) dataHome() string   { return e.local("data") }

func (e *environment) configHome() string {
	if v := e.get("APPDATA"); filepath.IsAbs(v) {
		return filepath.Join(v, "subspan")
	}
	return e.home("AppData", "Roaming", "subspan")
}

func ownedByUser(string, fs.FileInfo) error { return nil }
