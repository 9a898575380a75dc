package agentproc

import (
	"bufio"
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	Main()
	if mode := os.Getenv("TEST_AGENT"); mode != "" {
		agent(mode)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// agent is what the test binary does as an agent.
func agent(mode string) {
	switch mode {
	case "echo":
		in := bufio.NewReader(os.Stdin)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				fmt.Println("end of input")
				return
			}
			fmt.Print(line)
		}
	}
}
