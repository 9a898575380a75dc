// Package bridgev1 is the wire form of the bridge contract, generated from
// bridge.proto. Code of this module uses package bridges instead; package plugins
// converts between the two, and nothing else should need to.
package bridgev1
