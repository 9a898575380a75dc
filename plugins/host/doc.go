// Package host launches plugin processes and supervises them. A Pool holds one
// process per bridge in use, started with the first call that needs it.
//
// The processes are not go-plugin's to manage: runner.go starts each in a process
// group of its own, reads its output itself, and holds the lifeline, a pipe on the
// plugin's standard input that closes when this process dies, however it dies. A
// plugin's log can therefore never crash or block the host, and no plugin outlives
// it. Agents do: they live under keepers, which are no children of a plugin's group.
package host
