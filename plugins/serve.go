package plugins

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc"
	"github.com/subspan-dev/subspan/plugins/internal/identity"
)

const (
	// memoryLimit is a soft limit: the collector works harder near it, nothing fails.
	// The program's own pages, 16 MiB, come on top.
	memoryLimit = 42 << 20
	// drainLimit is how long handlers may take to return at the end. A host that is
	// gone for good expects the process to be gone within two seconds.
	drainLimit = 1500 * time.Millisecond
	// describeLimit bounds --describe, which starts and asks nothing.
	describeLimit = 5 * time.Second
	// LogLevelEnv is where the host says how much a plugin shall log: debug, info,
	// warn or error.
	LogLevelEnv = "SUBSPAN_LOG"
)

// Option changes how Serve runs a plugin.
type Option func(*options)

type options struct {
	memoryLimit int64
}

// WithMemoryLimit sets the soft memory limit in bytes instead of 48 MiB. GOMEMLIMIT
// in the environment wins over both.
func WithMemoryLimit(bytes int64) Option {
	return func(o *options) { o.memoryLimit = bytes }
}

// Serve runs b as a plugin process and does not return. It is the whole of main:
//
//	func main() { plugins.Serve(acme.New()) }
//
// Started by a host it serves until the host asks it to stop, closes its standard
// input, or dies; then contexts end, handlers get 1.5 s to return, b is closed
// when it is an io.Closer, and the process exits with 0. Agents live on under their
// keepers. With --describe as its last argument it prints the Description as JSON
// and exits. Started by hand it explains itself and exits with 1.
//
// While it serves, log and slog.Default write to the host's log; standard output
// belongs to the handshake. Memory is limited softly, a panic in a verb fails that
// call alone, and messages are limited to MaxMessage on both sides.
func Serve(b bridges.Bridge, opts ...Option) {
	agentproc.Main() // a keeper is this same executable; it never returns there

	o := options{memoryLimit: memoryLimit}
	for _, opt := range opts {
		opt(&o)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(o.memoryLimit)
	}
	if len(os.Args) > 1 && os.Args[len(os.Args)-1] == "--describe" {
		os.Exit(describe(b, os.Stdout, os.Stderr))
	}
	shake := Handshake()
	if os.Getenv(shake.MagicCookieKey) != shake.MagicCookieValue {
		fmt.Fprint(os.Stderr, "This is a bridge plugin of subspan; subspan starts it by itself.\n"+
			"To install it, put its folder below the plugins folder and run `subspan plugins trust NAME`.\n"+
			"To test it, run `subspan plugins check FOLDER`. To see what it is, run it with --describe.\n")
		os.Exit(1)
	}
	os.Exit(serve(b))
}

func describe(b bridges.Bridge, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithTimeout(context.Background(), describeLimit)
	defer cancel()
	d, err := b.Describe(ctx)
	if err == nil {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(d)
	}
	if err != nil {
		fmt.Fprintln(stderr, "describe:", err)
		return 1
	}
	return 0
}

// serve runs the plugin process from the handshake to its end.
func serve(b bridges.Bridge) int {
	// With a handler in place a write to a log that nobody reads any more is an
	// error and not the end of the process. A handler, unlike an ignored signal, is
	// not inherited by the agents.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	stderr := os.Stderr // the real one: go-plugin puts a pipe in its place
	level := logLevel(os.Getenv(LogLevelEnv))
	log := slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: level}))
	slog.SetDefault(log)

	wire, err := handshakeOutput()
	if err != nil {
		log.Error("prepare the handshake", "error", err)
		return 1
	}
	g := &glue{bridge: b, log: log}
	var server atomic.Pointer[grpc.Server]
	go func() {
		// The host holds the other end for as long as it lives, whatever kills it.
		_, _ = io.Copy(io.Discard, os.Stdin)
		log.Debug("the host is gone")
		if s := server.Load(); s != nil {
			s.Stop()
			return
		}
		os.Exit(0) // not serving yet: nothing to wait for
	}()

	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  Handshake(),
		VersionedPlugins: map[int]plugin.PluginSet{bridges.ContractVersion: {Name: g}},
		TLSProvider:      wire.tls,
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			s := grpc.NewServer(append(opts, ServerOptions()...)...)
			server.Store(s)
			return s
		},
		Logger: hclog.New(&hclog.LoggerOptions{Output: stderr, JSONFormat: true, Level: hclog.Warn}),
	})
	if g.server == nil { // go-plugin logged why
		return 1
	}
	g.server.drain(drainLimit)
	if c, ok := b.(io.Closer); ok {
		if err := c.Close(); err != nil {
			log.Warn("close the bridge", "error", err)
		}
	}
	return 0
}

func logLevel(s string) slog.Level {
	var level slog.Level // info
	if err := level.UnmarshalText([]byte(s)); err != nil {
		return slog.LevelInfo
	}
	return level
}

// handshake stands between go-plugin and the real standard output, to put our own
// certificate into the line that go-plugin prints. go-plugin makes one with P-521
// otherwise, which takes longer than all the rest of a launch.
type handshake struct {
	cert string // base64, empty without TLS
	conf *tls.Config
}

// handshakeOutput replaces os.Stdout until the handshake line has passed.
func handshakeOutput() (*handshake, error) {
	h := &handshake{}
	if clientPEM := os.Getenv(identity.ClientCertEnv); clientPEM != "" {
		own, err := identity.New()
		if err != nil {
			return nil, err
		}
		if h.conf, err = identity.Server(own, clientPEM); err != nil {
			return nil, err
		}
		h.cert = base64.RawStdEncoding.EncodeToString(own.Certificate[0])
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	out := os.Stdout
	os.Stdout = w
	// It would add a field after the certificate, for a broker that nobody here uses.
	os.Unsetenv("PLUGIN_MULTIPLEX_GRPC")
	go func() {
		defer r.Close()
		line, err := bufio.NewReader(r).ReadString('\n')
		if err != nil {
			return // go-plugin ended without a line, and so does the process
		}
		// By now go-plugin has read what it needs of the environment; the rest of
		// the process, agents included, has no business with it.
		for _, kv := range os.Environ() {
			if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "PLUGIN_") {
				os.Unsetenv(name)
			}
		}
		os.Unsetenv(Handshake().MagicCookieKey)
		fmt.Fprintln(out, strings.TrimSuffix(line, "\n")+h.cert)
	}()
	return h, nil
}

// tls is go-plugin's TLSProvider; nil means none.
func (h *handshake) tls() (*tls.Config, error) { return h.conf, nil }
