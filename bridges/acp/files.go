package acp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// writeFiles puts the agent's configuration where it looks for it. What the agent or
// a session before this one has made of the file does not survive: an agent that may
// write into its home cannot give the next session other settings.
func writeFiles(files map[string]json.RawMessage, home string) error {
	for name, value := range files {
		content := []byte(value)
		var text string
		if json.Unmarshal(value, &text) == nil {
			content = []byte(text)
		}
		if err := replace(filepath.Join(home, filepath.FromSlash(name)), content); err != nil {
			return fmt.Errorf("the agent's configuration %s: %w", name, err)
		}
	}
	return nil
}

// replace makes a file hold content, in one step: sessions of the same agent start
// at the same time and read it.
func replace(path string, content []byte) error {
	if have, err := os.ReadFile(path); err == nil && string(have) == string(content) {
		if st, err := os.Lstat(path); err == nil && st.Mode().IsRegular() {
			return nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".subspan-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		return nil
	}
	if rmErr := os.Remove(f.Name()); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
		err = errors.Join(err, rmErr)
	}
	return err
}

// way finds the first way to log in whose means are there, or "".
func (p *Profile) way(home string, hasEnv func(name string) bool) string {
	for _, w := range p.Auth {
		if w.Env != "" && !hasEnv(w.Env) {
			continue
		}
		if w.File != "" {
			if _, err := os.Stat(filepath.Join(home, filepath.FromSlash(w.File))); err != nil {
				continue
			}
		}
		return w.Method
	}
	return ""
}
