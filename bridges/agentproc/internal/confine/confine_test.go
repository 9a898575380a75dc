package confine

import (
	"os"
	"path/filepath"
	"testing"
)

func TestValidateLooksThroughLinks(t *testing.T) {
	dir := t.TempDir()
	keep := filepath.Join(dir, "keep")
	link := filepath.Join(dir, "link")
	beside := filepath.Join(dir, "keep2")
	for _, d := range []string{keep, beside} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Skip(err)
	}
	for path, ok := range map[string]bool{beside: true, dir: false, keep: false, link: false, filepath.Join(link, "keep"): false, filepath.Join(link, "keep2"): true} {
		if err := (Rules{Mode: ReadOnly, Writable: []string{path}}).Validate(keep); (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestFoldersDoNotShare(t *testing.T) {
	writable := make([]string, 1, 8)
	writable[0] = "/state"
	r := Rules{Mode: Workspace, Writable: writable, Workspace: "/work"}
	first, second := r.Folders(), append(r.Folders(), "/more")
	if len(first) != 2 || first[1] != "/work" || second[1] != "/work" || len(r.Writable) != 1 {
		t.Errorf("%v %v", first, second)
	}
}
