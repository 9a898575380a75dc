package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/subspan-dev/subspan/bridges"
)

// RecordVersion is the layout of Record that this program writes. Fields may be
// added to Record without a new version: older programs keep what they do not
// know. A field added inside one of its objects needs one.
const RecordVersion = 1

// Record is the checkpoint of one session. It is plain data; who calls Put decides
// what is in it, except for Version, ID, Fence, Created and Updated.
type Record struct {
	Version int    `json:"version"`
	ID      string `json:"id"`

	// Parent is the session that asked for this one, Root the topmost of the
	// chain, Depth the number of sessions above. A session asked for by a person
	// or a harness has no parent and depth 0.
	Parent string `json:"parent,omitempty"`
	Root   string `json:"root,omitempty"`
	Depth  int    `json:"depth"`
	// ForkedFrom is the session whose history this one started with.
	ForkedFrom string `json:"forked_from,omitempty"`

	// Fence grows with every Lock. It is set by this package.
	Fence uint64 `json:"fence"`

	Title string `json:"title,omitempty"`
	Role  string `json:"role,omitempty"`
	// Agent is the agent's name, AgentDef what it stood for at Create.
	Agent    string        `json:"agent"`
	AgentDef bridges.Agent `json:"agent_def"`
	// Bridge is the name of the bridge that drives the agent.
	Bridge string `json:"bridge"`

	// Mode is the grant. The zero value, and so a record without it, is readonly.
	Mode bridges.Mode `json:"mode"`
	// Accept is the weakest hold that the caller took for Mode.
	Accept bridges.Strength `json:"accept,omitempty"`
	// AllowDelegation says whether the session may ask for sessions itself.
	AllowDelegation bool   `json:"allow_delegation,omitempty"`
	Limits          Limits `json:"limits"`

	Cwd    string `json:"cwd"`
	Model  string `json:"model,omitempty"`  // as asked for; Info has the observed one
	Effort string `json:"effort,omitempty"` // as asked for
	// InstructionsDigest is the SHA-256 of the instructions in hex; their text is
	// the session's file InstructionsFile.
	InstructionsDigest string `json:"instructions_digest,omitempty"`
	// EnvNames are the variables that came from the caller. Values are never stored.
	EnvNames []string `json:"env_names,omitempty"`

	State State `json:"state"`
	// Reason says how the session came into its state: why lost, why gone.
	Reason string         `json:"reason,omitempty"`
	Handle bridges.Handle `json:"handle"`
	Info   bridges.Info   `json:"info"`

	// Survivors counts processes that are known to have outlived an end of the
	// session, or that nobody could prove to be gone.
	Survivors int `json:"survivors,omitempty"`

	Turns int    `json:"turns"`          // how many were accepted
	Turn  string `json:"turn,omitempty"` // the one under way
	// Folded is the offset in events.log up to which the record includes the log.
	// Lock checks the log from here on, so a stale value costs time, nothing else.
	Folded int64 `json:"folded,omitempty"`

	Warnings []string  `json:"warnings,omitempty"`
	Created  time.Time `json:"created"`
	Updated  time.Time `json:"updated"`

	// extra are members that this program does not know. The map is never changed
	// once set, so copies of a Record may share it.
	extra map[string]json.RawMessage
}

// InstructionsFile is the session's file with the text that InstructionsDigest is of.
const InstructionsFile = "instructions.md"

// Limits are the bounds of a session. Durations are nanoseconds in JSON; 0 is none.
type Limits struct {
	TurnTimeout time.Duration `json:"turn_timeout,omitempty"`
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"`
	MaxDepth    int           `json:"max_depth,omitempty"`
	MaxChildren int           `json:"max_children,omitempty"`
}

// State is where a session is in its life.
type State string

const (
	StateNew      State = "new"      // recorded, not created by its bridge yet
	StateIdle     State = "idle"     // ready for a turn
	StateRunning  State = "running"  // in a turn
	StateLost     State = "lost"     // its agent died in a turn
	StateGone     State = "gone"     // its agent does not know it any more
	StateDisposed State = "disposed" // ended on request
)

