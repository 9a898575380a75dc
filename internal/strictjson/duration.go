package strictjson

import (
	"encoding/json"
	"time"
)

// Duration is a length of time, written as a Go duration ("90s", "1h30m") or as a
// number of seconds. It is never negative.
type Duration time.Duration

// UnmarshalStrict takes a text with units, or a number of seconds up to a day:
// larger ones were probably meant to be milliseconds.
func (d *Duration) UnmarshalStrict(n Node) {
	switch n.Kind() {
	case "number":
		const day = 24 * 60 * 60
		var seconds float64
		switch {
		case !n.Decode(&seconds):
		case seconds < 0:
			n.Reject("must not be negative")
		case seconds > day:
			n.Reject("%g seconds are more than a day; write the duration with its unit, such as \"10m\"", seconds)
		default:
			*d = Duration(seconds * float64(time.Second))
		}
	case "string":
		var text string
		if !n.Decode(&text) {
			return
		}
		v, err := time.ParseDuration(text)
		switch {
		case err != nil:
			n.Reject("%q is no duration: write it as \"90s\", \"10m\" or \"1h30m\"", text)
		case v < 0:
			n.Reject("must not be negative")
		default:
			*d = Duration(v)
		}
	default:
		n.Reject("must be a duration such as \"10m\", or a number of seconds, is %s", article(n.Kind()))
	}
}

// MarshalJSON writes the text form.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }
