package dropin

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/dirhash"
)

const (
	maxFiles = 20_000
	maxBytes = 512 << 20
)

// files lists the regular files of a folder, slash-separated, sorted, and refuses
// what others could change or what leads out: a plugin is its folder and no more.
func files(dir string) ([]string, error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	var list []string
	var total int64
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			target, err := filepath.EvalSymlinks(p)
			if err != nil {
				return fmt.Errorf("follow a link: %w", err)
			}
			if rel, err := filepath.Rel(root, target); err != nil || !filepath.IsLocal(rel) {
				return fmt.Errorf("%s is a link that leads out of the folder, to %s: copy the file instead", p, target)
			}
			if info, err = os.Stat(target); err != nil {
				return err
			}
			if info.IsDir() {
				return fmt.Errorf("%s is a link to a folder: copy the folder instead", p)
			}
		}
		if err := checkOwner(p, info); err != nil {
			return err
		}
		if info.IsDir() {
			return nil
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is neither a file nor a folder: remove it", p)
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if list = append(list, filepath.ToSlash(rel)); len(list) > maxFiles {
			return fmt.Errorf("%s has more than %d files", root, maxFiles)
		}
		if total += info.Size(); total > maxBytes {
			return fmt.Errorf("%s has more than %d MiB", root, maxBytes>>20)
		}
		return nil
	})
	slices.Sort(list)
	return list, err
}

// hash returns the h1 hash of a folder's files, as Go modules have it: names and
// content, not modes.
func hash(dir string) (string, error) {
	list, err := files(dir)
	if err != nil {
		return "", err
	}
	return dirhash.Hash1(list, func(name string) (io.ReadCloser, error) {
		return os.Open(filepath.Join(dir, filepath.FromSlash(name)))
	})
}

// stage makes sure that cache holds a private copy of dir's content and returns it
// with its hash. The copy is what was hashed, whatever happens to dir meanwhile.
func stage(dir, cache string) (copied, sum string, err error) {
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", "", err
	}
	tmp, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, remove(tmp)) }()
	list, err := files(dir)
	if err != nil {
		return "", "", err
	}
	for _, name := range list {
		if err := copyFile(filepath.Join(dir, filepath.FromSlash(name)), filepath.Join(tmp, filepath.FromSlash(name))); err != nil {
			return "", "", fmt.Errorf("copy the plugin: %w", err)
		}
	}
	if sum, err = hash(tmp); err != nil {
		return "", "", err
	}
	final := copyOf(cache, sum)
	if has(final, sum) {
		return final, sum, nil
	}
	if _, err := os.Lstat(final); err == nil { // tampered with
		if err := remove(final); err != nil {
			return "", "", err
		}
	}
	if err := os.Rename(tmp, final); err != nil {
		if has(final, sum) { // another process was faster
			return final, sum, nil
		}
		return "", "", err
	}
	return final, sum, chmodAll(final, 0o500)
}

// has reports whether a folder has the content of a hash.
func has(dir, sum string) bool {
	have, err := hash(dir)
	return err == nil && have == sum
}

// copyOf is the path of the copy with a hash.
func copyOf(cache, sum string) string {
	return filepath.Join(cache, strings.NewReplacer(":", "-", "/", "_", "+", "-", "=", "").Replace(sum))
}

func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, io.LimitReader(r, maxBytes)); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}

// remove removes a copy, whose folders are read-only.
func remove(dir string) error {
	if err := chmodAll(dir, 0o700); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir)
}

func chmodAll(dir string, mode fs.FileMode) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chmod(p, mode)
	})
}
