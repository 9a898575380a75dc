package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// leftoverLimit is how long what was disposed of may take to be gone.
const leftoverLimit = 3 * time.Second

// checkNothingLeft disposes of a session in the middle of its work and looks for what
// still has to do with it.
func checkNothingLeft(ctx context.Context, e *env) error {
	s, err := e.create(ctx)
	if err != nil {
		return err
	}
	if task, err := e.task("sleep", "seconds", "50"); err == nil {
		t := s.newTurn()
		working, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() { defer close(ended); _, _ = s.submit(working, t, task, nil) }()
		select {
		case <-t.first:
		case <-ended:
		}
		defer func() { stop(); <-ended }()
	}
	if _, err := s.dispose(ctx); err != nil {
		return err
	}
	var left []string
	for deadline := time.Now().Add(leftoverLimit); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if left, err = e.processes(); err != nil || len(left) == 0 {
			return err
		}
	}
	return fmt.Errorf("left after Dispose: %s", strings.Join(left, ", "))
}

// processes lists those that this run started and that are no plugin process: the
// environment, command or folder of each names the run's root. Plugins are known.
func (e *env) processes() ([]string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(dirs) == 0 {
		return nil, skip("this system has no /proc to look for processes in")
	}
	known := []string{fmt.Sprintf("/proc/%d", os.Getpid())}
	for _, l := range e.lives {
		if l.instance != nil {
			known = append(known, fmt.Sprintf("/proc/%d", l.instance.PID()))
		}
	}
	var left []string
	for _, dir := range dirs {
		if slices.Contains(known, dir) {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(cmdline) == 0 { // gone, or a zombie
			continue
		}
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		cwd, _ := os.Readlink(filepath.Join(dir, "cwd"))
		if all := cwd + "\x00" + string(environ) + "\x00" + string(cmdline); strings.Contains(all, e.root) {
			left = append(left, fmt.Sprintf("%s (%.60q)", filepath.Base(dir), strings.ReplaceAll(string(cmdline), "\x00", " ")))
		}
	}
	return left, nil
}

// checkFiles looks at what all checks before it have left.
func checkFiles(_ context.Context, e *env) error {
	var stray []string
	for _, dir := range []string{"home", "sock"} {
		err := filepath.WalkDir(filepath.Join(e.root, dir), func(p string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && !d.IsDir() && (dir == "home" || d.Type()&fs.ModeSocket == 0) {
				stray = append(stray, p)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	top, err := os.ReadDir(e.root)
	if err != nil {
		return err
	}
	for _, entry := range top {
		if !slices.Contains([]string{"home", "tmp", "work", "state", "run", "sock"}, entry.Name()) {
			stray = append(stray, filepath.Join(e.root, entry.Name()))
		}
	}
	if len(stray) > 0 {
		return fmt.Errorf("files where none belong: %s", strings.Join(stray[:min(len(stray), 5)], ", "))
	}
	return nil
}
