//go:build !linux

package registry

// bootID and startTime have no portable source. A holder is then named by its pid
// alone, which is for people to read; the lock itself never depends on it.
func bootID() string { return "" }

func startTime(int) uint64 { return 0 }
