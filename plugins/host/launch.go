package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/plugins"
	"github.com/subspan-dev/subspan/plugins/internal/identity"
)

const (
	startLimit    = 10 * time.Second // from fork to an answered Describe
	describeLimit = 5 * time.Second
	probeEvery    = 15 * time.Second // while calls are in flight
	probeLimit    = 2 * time.Second
	// stopLimit is how long a plugin may take to end by itself; its handlers have
	// 1.5 s of that (plugins.Serve).
	stopLimit = 3 * time.Second
)

// Program is what to launch for a bridge.
type Program struct {
	Name    string
	Command []string // absolute executable and arguments
	Dir     string   // to run in; empty for the root
	Env     []string // KEY=VALUE, all of it
	Sockets string   // a private folder, short enough for a socket's path
	// Check reports what in a description does not fit; nil for no check.
	Check func(bridges.Description) error
}

// Instance is one launched plugin: a process and the connection to it. Its verbs set
// no deadlines; those of a Pool's bridges do.
type Instance struct {
	*plugins.Client
	proc     *process
	client   *plugin.Client
	health   grpc_health_v1.HealthClient
	log      *slog.Logger
	started  time.Time
	inFlight atomic.Int64
	watching sync.WaitGroup
}

// Launch starts a plugin and returns when it has described itself. On error nothing
// of it is left. The caller ends the Instance with Stop.
func Launch(ctx context.Context, pr Program, log *slog.Logger) (*Instance, error) {
	own, err := identity.New()
	if err != nil {
		return nil, bridges.Errorf(bridges.KindInternal, "make a certificate for plugin %s: %w", pr.Name, err)
	}
	log = log.With("plugin", pr.Name)
	in := &Instance{log: log, started: time.Now()}
	stray := strayWriter{log: log}
	started := make(chan *process, 1)
	in.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  plugins.Handshake(),
		VersionedPlugins: plugins.Versions(),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		TLSConfig:        identity.Client(own),
		SkipHostEnv:      true,
		StartTimeout:     startLimit,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: pr.Sockets},
		GRPCDialOptions:  plugins.DialOptions(),
		Logger:           hclog.NewNullLogger(), // what matters of it comes back as errors
		SyncStdout:       stray,
		SyncStderr:       stray,
		RunnerFunc: func(_ hclog.Logger, spec *exec.Cmd, _ string) (runner.Runner, error) {
			cmd := exec.Command(pr.Command[0], pr.Command[1:]...)
			cmd.Env = slices.Concat(pr.Env, spec.Env, []string{identity.ClientCertEnv + "=" + identity.PEM(own)})
			cmd.Dir = cmp.Or(pr.Dir, string(os.PathSeparator))
			p, err := startProcess(cmd, log)
			if err != nil {
				return nil, err
			}
			started <- p
			return p, nil
		},
	})

	// go-plugin takes no context, and a plugin that accepts but does not speak would
	// hold it for ever: this goroutine ends when the process does.
	connected := make(chan error, 1)
	go func() { connected <- in.connect() }()
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	select {
	case in.proc = <-started:
		select {
		case err = <-connected:
		case <-ctx.Done():
			err = fmt.Errorf("not ready after %s: %w", time.Since(in.started).Round(time.Millisecond), ctx.Err())
		}
	case err = <-connected:
		select {
		case in.proc = <-started:
		default: // it could not be started at all
		}
	}
	if err == nil {
		err = in.describe(ctx, pr)
	}
	if err != nil {
		in.discard()
		return nil, in.startError(pr, err)
	}
	log.Debug("plugin started", "pid", in.proc.cmd.Process.Pid, "took", time.Since(in.started))
	in.watching.Go(in.probe)
	return in, nil
}

// connect runs go-plugin's handshake.
func (in *Instance) connect() error {
	protocol, err := in.client.Client()
	if err != nil {
		return err
	}
	raw, err := protocol.Dispense(plugins.Name)
	if err != nil {
		return err
	}
	g, ok := protocol.(*plugin.GRPCClient)
	if !ok {
		return fmt.Errorf("go-plugin answered with a %T", protocol)
	}
	in.Client = raw.(*plugins.Client)
	in.health = grpc_health_v1.NewHealthClient(grpc.ClientConnInterface(g.Conn))
	return nil
}

