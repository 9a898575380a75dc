// Package core holds the host's rules: who may start what (grant, depth,
// children), what a turn is and when it is over, which events are kept, who
// answers an agent's question, and what becomes of everything after a crash.
//
// It knows sessions through package registry, agents through the contract in
// package bridges, and nothing of plugins, gRPC, MCP or any product. Whoever
// wires a program together hands it a BridgeSource and an AgentSource.
//
// # A task's way
//
//	Create   grant → registry record → bridge.Create → handle stored
//	Submit   accepted (durable) → bridge.Submit → events appended → ended (durable)
//	Follow   the session's log, from any cursor, while it grows
//
// There are two durable writes a turn, and both are appends to the session's own
// log: accepted before the agent hears of the task, ended before the caller does.
// session.json is a checkpoint of what the log implies.
//
// # After a crash
//
// A session is driven by the process that holds its lock. When that process dies
// the lock is free, the agent goes on under its keeper, and the next process that
// takes an interest (Wait, Submit, Stop) takes the lock, folds the log, and asks
// the bridge what became of the turn. It goes on from the last recorded position,
// or ends the turn as lost; it never runs a task a second time.
package core
