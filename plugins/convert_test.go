package plugins

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"

	"github.com/subspan-dev/subspan/bridges"
	bridgev1 "github.com/subspan-dev/subspan/proto/bridge/v1"
)

// fill sets every exported field below v to something that is not its zero value, so
// that a field which the conversion forgets shows as a difference, also one that is
// added to the contract later.
func fill(v reflect.Value, n *int) {
	*n++
	switch x := v.Addr().Interface().(type) {
	case *json.RawMessage:
		*x = json.RawMessage(fmt.Sprintf(`{"n":%d}`, *n))
		return
	case *time.Time:
		*x = time.Unix(int64(1_700_000_000+*n), 0).UTC()
		return
	case *bridges.Mode:
		x.UnmarshalText([]byte("full"))
		return
	case *bridges.Strength:
		*x = bridges.HoldAsked
		return
	case *bridges.ReconnectStatus:
		*x = bridges.ReconnectRefused
		return
	case *bridges.TurnState:
		*x = bridges.TurnLost
		return
	case *bridges.Decision:
		*x = bridges.Cancel
		return
	case *bridges.Status:
		*x = bridges.StatusRefused
		return
	case *bridges.ErrorKind:
		*x = bridges.KindRateLimited
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"K": fmt.Sprint("v", *n)}))
	case reflect.String:
		v.SetString(fmt.Sprint("s", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.5)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	default:
		panic("fill: " + v.Type().String())
	}
}

// roundTrip converts a filled and a zero value to wire bytes and back.
func roundTrip[T any, M any, PM interface {
	proto.Message
	*M
}](t *testing.T, to func(T) PM, from func(PM) T) {
	t.Helper()
	var full, zero T
	n := 0
	fill(reflect.ValueOf(&full).Elem(), &n)
	for _, in := range []T{full, zero} {
		b, err := proto.Marshal(to(in))
		if err != nil {
			t.Fatalf("%T: %v", in, err)
		}
		m := PM(new(M))
		if err := proto.Unmarshal(b, m); err != nil {
			t.Fatalf("%T: %v", in, err)
		}
		if d := cmp.Diff(in, from(m), cmpopts.IgnoreUnexported(bridges.Error{})); d != "" {
			t.Errorf("%T changed on the wire (-sent +got):\n%s", in, d)
		}
	}
}

func TestEveryFieldOfTheContractCrossesTheWire(t *testing.T) {
	roundTrip(t, describeToWire, describeFromWire)
	roundTrip(t, createToWire, createFromWire)
	roundTrip(t, createdToWire, createdFromWire)
	roundTrip(t, startToWire, startFromWire)
	roundTrip(t, reconnectToWire, reconnectFromWire)
	roundTrip(t, reconnectedToWire, reconnectedFromWire)
	roundTrip(t, disposeToWire, disposeFromWire)
	roundTrip(t, receiptToWire, receiptFromWire)
	roundTrip(t, resultToWire, resultFromWire)
	roundTrip(t, questionToWire, questionFromWire)
	roundTrip(t, func(e bridges.Event) *bridgev1.Event { return eventToWire(&e) }, func(m *bridgev1.Event) bridges.Event {
		e := eventFromWire(m)
		return e
	})
}

// The tables must not fall behind the schema: a number that the schema has and the
// table has not would silently become the unspecified one.
func TestTablesCoverTheSchema(t *testing.T) {
	for name, lens := range map[string][2]int{
		"HoldStrength":    {len(strengths), len(bridgev1.HoldStrength_name)},
		"ReconnectStatus": {len(reconnects), len(bridgev1.ReconnectStatus_name)},
		"TurnState":       {len(turnStates), len(bridgev1.TurnState_name)},
		"Decision":        {len(decisions), len(bridgev1.Decision_name)},
		"ResultStatus":    {len(statuses), len(bridgev1.ResultStatus_name)},
		"ErrorKind":       {len(errorKinds), len(bridgev1.ErrorKind_name)},
	} {
		if lens[0] != lens[1] {
			t.Errorf("%s: table has %d words, schema %d numbers", name, lens[0], lens[1])
		}
	}
	for i, kind := range errorKinds[1:] {
		want := "ERROR_KIND_" + strings.ToUpper(string(kind))
		if got := bridgev1.ErrorKind_name[int32(i+1)]; got != want {
			t.Errorf("error kind %d is %s in the schema and %s in the contract", i+1, got, want)
		}
	}
}

func TestUnknownNumbersReadAsTheSafeValue(t *testing.T) {
	if m := modeFromWire(99); m.String() != "readonly" {
		t.Errorf("mode 99 = %s", m)
	}
	if a := answerFromWire(&bridgev1.Answer{Decision: 99}); a.Decision != bridges.Deny {
		t.Errorf("decision 99 = %s", a.Decision)
	}
	if a := answerFromWire(nil); a.Decision != bridges.Deny {
		t.Errorf("no answer = %s", a.Decision)
	}
	if s := word(strengths, bridgev1.HoldStrength(-1)); s != "" {
		t.Errorf("strength -1 = %s", s)
	}
	if e := errorFromWire(&bridgev1.ErrorDetail{Kind: 99, Message: "m"}); e.Kind != bridges.KindInternal {
		t.Errorf("kind 99 = %s", e.Kind)
	}
}

func TestBadTextAndBadJSONFromAnAgentCross(t *testing.T) {
	in := bridges.Event{
		Kind: bridges.KindTool, Text: "a\xffb",
		Tool: &bridges.Tool{Output: "\xf0\x9f", Input: json.RawMessage("{not json \xff"), Locations: []string{"/tmp/\xfe"}},
		Raw:  json.RawMessage(`{"ok":true}`),
	}
	b, err := proto.Marshal(eventToWire(&in))
	if err != nil {
		t.Fatal(err)
	}
	var m bridgev1.Event
	if err := proto.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	got := eventFromWire(&m)
	want := bridges.Event{
		Kind: bridges.KindTool, Text: "a\uFFFDb",
		Tool: &bridges.Tool{Output: "\uFFFD", Input: json.RawMessage(`"{not json \ufffd"`), Locations: []string{"/tmp/\uFFFD"}},
		Raw:  json.RawMessage(`{"ok":true}`),
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := json.Marshal(got); err != nil {
		t.Errorf("the event cannot be recorded: %v", err)
	}
}

func TestBadTextTowardsAnAgentIsRefusedAndNotShown(t *testing.T) {
	for name, req := range map[string]bridges.CreateRequest{
		"cwd":     {Settings: bridges.Settings{Cwd: "/tmp/\xff"}},
		"env":     {Settings: bridges.Settings{Env: []string{"TOKEN=hunter2\xff"}}},
		"map key": {Agent: bridges.Agent{Env: map[string]string{"K\xff": "hunter2"}}},
		"map":     {Agent: bridges.Agent{Env: map[string]string{"K": "hunter2\xff"}}},
		"list":    {Agent: bridges.Agent{Command: []string{"/bin/x", "hunter2\xff"}}},
	} {
		err := checkText(createToWire(req))
		if !errors.Is(err, bridges.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error shows the value: %v", name, err)
		}
	}
	if err := checkText(createToWire(bridges.CreateRequest{Settings: bridges.Settings{Cwd: "/tmp/ü"}})); err != nil {
		t.Error(err)
	}
}
