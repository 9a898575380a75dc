// Command subspan lets one coding agent, or a person, hand work to another.
package main

import (
	"os"

	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/cmd/subspan/internal/cli"
)

func main() {
	agentproc.Main() // does not return when this process was started as a keeper
	os.Exit(cli.Main())
}
