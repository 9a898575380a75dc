package registry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/subspan-dev/subspan/bridges"
)

// TestB63Disk has real small and read-only disks, in a mount namespace that ends
// with the helper's process.
func TestB63Disk(t *testing.T) {
	for _, name := range []string{"full", "readonly"} {
		t.Run(name, func(t *testing.T) {
			p := exec.Command(os.Args[0])
			p.Env = append(os.Environ(), helperVariable+"="+name+":"+t.TempDir())
			p.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
			}
			out, err := p.CombinedOutput()
			var exit *exec.ExitError
			switch {
			case err == nil:
			case errors.As(err, &exit):
				t.Fatalf("%v\n%s", err, out)
			default:
				t.Skipf("no mount namespace to be had: %v", err)
			}
		})
	}
}

var diskHelpers = map[string]func(dir string) error{"full": onFullDisk, "readonly": onReadonlyDisk}

// onFullDisk fills a disk of 256 KiB with a session's log, and the log's entries
// and the record come through that whole.
func onFullDisk(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	r, err := Open(dir)
	if err != nil {
		return err
	}
	s, err := r.Create(Record{ID: "s_full", Agent: "codex"})
	if err != nil {
		return err
	}
	payload := []byte(strings.Repeat("0123456789", 1500))
	written := 0
	for err == nil && written < 100 {
		if _, err = s.AppendSync('x', payload); err == nil {
			written++
		}
	}
	if !isDiskFull(err) || !bridges.AsError(err).Retryable || bridges.AsError(err).Next == "" {
		return fmt.Errorf("after %d entries: %v", written, err)
	}
	if err := s.Put(s.Record()); err == nil {
		// There may be just room enough; fill the rest.
		os.WriteFile(filepath.Join(dir, "rest"), make([]byte, 64<<10), 0o600)
		if err := s.Put(s.Record()); !isDiskFull(err) {
			return fmt.Errorf("Put on a full disk: %v", err)
		}
	}
	if rec, err := r.Get("s_full"); err != nil || rec.Fence != 1 {
		return fmt.Errorf("the record on a full disk: %+v, %v", rec, err)
	}
	if _, err := r.Create(Record{ID: "s_next", Agent: "codex"}); err == nil {
		return errors.New("a session was created on a full disk")
	}
	if left := namesWith(r.sessions, unfinishedMark); len(left) > 0 {
		return fmt.Errorf("a failed Create left %v", left)
	}
	// Half an entry may not stand in the way of the next one.
	if _, err := s.Append('y', []byte("small")); err != nil && !isDiskFull(err) {
		return err
	}
	n := 0
	for e, err := range r.Read("s_full", 0) {
		if err != nil || e.Damage != "" {
			return fmt.Errorf("entry %d: %+v, %v", n, e, err)
		}
		if e.Type == 'x' {
			n++
		}
	}
	if n != written {
		return fmt.Errorf("%d entries were reported, %d are there", written, n)
	}
	os.Remove(filepath.Join(dir, "rest"))
	if err := os.Truncate(filepath.Join(dir, "sessions/s_full", logFile), 0); err != nil {
		return err
	}
	return errors.Join(s.Put(s.Record()), s.Close())
}

func onReadonlyDisk(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	r, err := Open(dir)
	if err != nil {
		return err
	}
	s, err := r.Create(Record{ID: "s_ro", Agent: "codex"})
	if err != nil {
		return err
	}
	if _, err := s.Append('x', []byte("text")); err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("remount: %w", err)
	}
	// Reading goes on, with a registry opened anew too; writing says why not.
	if r, err = Open(dir); err != nil {
		return err
	}
	recs, problems, err := r.List()
	if err != nil || len(recs) != 1 || len(problems) > 0 {
		return fmt.Errorf("List: %v %v %v", recs, problems, err)
	}
	for e, err := range r.Read("s_ro", 0) {
		if err != nil || string(e.Payload) != "text" {
			return fmt.Errorf("Read: %+v, %v", e, err)
		}
	}
	if _, err := r.Create(Record{Agent: "codex"}); !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("Create: %v", err)
	}
	if _, err := r.Lock(context.Background(), "s_ro"); !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("Lock: %v", err)
	}
	return nil
}
