package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/subspan-dev/subspan/bridges"
)

// withoutChecksum is what a person makes of a record before editing it.
func withoutChecksum(t testing.TB, data []byte) string {
	t.Helper()
	i := bytes.LastIndex(data, []byte(checksumMark))
	if i < 0 {
		t.Fatalf("no checksum in %s", data)
	}
	return string(data[:i]) + "\n}\n"
}

func TestPutKeepsWhatItDoesNotKnow(t *testing.T) {
	r := open(t)
	s := create(t, r, "s_newer")
	s.Close()
	path := filepath.Join(s.Dir(), recordFile)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(withoutChecksum(t, data), `"agent": "codex"`, `"agent": "codex", "future": {"a": [1, "</x>"]}, "zeta": null`, 1)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s = lockSession(t, r, "s_newer")
	rec := s.Record()
	rec.Title = "changed"
	// What a caller makes up about members that are not its own is set right.
	rec.ID, rec.Fence, rec.Version = "s_other", 99, 7
	if err := s.Put(rec); err != nil {
		t.Fatal(err)
	}
	data, err = os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var have struct {
		Version int
		ID      string
		Fence   int
		Title   string
		Future  json.RawMessage
		Zeta    json.RawMessage
	}
	if err := json.Unmarshal(data, &have); err != nil {
		t.Fatal(err)
	}
	if have.Version != 1 || have.ID != "s_newer" || have.Fence != 2 || have.Title != "changed" {
		t.Errorf("members are %+v", have)
	}
	if string(have.Future) != `{"a": [1, "</x>"]}` || string(have.Zeta) != "null" {
		t.Errorf("unknown members became %s and %s", have.Future, have.Zeta)
	}
	reread, err := r.Get("s_newer")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.Record(), reread, sameRecord); diff != "" {
		t.Errorf("read back (-in memory +on disk):\n%s", diff)
	}
}

func TestB63DamagedRecordIsSetAside(t *testing.T) {
	good, err := encodeRecord(Record{Version: 1, ID: "s_bad", Agent: "codex"})
	if err != nil {
		t.Fatal(err)
	}
	hand := withoutChecksum(t, good)
	file := func(content string) func(dir string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, recordFile), []byte(content), 0o600) }
	}
	for name, spoil := range map[string]func(dir string) error{
		"empty":            file(""),
		"half":             file(string(good[:len(good)/2])),
		"zeros":            file(strings.Repeat("\x00", len(good))),
		"no object":        file(`[1]`),
		"no version":       file(`{"id": "s_bad"}`),
		"version zero":     file(`{"version": 0, "id": "s_bad"}`),
		"wrong type":       file(strings.Replace(hand, `"depth": 0`, `"depth": "deep"`, 1)),
		"other session":    file(strings.Replace(hand, `"s_bad"`, `"s_good"`, 1)),
		"mode unknown":     file(strings.Replace(hand, `"readonly"`, `"Full"`, 1)),
		"mode in new case": file(strings.Replace(hand, `"depth": 0`, `"depth": 0, "Mode": "full"`, 1)),
		"edited":           file(strings.Replace(string(good), `"readonly"`, `"full"`, 1)),
		"checksum moved":   file(strings.Replace(string(good), "}\n", " }\n", 1)),
		"folder": func(dir string) error {
			path := filepath.Join(dir, recordFile)
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		},
		"gone":             func(dir string) error { return os.Remove(filepath.Join(dir, recordFile)) },
		"file for session": func(dir string) error { return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, []byte("x"), 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			create(t, r, "s_good").Close()
			create(t, r, "s_bad").Close()
			if err := spoil(r.Dir("s_bad")); err != nil {
				t.Fatal(err)
			}
			recs, problems, err := r.List()
			if err != nil || len(recs) != 1 || recs[0].ID != "s_good" {
				t.Fatalf("the good one is not listed: %v, %v", recs, err)
			}
			if len(problems) != 1 || problems[0].ID != "s_bad" || !problems[0].Damaged || !errors.Is(problems[0].Err, errDamaged) {
				t.Fatalf("problems are %+v", problems)
			}
			_, err = r.Get("s_bad")
			wantKind(t, err, bridges.KindInternal)
			_, err = r.Lock(t.Context(), "s_bad")
			wantKind(t, err, bridges.KindInternal)
			rec := sample()
			rec.ID = "s_bad"
			_, err = r.Create(rec)
			wantKind(t, err, bridges.KindInvalidArgument) // never taken for free

			aside, err := r.Quarantine("s_bad")
			if err != nil {
				t.Fatal(err)
			}
			reason, err := os.ReadFile(filepath.Join(aside, reasonFile))
			if err != nil || !strings.Contains(string(reason), "damaged") {
				t.Errorf("reason %q, %v", reason, err)
			}
			if _, err := os.Lstat(filepath.Join(aside, "s_bad")); err != nil {
				t.Errorf("the session is not in quarantine: %v", err)
			}
			_, err = r.Get("s_bad")
			wantKind(t, err, bridges.KindUnknownSession)
			var e *bridges.Error
			if errors.As(err, &e); !strings.Contains(e.Next, aside) {
				t.Errorf("%v; %s: does not say where it is", err, e.Next)
			}
			if _, problems, _ := r.List(); len(problems) > 0 {
				t.Errorf("still listed: %+v", problems)
			}
		})
	}
}

