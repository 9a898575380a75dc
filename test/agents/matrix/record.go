package matrix

import (
	"encoding/json"
	"fmt"
	"io"
)

// Verdict is what a cell came to.
type Verdict string

const (
	Pass        Verdict = "pass"
	Unsupported Verdict = "not supported" // by the agent; what the bridge answers was asserted
	Fails       Verdict = "fails"
)

// Results is one run of the suite. Agents and Behaviours are in the table's order;
// cells that were not run are not in Cells.
type Results struct {
	Agents     []string    `json:"agents"`
	Behaviours []Behaviour `json:"behaviours"`
	Cells      []Cell      `json:"cells"`
}

// Behaviour is one row.
type Behaviour struct {
	Name  string `json:"name"`
	About string `json:"about"` // what is asserted, in one line
}

// Cell is one behaviour of one agent.
type Cell struct {
	Agent     string  `json:"agent"`
	Behaviour string  `json:"behaviour"`
	Verdict   Verdict `json:"verdict"`
	// Reason is why it is no plain pass: the agent's limit and the bridge's answer, or
	// what went wrong.
	Reason  string  `json:"reason,omitempty"`
	Version string  `json:"version,omitempty"` // the agent's own, when it was seen
	Seconds float64 `json:"seconds"`
}

// Read reads what Write wrote.
func Read(r io.Reader) (Results, error) {
	var all Results
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		return Results{}, fmt.Errorf("results of the matrix: %w", err)
	}
	for _, c := range all.Cells {
		switch c.Verdict {
		case Pass, Unsupported, Fails:
		default:
			return Results{}, fmt.Errorf("results of the matrix: %s/%s has the unknown verdict %q", c.Agent, c.Behaviour, c.Verdict)
		}
	}
	return all, nil
}

// Write writes the results as JSON.
func (r Results) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("results of the matrix: %w", err)
	}
	return nil
}