func (in *Instance) describe(ctx context.Context, pr Program) error {
	ctx, cancel := context.WithTimeout(ctx, describeLimit)
	defer cancel()
	d, err := in.Describe(ctx)
	if err != nil {
		return fmt.Errorf("describe: %w", err)
	}
	if !slices.Contains(d.Contract, bridges.ContractVersion) {
		return fmt.Errorf("it speaks contract %v, this host speaks %d", d.Contract, bridges.ContractVersion)
	}
	if pr.Check == nil {
		return nil
	}
	return pr.Check(d)
}

// discard ends what a failed launch has left.
func (in *Instance) discard() {
	if in.proc != nil {
		in.proc.kill()
		<-in.proc.exited
	}
	in.client.Kill() // the process is gone: this closes and removes, and does not wait
}

// startError says why a plugin did not start, in the order of what helps most.
func (in *Instance) startError(pr Program, err error) error {
	e := bridges.Errorf(bridges.KindPluginFailed, "plugin %s did not start: %w", pr.Name, err)
	if in.proc == nil {
		return e.WithNext("check that %s exists and is executable", pr.Command[0])
	}
	if line := in.proc.firstLine(); line != "" {
		return bridges.Errorf(bridges.KindPluginFailed, "plugin %s wrote to standard output before its handshake: %q", pr.Name, line).
			WithNext("a plugin's standard output belongs to the handshake: make it print to standard error, then run `subspan plugins check`")
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return e.WithNext("see the host's log for what the plugin said")
	}
	return bridges.Errorf(bridges.KindPluginFailed, "plugin %s did not start: %w (%s)", pr.Name, err, in.proc.end()).
		WithNext("run `subspan plugins check` on its folder, or see the host's log")
}

// probe kills a process that has stopped answering while somebody waits for it. One
// missed answer may be a busy machine, two in a row are not.
func (in *Instance) probe() {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	missed := 0
	for {
		select {
		case <-in.proc.exited:
			return
		case <-tick.C:
		}
		if in.inFlight.Load() == 0 {
			missed = 0
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
		_, err := in.health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: plugin.GRPCServiceName})
		cancel()
		if err == nil {
			missed = 0
			continue
		}
		if missed++; missed == 2 {
			in.log.Error("plugin does not answer and is killed", "error", err)
			in.proc.kill()
			return
		}
	}
}

// PID is the process's number.
func (in *Instance) PID() int { return in.proc.cmd.Process.Pid }

// Exited is closed when the process and its group are gone.
func (in *Instance) Exited() <-chan struct{} { return in.proc.exited }

// Kill ends the process at once, as the kernel or a person might. Stop is still due.
func (in *Instance) Kill() { in.proc.kill() }

// Abandon does to the plugin what the death of its host does: the lifeline ends and
// nobody reads its output. Stop is still due.
func (in *Instance) Abandon() {
	in.proc.lifeline.Close()
	for _, f := range in.proc.outputs {
		f.Close()
	}
}

// Stop ends the plugin: in peace until stopLimit or ctx is over, then by the signal
// that nothing survives. It may be called more than once.
func (in *Instance) Stop(ctx context.Context) {
	in.proc.lifeline.Close()
	select {
	case <-in.proc.exited:
	case <-time.After(stopLimit):
	case <-ctx.Done():
	}
	in.proc.kill()
	<-in.proc.exited
	in.release()
}

// release frees what is left of an instance whose process has ended.
func (in *Instance) release() {
	in.client.Kill()
	in.watching.Wait()
}

// strayWriter takes what a plugin prints after its handshake.
type strayWriter struct{ log *slog.Logger }

var _ io.Writer = strayWriter{}

func (w strayWriter) Write(b []byte) (int, error) {
	w.log.Info("plugin printed", "text", string(b[:min(len(b), maxLogLine)]))
	return len(b), nil
}
