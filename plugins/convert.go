package plugins

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
	bridgev1 "github.com/subspan-dev/subspan/proto/bridge/v1"
)

// Closed sets travel as numbers: the index into these tables. Index 0 is the
// unspecified value, which is also what an unknown number or word becomes.
var (
	strengths = []bridges.Strength{"", bridges.HoldKernel, bridges.HoldProductSandbox,
		bridges.HoldProductPolicy, bridges.HoldAsked, bridges.HoldNone}
	reconnects = []bridges.ReconnectStatus{"", bridges.ReconnectSame, bridges.ReconnectGone,
		bridges.ReconnectRefused, bridges.ReconnectCannot}
	turnStates = []bridges.TurnState{"", bridges.TurnAttachable, bridges.TurnNotSent, bridges.TurnLost}
	decisions  = []bridges.Decision{"", bridges.Deny, bridges.Allow, bridges.Cancel}
	statuses   = []bridges.Status{"", bridges.StatusCompleted, bridges.StatusFailed,
		bridges.StatusCancelled, bridges.StatusRefused}
	errorKinds = append([]bridges.ErrorKind{""}, bridges.Kinds()...)
)

// number returns the wire number of a word, 0 for one that is not in the table.
func number[N ~int32, W comparable](table []W, word W) N {
	return N(max(slices.Index(table, word), 0))
}

// word returns what a wire number means, the zero word for one that is not in the table.
func word[N ~int32, W any](table []W, n N) W {
	if n < 0 || int(n) >= len(table) {
		n = 0
	}
	return table[n]
}

// text makes agent output fit for a protobuf string: one bad byte would otherwise
// end the whole stream.
func text(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func texts(list []string) []string {
	return mapList(list, text)
}

// mapList converts a list and keeps nil as nil.
func mapList[A, B any](list []A, f func(A) B) []B {
	if list == nil {
		return nil
	}
	out := make([]B, len(list))
	for i, v := range list {
		out[i] = f(v)
	}
	return out
}

// fromPtr converts what may be absent.
func fromPtr[A, B any](p *A, f func(A) *B) *B {
	if p == nil {
		return nil
	}
	return f(*p)
}

// toPtr is fromPtr the other way round.
func toPtr[A, B any](p *A, f func(*A) B) *B {
	if p == nil {
		return nil
	}
	v := f(p)
	return &v
}

// rawJSON takes bytes from the other side as JSON. What is no JSON becomes a JSON
// string, because an invalid RawMessage would make every record around it
// unwritable.
func rawJSON(b []byte) json.RawMessage {
	if len(b) == 0 {
		return nil
	}
	if json.Valid(b) {
		return b
	}
	quoted, err := json.Marshal(string(b))
	if err != nil { // strings always marshal
		return nil
	}
	return quoted
}

// checkText reports the first string of m that is not UTF-8. It is for what goes to
// the agent's side, where replacing a byte would name another file or variable.
func checkText(m proto.Message) error {
	return protorange.Range(m.ProtoReflect(), func(p protopath.Values) error {
		last := p.Index(-1)
		valid := true
		if s, ok := last.Value.Interface().(string); ok {
			valid = utf8.ValidString(s)
		}
		if last.Step.Kind() == protopath.MapIndexStep {
			valid = valid && utf8.ValidString(last.Step.MapIndex().String())
		}
		if valid {
			return nil
		}
		return bridges.Errorf(bridges.KindInvalidArgument, "%s of the request is not valid UTF-8", fieldOf(p)).
			WithNext("use a name or text in UTF-8")
	})
}

// fieldOf names the innermost field of a path. It leaves keys and values out, since
// those may be secret.
func fieldOf(p protopath.Values) string {
	for _, step := range slices.Backward(p.Path) {
		if step.Kind() == protopath.FieldAccessStep {
			return string(step.FieldDescriptor().FullName())
		}
	}
	return "a field"
}

func durationToWire(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

func modeToWire(m bridges.Mode) bridgev1.Mode {
	switch m {
	case ceiling.Default:
		return bridgev1.Mode_MODE_DEFAULT
	case ceiling.Full:
		return bridgev1.Mode_MODE_FULL
	}
	return bridgev1.Mode_MODE_READONLY
}

func modeFromWire(m bridgev1.Mode) bridges.Mode {
	switch m {
	case bridgev1.Mode_MODE_DEFAULT:
		return ceiling.Default
	case bridgev1.Mode_MODE_FULL:
		return ceiling.Full
	}
	return ceiling.Readonly
}
