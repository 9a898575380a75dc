package registry

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// bootID names this run of the system.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// startTime returns when a process started, in clock ticks since boot; 0 when
// there is no such process.
func startTime(pid int) uint64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The command's name is in parentheses and may hold anything, parentheses too.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const start = 22 - 3 // the fields after the name begin with the third
	if len(fields) <= start {
		return 0
	}
	n, err := strconv.ParseUint(string(fields[start]), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
