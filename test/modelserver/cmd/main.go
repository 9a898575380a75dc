// Command cmd serves the scripted model by hand:
//
//	go run ./test/modelserver/cmd [-addr 127.0.0.1:0]
//
// It prints its URL on the first line of stdout, then each request as one line of
// JSON, and serves until it is interrupted.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/subspan-dev/subspan/test/modelserver"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:0", "loopback address to listen on")
	flag.Parse()
	if err := run(*addr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(addr string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	out := &gate{open: make(chan struct{})}
	s, err := modelserver.Start(modelserver.Options{Addr: addr, Log: out})
	if err != nil {
		return err
	}
	fmt.Println(s.URL())
	close(out.open)
	<-ctx.Done()
	return s.Close()
}

// gate holds log lines back until the URL is printed, which readers expect first.
type gate struct{ open chan struct{} }

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	return os.Stdout.Write(p)
}
