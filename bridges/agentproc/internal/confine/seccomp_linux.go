package confine

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data, little-endian: all arguments that are looked at
// are ints, so the low half of the register is the whole truth.
const (
	offNr   = 0
	offArch = 4
	offArg0 = 16
	offArg1 = 24
	offArg2 = 32
)

// The filter closes what Landlock leaves open. Sockets of the file system lead to
// helpers that write in our stead (docker, systemd, tmux); they need a unix socket,
// which is refused. socketpair stays, but not for datagrams: those can be pointed
// at another socket later. Multipath TCP is not covered by Landlock's TCP rules.
// io_uring makes sockets without a call that a filter sees. A foreign calling
// convention (32-bit on 64-bit) has other numbers for all of these and is not for
// agents; that and no_new_privs aside, everything passes.
func filter() ([]unix.SockFilter, error) {
	arch, ok := map[string]uint32{
		"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64, "riscv64": unix.AUDIT_ARCH_RISCV64,
	}[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("%w: no seccomp filter for %s", ErrUnavailable, runtime.GOARCH)
	}
	refuse := func(errno uint32) bpf.Instruction {
		return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | errno}
	}
	allow := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	load := func(off uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: off, Size: 4} }
	unless := func(val uint32, skip uint8) bpf.Instruction {
		return bpf.JumpIf{Cond: bpf.JumpEqual, Val: val, SkipFalse: skip}
	}
	program := []bpf.Instruction{
		load(offArch),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		load(offNr),
	}
	if runtime.GOARCH == "amd64" { // the x32 convention: same architecture, bit 30 set
		program = append(program, bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: 1 << 30, SkipFalse: 1}, refuse(uint32(unix.ENOSYS)))
	}
	for _, nr := range []uint32{unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER} {
		program = append(program, unless(nr, 1), refuse(uint32(unix.EPERM)))
	}
	program = append(program,
		unless(unix.SYS_SOCKET, 7),
		load(offArg0),
		unless(unix.AF_UNIX, 1),
		refuse(uint32(unix.EACCES)),
		load(offArg2),
		unless(unix.IPPROTO_MPTCP, 1),
		refuse(uint32(unix.EPROTONOSUPPORT)),
		allow,

		unless(unix.SYS_SOCKETPAIR, 5),
		load(offArg1),
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf}, // SOCK_TYPE_MASK
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOCK_DGRAM, SkipTrue: 1},
		unless(unix.SOCK_RAW, 1), // a datagram socket by another name
		refuse(uint32(unix.EACCES)),
		allow,
	)
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("seccomp filter: %w", err)
	}
	code := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		code[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return code, nil
}

// install puts the filter on the calling thread alone.
func install(code []unix.SockFilter) error {
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	// Not unix.Prctl: it takes the pointer as a number, which keeps nothing in place.
	_, _, errno := syscall.Syscall6(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER,
		uintptr(unsafe.Pointer(&program)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("%w: seccomp: %w", ErrUnavailable, errno)
	}
	return nil
}
