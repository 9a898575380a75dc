package host

import (
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

// program is what to launch for a bridge.
type program struct {
	name    string
	command []string // absolute executable and arguments
	env     []string
	// check reports what in a description does not fit.
	check func(bridges.Description) error
}

// instance is one launched plugin: a process and the connection to it.
type instance struct {
	*plugins.Client
	proc     *process
	client   *plugin.Client
	health   grpc_health_v1.HealthClient
	log      *slog.Logger
	started  time.Time
	inFlight atomic.Int64
	watching sync.WaitGroup
}

// launch starts a plugin and returns when it has described itself. On error nothing
// of it is left.
func launch(ctx context.Context, pr program, sockets string, log *slog.Logger) (*instance, error) {
	own, err := identity.New()
	if err != nil {
		return nil, bridges.Errorf(bridges.KindInternal, "make a certificate for plugin %s: %w", pr.name, err)
	}
	log = log.With("plugin", pr.name)
	in := &instance{log: log, started: time.Now()}
	stray := strayWriter{log: log}
	started := make(chan *process, 1)
	in.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  plugins.Handshake(),
		VersionedPlugins: plugins.Versions(),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		TLSConfig:        identity.Client(own),
		SkipHostEnv:      true,
		StartTimeout:     startLimit,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: sockets},
		GRPCDialOptions:  plugins.DialOptions(),
		Logger:           hclog.NewNullLogger(), // what matters of it comes back as errors
		SyncStdout:       stray,
		SyncStderr:       stray,
		RunnerFunc: func(_ hclog.Logger, spec *exec.Cmd, _ string) (runner.Runner, error) {
			cmd := exec.Command(pr.command[0], pr.command[1:]...)
			cmd.Env = slices.Concat(pr.env, spec.Env, []string{identity.ClientCertEnv + "=" + identity.PEM(own)})
			cmd.Dir = string(os.PathSeparator)
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
func (in *instance) connect() error {
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

func (in *instance) describe(ctx context.Context, pr program) error {
	ctx, cancel := context.WithTimeout(ctx, describeLimit)
	defer cancel()
	d, err := in.Describe(ctx)
	if err != nil {
		return fmt.Errorf("describe: %w", err)
	}
	if !slices.Contains(d.Contract, bridges.ContractVersion) {
		return fmt.Errorf("it speaks contract %v, this host speaks %d", d.Contract, bridges.ContractVersion)
	}
	return pr.check(d)
}

// discard ends what a failed launch has left.
func (in *instance) discard() {
	if in.proc != nil {
		in.proc.kill()
		<-in.proc.exited
	}
	in.client.Kill() // the process is gone: this closes and removes, and does not wait
}

// startError says why a plugin did not start, in the order of what helps most.
func (in *instance) startError(pr program, err error) error {
	e := bridges.Errorf(bridges.KindPluginFailed, "plugin %s did not start: %w", pr.name, err)
	if in.proc == nil {
		return e.WithNext("check that %s exists and is executable", pr.command[0])
	}
	if line := in.proc.firstLine(); line != "" {
		return bridges.Errorf(bridges.KindPluginFailed, "plugin %s wrote to standard output before its handshake: %q", pr.name, line).
			WithNext("a plugin's standard output belongs to the handshake: make it print to standard error, then run `subspan plugins check`")
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return e.WithNext("see the host's log for what the plugin said")
	}
	return bridges.Errorf(bridges.KindPluginFailed, "plugin %s did not start: %w (%s)", pr.name, err, in.proc.end()).
		WithNext("run `subspan plugins check` on its folder, or see the host's log")
}

// probe kills a process that has stopped answering while somebody waits for it. One
// missed answer may be a busy machine, two in a row are not.
func (in *instance) probe() {
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

// stop ends the plugin: the lifeline first, then go-plugin's own way to close the
// connection, and the signal that nothing survives when ctx or stopLimit is over.
func (in *instance) stop(ctx context.Context) {
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
func (in *instance) release() {
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
