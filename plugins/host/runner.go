package host

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-plugin/runner"
)

const (
	// outputGrace is how long the plugin's pipes are read on after its end: what it
	// wrote last is there at once, and a process that escaped its group may hold
	// the other ends for ever.
	outputGrace = 300 * time.Millisecond
	// maxHandshake bounds the handshake line, which carries a certificate.
	maxHandshake = 64 << 10
)

// process is one plugin process from its start to its end. It is go-plugin's Runner,
// of which it keeps back what go-plugin does badly: standard error never reaches it
// (a log line can crash it), standard output only up to the handshake, and Wait does
// not wait for pipes (a grandchild can hold those).
type process struct {
	cmd      *exec.Cmd
	log      *slog.Logger
	lifeline *os.File // closes with this process at the latest

	outputs []*os.File     // our ends of its standard output and error
	stdout  *io.PipeReader // for go-plugin
	exited  chan struct{}  // closed after the group is killed and the output read

	mu     sync.Mutex
	state  *os.ProcessState
	banner string // a first line of standard output that is no handshake
	tail   tail
}

var _ runner.Runner = (*process)(nil)

// startProcess starts cmd, of which Path, Args, Env and Dir are set.
func startProcess(cmd *exec.Cmd, log *slog.Logger) (*process, error) {
	stdin, lifeline, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make the lifeline: %w", err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		stdin.Close()
		lifeline.Close()
		return nil, fmt.Errorf("make a pipe for standard output: %w", err)
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		for _, f := range []*os.File{stdin, lifeline, outR, outW} {
			f.Close()
		}
		return nil, fmt.Errorf("make a pipe for standard error: %w", err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, outW, errW
	ownGroup(cmd)
	err = cmd.Start()
	for _, f := range []*os.File{stdin, outW, errW} {
		f.Close()
	}
	if err != nil {
		for _, f := range []*os.File{lifeline, outR, errR} {
			f.Close()
		}
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	r, w := io.Pipe()
	p := &process{cmd: cmd, log: log, lifeline: lifeline, outputs: []*os.File{outR, errR}, stdout: r, exited: make(chan struct{})}
	var readers sync.WaitGroup
	readers.Go(func() { p.readStdout(outR, w) })
	readers.Go(func() { p.readStderr(errR) })
	go p.wait(&readers)
	return p, nil
}

// wait owns the process's end: it reaps the leader, kills what is left of the group,
// and gives the readers a moment.
func (p *process) wait(readers *sync.WaitGroup) {
	_ = p.cmd.Wait() // the state says more than the error
	killGroup(p.cmd.Process)
	read := make(chan struct{})
	go func() { readers.Wait(); close(read) }()
	select {
	case <-read:
	case <-time.After(outputGrace):
		p.stdout.Close() // go-plugin may have stopped reading
	}
	for _, f := range p.outputs {
		f.Close() // ends a reader that is still at it
	}
	<-read
	p.lifeline.Close()
	p.mu.Lock()
	p.state = p.cmd.ProcessState
	p.mu.Unlock()
	p.log.Debug("plugin process ended", "pid", p.cmd.Process.Pid, "state", p.cmd.ProcessState.String())
	close(p.exited)
}

// readStdout passes the handshake to go-plugin and everything later to the log.
func (p *process) readStdout(r io.Reader, w *io.PipeWriter) {
	br := bufio.NewReaderSize(r, maxHandshake)
	line, err := br.ReadSlice('\n')
	if len(line) > 0 && !isHandshake(line) {
		text := strings.ToValidUTF8(string(bytes.TrimSpace(line[:min(len(line), 200)])), "\uFFFD")
		p.mu.Lock()
		p.banner = text
		p.mu.Unlock()
	}
	if len(line) > 0 {
		_, _ = w.Write(bytes.TrimSpace(line))
		_, _ = w.Write([]byte("\n"))
	}
	if err == nil {
		readLines(br, func(text string) {
			p.log.Warn("plugin wrote to its standard output", "text", text)
		})
	}
	_, _ = io.Copy(io.Discard, br)
	w.Close()
}

// isHandshake reports whether a line can be go-plugin's: version|version|network|…
func isHandshake(line []byte) bool {
	parts := strings.Split(string(line), "|")
	if len(parts) < 5 {
		return false
	}
	_, err := strconv.Atoi(parts[0])
	return err == nil
}

func (p *process) readStderr(r io.Reader) {
	readLines(r, func(text string) {
		p.mu.Lock()
		p.tail.add(text)
		p.mu.Unlock()
		logLine(p.log, text)
	})
}

// kill ends the process and its group at once; exited follows.
func (p *process) kill() {
	select {
	case <-p.exited: // its number may be somebody else's by now
	default:
		killGroup(p.cmd.Process)
	}
}

// end says how the process ended, with its last words; empty while it runs.
func (p *process) end() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == nil {
		return ""
	}
	if last := p.tail.words(); last != "" {
		return p.state.String() + ": " + last
	}
	return p.state.String()
}

func (p *process) firstLine() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.banner
}

// The rest is for go-plugin.

func (p *process) Start(context.Context) error                      { return nil } // has been
func (p *process) Diagnose(context.Context) string                  { return "" }
func (p *process) Stdout() io.ReadCloser                            { return p.stdout }
func (p *process) Stderr() io.ReadCloser                            { return io.NopCloser(strings.NewReader("")) }
func (p *process) Name() string                                     { return p.cmd.Path }
func (p *process) ID() string                                       { return strconv.Itoa(p.cmd.Process.Pid) }
func (p *process) Wait(context.Context) error                       { <-p.exited; return nil }
func (p *process) Kill(context.Context) error                       { p.kill(); return nil }
func (p *process) PluginToHost(n, a string) (string, string, error) { return n, a, nil }
func (p *process) HostToPlugin(n, a string) (string, string, error) { return n, a, nil }
