// Package plugins makes a process out of a bridge and a bridge out of a process.
//
// An author calls Serve with an implementation of bridges.Bridge and is done:
//
//	func main() { plugins.Serve(acme.New()) }
//
// The host's side is Client, which is a bridges.Bridge again; package host launches
// the processes and supervises them. Between the two stands gRPC (proto/bridge/v1)
// over a unix socket with mutual TLS, and the handshake of hashicorp/go-plugin.
// What a plugin in another language has to do is written down in PROTOCOL.md.
//
// The wire boundary can be found by file name: server.go is the plugin's end,
// client.go the host's, convert*.go the translation, errors.go the errors,
// serve.go the life of a plugin process.
//
// Folders below: host (launch and supervise), dropin (manifests, trust and pins),
// bridgetest (the conformance suite), examples.
package plugins