func TestQuarantineRefuses(t *testing.T) {
	r := open(t)
	s := create(t, r, "s_used")
	_, err := r.Quarantine("s_used")
	wantKind(t, err, bridges.KindSessionBusy)
	s.Close()
	_, err = r.Quarantine("s_used")
	wantKind(t, err, bridges.KindInvalidArgument)
	_, err = r.Quarantine("s_unknown")
	wantKind(t, err, bridges.KindUnknownSession)
	_, err = r.Quarantine("../../etc")
	wantKind(t, err, bridges.KindUnknownSession)
}

func TestNewerVersionIsLeftAlone(t *testing.T) {
	r := open(t)
	create(t, r, "s_future").Close()
	path := filepath.Join(r.Dir("s_future"), recordFile)
	content := fmt.Sprintf(`{"version": %d, "id": "s_future", "mode": {"new": "layout"}}`, RecordVersion+1)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	recs, problems, err := r.List()
	if err != nil || len(recs) != 0 || len(problems) != 1 || problems[0].Damaged {
		t.Fatalf("List: %v, %+v, %v", recs, problems, err)
	}
	_, getErr := r.Get("s_future")
	_, lockErr := r.Lock(t.Context(), "s_future")
	_, quarantineErr := r.Quarantine("s_future")
	for _, err := range []error{getErr, lockErr, quarantineErr} {
		wantKind(t, err, bridges.KindInternal)
		if err == nil || !strings.Contains(err.Error(), "version 2 is newer than this program's 1") {
			t.Errorf("error %v", err)
		}
	}
	if have, err := os.ReadFile(path); err != nil || string(have) != content {
		t.Errorf("the file became %q, %v", have, err)
	}
}

// Every single flipped bit is found, or changes nothing of what is read.
func TestB63FlippedBitsInRecord(t *testing.T) {
	rec := sample()
	rec.Version, rec.ID = 1, "s_flip"
	good, err := encodeRecord(rec)
	if err != nil {
		t.Fatal(err)
	}
	want, err := decodeRecord(good, "s_flip")
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(good) * 8 {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		have, err := decodeRecord(bad, "s_flip")
		if err != nil {
			continue
		}
		have.extra = nil // the name of the checksum member may be hit
		if diff := cmp.Diff(want, have, sameRecord); diff != "" {
			t.Fatalf("bit %d of byte %d (%q) changed the record unseen:\n%s", i%8, i/8, good[i/8], diff)
		}
	}
}

// The text of a record is stored: what it looks like may grow, never change.
func TestRecordLayout(t *testing.T) {
	rec := sample()
	rec.Version, rec.ID, rec.Fence = 1, "s_layout", 3
	data, err := encodeRecord(rec)
	if err != nil {
		t.Fatal(err)
	}
	have := regexp.MustCompile(`crc32c:[0-9a-f]{8}`).ReplaceAllString(string(data), "crc32c:*")
	want, err := os.ReadFile(filepath.Join("testdata", "record.golden"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), have); diff != "" {
		t.Errorf("session.json (-want +have):\n%s", diff)
	}
}

func FuzzRecord(f *testing.F) {
	rec := sample()
	rec.Version, rec.ID = 1, "s_fuzz"
	good, err := encodeRecord(rec)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(withoutChecksum(f, good)))
	f.Add([]byte(`{"version":1,"id":"s_fuzz","x":[1,{"y":null}],"mode":"full"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := decodeRecord(data, "s_fuzz")
		if err != nil {
			return
		}
		again, err := encodeRecord(rec)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		back, err := decodeRecord(again, "s_fuzz")
		if err != nil {
			t.Fatalf("what was written cannot be read: %v\n%s", err, again)
		}
		third, err := encodeRecord(back)
		if err != nil || !bytes.Equal(again, third) {
			t.Fatalf("not stable: %v\n%s\n%s", err, again, third)
		}
	})
}
