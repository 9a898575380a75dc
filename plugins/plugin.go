package plugins

import (
	"context"
	"log/slog"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/subspan-dev/subspan/bridges"
)

// MaxMessage is the largest gRPC message either side takes, in bytes. The library's
// own defaults differ between the sides, so both set it.
const MaxMessage = 16 << 20

// Name is what the one service of a plugin process is called in go-plugin's terms.
const Name = "bridge"

// Handshake tells a plugin that it was started by a host on purpose. It is a
// courtesy to people who run a plugin by hand, not a secret.
func Handshake() plugin.HandshakeConfig {
	return plugin.HandshakeConfig{
		MagicCookieKey:   "SUBSPAN_PLUGIN",
		MagicCookieValue: "1b0d9f6f4c4e4f0a8a53d6f6b1f0c7e2",
	}
}

// Versions is the set of contract versions that this package speaks, for the host's
// side; the plugin dispensed as Name is a *Client.
func Versions() map[int]plugin.PluginSet {
	return versions(nil, nil)
}

func versions(b bridges.Bridge, log *slog.Logger) map[int]plugin.PluginSet {
	return map[int]plugin.PluginSet{
		bridges.ContractVersion: {Name: &glue{bridge: b, log: log}},
	}
}

// glue is what go-plugin wants to see of both sides. Its broker is not used: what
// the bridge asks of the host travels on the Submit stream.
type glue struct {
	plugin.NetRPCUnsupportedPlugin
	bridge bridges.Bridge
	log    *slog.Logger
	server *server
}

var _ plugin.GRPCPlugin = (*glue)(nil)

func (g *glue) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	g.server = register(s, g.bridge, g.log)
	return nil
}

func (g *glue) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return NewClient(conn), nil
}
