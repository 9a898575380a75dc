// Command cmd writes the table of test/agents/MATRIX.md to its standard output, from
// the JSON file that a run of test/agents/matrix wrote.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/subspan-dev/subspan/test/agents/matrix"
)

func main() {
	if err := render(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func render(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: go run ./test/agents/matrix/cmd RESULTS.json > test/agents/MATRIX.md")
	}
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := matrix.Read(f)
	if err != nil {
		return err
	}
	return matrix.Render(os.Stdout, r)
}