// errDamaged marks content that no version of this program wrote.
var errDamaged = errors.New("damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The file is a JSON object with one member on each line. The last is the CRC-32C
// of all bytes before the comma in front of it; a person who edits the file deletes
// that member.
const checksumMark = ",\n  \"checksum\": \"crc32c:"

func encodeRecord(rec Record) ([]byte, error) {
	compact, err := json.Marshal(rec)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	// Not json.Indent: it would change what is inside of Handle, which is opaque.
	body := make([]byte, 0, len(compact)+256)
	sep := "{\n  "
	member := func(name any, value []byte) error {
		key, err := json.Marshal(name)
		body = fmt.Appendf(body, "%s%s: %s", sep, key, value)
		sep = ",\n  "
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(compact))
	_, err = dec.Token()
	for err == nil && dec.More() {
		var name json.Token
		var value json.RawMessage
		if name, err = dec.Token(); err == nil {
			err = errors.Join(dec.Decode(&value), member(name, value))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rec.extra)) {
		err = errors.Join(err, member(name, rec.extra[name]))
	}
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return fmt.Appendf(body, "%s%08x\"\n}\n", checksumMark, crc32.Checksum(body, castagnoli)), nil
}

// decodeRecord reads what encodeRecord wrote, in this or another version. id is
// the session that the bytes were found under.
func decodeRecord(data []byte, id string) (Record, error) {
	summed, err := verifyChecksum(data)
	if err != nil {
		return Record{}, err
	}
	var rec Record
	if !summed || !decodeOwn(data, &rec) {
		if rec, err = decodeForeign(data, summed); err != nil {
			return Record{}, err
		}
	}
	if rec.ID != id {
		return Record{}, fmt.Errorf("%w: the record is of session %q", errDamaged, rec.ID)
	}
	return rec, nil
}

// decodeOwn is the fast path of a listing: this very version wrote the file. It
// reports whether that is so.
func decodeOwn(data []byte, rec *Record) bool {
	i := bytes.LastIndex(data, []byte(checksumMark))
	dec := json.NewDecoder(io.MultiReader(bytes.NewReader(data[:i]), strings.NewReader("}")))
	dec.DisallowUnknownFields()
	return dec.Decode(rec) == nil && rec.Version == RecordVersion
}

func verifyChecksum(data []byte) (bool, error) {
	i := bytes.LastIndex(data, []byte(checksumMark))
	if i < 0 {
		return false, nil
	}
	want := fmt.Sprintf("%s%08x\"\n}\n", checksumMark, crc32.Checksum(data[:i], castagnoli))
	if string(data[i:]) != want {
		return false, fmt.Errorf("%w: checksum does not match (delete the checksum member after repairing by hand)", errDamaged)
	}
	return true, nil
}

// decodeForeign reads a record that another version or a person wrote.
func decodeForeign(data []byte, summed bool) (Record, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return Record{}, fmt.Errorf("%w: %s", errDamaged, err)
	}
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil || head.Version < 1 {
		return Record{}, fmt.Errorf("%w: no version", errDamaged)
	}
	if head.Version > RecordVersion {
		return Record{}, &newerError{head.Version}
	}
	var rec Record
	if err := json.Unmarshal(data, &rec); err != nil {
		return Record{}, fmt.Errorf("%w: %s", errDamaged, err)
	}
	if _, ok := members["checksum"]; ok && !summed {
		return Record{}, fmt.Errorf("%w: the checksum member is not as this program writes it", errDamaged)
	}
	delete(members, "checksum")
	for name := range members {
		switch field := recordFields[strings.ToLower(name)]; {
		case field == name:
			delete(members, name)
		case field != "":
			// encoding/json would take "Mode" for "mode": two values for one field.
			return Record{}, fmt.Errorf("%w: member %q must be spelled %q", errDamaged, name, field)
		}
	}
	if len(members) > 0 {
		rec.extra = members
	}
	return rec, nil
}

type newerError struct{ version int }

func (e *newerError) Error() string {
	return fmt.Sprintf("record version %d is newer than this program's %d", e.version, RecordVersion)
}

// recordFields are the JSON names of Record, by their lower-case form.
var recordFields = func() map[string]string {
	names := map[string]string{}
	for f := range reflect.TypeFor[Record]().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names[strings.ToLower(name)] = name
		}
	}
	return names
}()
