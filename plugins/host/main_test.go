//go:build linux

package host

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/plugins"
)

// TestMain is also the plugin process of these tests, and a host that gets killed:
// `TESTBINARY bridge MODE` is how a pool starts a built-in bridge.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 2 && os.Args[1] == "bridge":
		pluginMain(os.Args[2])
	case len(os.Args) > 2 && os.Args[1] == "host":
		hostMain(os.Args[2])
	default:
		os.Exit(m.Run())
	}
}

func pluginMain(mode string) {
	switch mode {
	case "banner":
		fmt.Println("Loading acme 1.2 …")
	case "silent":
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case "deaf": // neither speaks nor listens nor ends on its lifeline
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(time.Hour)
	case "dies":
		fmt.Fprintln(os.Stderr, "panic: cannot find my config")
		os.Exit(3)
	case "longline":
		fmt.Fprintln(os.Stderr, strings.Repeat("e", 70<<10))
		fmt.Fprintln(os.Stderr, `{"@level":1,"@message":["x"],"@timestamp":{}}`)
		fmt.Fprintln(os.Stderr, `{"msg":"hello","level":"WARN","n":1}`)
		fmt.Fprint(os.Stderr, "bytes \xff without an end")
	case "grandchild": // holds both outputs for longer than any test runs
		cmd := exec.Command("sleep", fmt.Sprint("600.", os.Getpid()))
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			panic(err)
		}
	}
	plugins.Serve(&probeBridge{mode: mode})
}

// probeBridge answers questions about its own process and dies on demand.
type probeBridge struct{ mode string }

func (b *probeBridge) Describe(context.Context) (bridges.Description, error) {
	d := bridges.Description{Name: b.mode, Version: "1", Contract: []int{1}}
	switch b.mode {
	case "othername":
		d.Name = "somebody"
	case "oldcontract":
		d.Contract = []int{0}
	}
	return d, nil
}

// Create hands out pid and environment.
func (b *probeBridge) Create(_ context.Context, req bridges.CreateRequest) (bridges.Created, error) {
	switch req.SessionID {
	case "exit":
		os.Exit(7)
	case "goroutine panic":
		go panic("on my own")
		select {}
	}
	data, err := json.Marshal(probe{PID: os.Getpid(), Env: os.Environ()})
	return bridges.Created{Handle: bridges.Handle{Version: 1, Data: data}}, err
}

type probe struct {
	PID int
	Env []string
}

// Submit does what the task says until it is stopped.
func (b *probeBridge) Submit(ctx context.Context, req bridges.SubmitRequest, turn bridges.Turn) (bridges.Result, error) {
	turn.Emit(bridges.Event{Kind: bridges.KindText, Text: fmt.Sprint(os.Getpid())})
	verb, arg, _ := strings.Cut(req.Task, " ")
	switch verb {
	case "wait": // and say afterwards that the end was seen
		<-ctx.Done()
		if arg != "" {
			os.WriteFile(arg, []byte("ended"), 0o600)
		}
		return bridges.Result{}, ctx.Err()
	case "log": // into a pipe that nobody reads once the host is dead
		for ctx.Err() == nil {
			slog.Info("tick")
			time.Sleep(time.Millisecond)
		}
		for range 100 {
			slog.Info("tock")
		}
		os.WriteFile(arg, []byte("ended"), 0o600)
		return bridges.Result{}, ctx.Err()
	case "stuck":
		select {}
	case "print":
		fmt.Println(strings.Repeat("o", 70<<10))
		fmt.Fprintln(os.Stderr, strings.Repeat("e", 70<<10))
		slog.Info(strings.Repeat("l", 70<<10))
	case "env":
		turn.Emit(bridges.Event{Kind: bridges.KindText, Text: strings.Join(os.Environ(), "\n")})
	}
	return bridges.Result{Status: bridges.StatusCompleted}, nil
}

func (b *probeBridge) Reconnect(context.Context, bridges.ReconnectRequest) (bridges.Reconnected, error) {
	return bridges.Reconnected{Status: bridges.ReconnectSame}, nil
}

func (b *probeBridge) Dispose(context.Context, bridges.DisposeRequest) (bridges.Receipt, error) {
	return bridges.Receipt{}, nil
}

// quickExit spares the processes of a race build the second that they sleep at exit.
var quickExit = []string{"GORACE=atexit_sleep_ms=0"}

// hostMain opens a pool in dir, submits the task that it reads from standard input,
// prints the plugin's pid, and waits to be killed.
func hostMain(dir string) {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	pool, err := NewPool(Options{Self: self, Builtin: []string{"ok"}, Sockets: dir, Set: quickExit, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	b, err := pool.Open(context.Background(), "ok")
	if err != nil {
		panic(err)
	}
	task, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		panic(err)
	}
	b.Submit(context.Background(), bridges.SubmitRequest{Task: strings.TrimSpace(task)}, printTurn{})
}

type printTurn struct{}

func (printTurn) Emit(e bridges.Event) error { fmt.Println(e.Text); return nil }
func (printTurn) Ask(context.Context, bridges.Question) (bridges.Answer, error) {
	return bridges.Answer{}, nil
}
func (printTurn) Cancelled() <-chan struct{} { return nil }

// collectTurn keeps what a turn emits; first is closed with the first event.
type collectTurn struct {
	first chan string
	texts []string
}

func newCollectTurn() *collectTurn { return &collectTurn{first: make(chan string, 1)} }

func (c *collectTurn) Emit(e bridges.Event) error {
	c.texts = append(c.texts, e.Text)
	select {
	case c.first <- e.Text:
	default:
	}
	return nil
}

func (c *collectTurn) Ask(context.Context, bridges.Question) (bridges.Answer, error) {
	return bridges.Answer{}, nil
}
func (c *collectTurn) Cancelled() <-chan struct{} { return nil }

func newPool(t *testing.T, change func(*Options)) (*Pool, func() string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "hp") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	logs, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Self:    self,
		Builtin: []string{"ok", "banner", "silent", "deaf", "dies", "longline", "grandchild", "othername", "oldcontract"},
		Sockets: dir,
		Set:     slices.Clone(quickExit),
		Log:     slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&o)
	}
	p, err := NewPool(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	return p, func() string {
		b, err := os.ReadFile(logs.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
}

// eventually polls until ok, for what other processes do.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// withArgs lists live processes whose command line has all of the words.
func withArgs(words ...string) []int {
	var pids []int
	dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
next:
	for _, path := range dirs {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		line := strings.ReplaceAll(string(b), "\x00", " ")
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		var pid int
		fmt.Sscanf(path, "/proc/%d/", &pid)
		if alive(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}
