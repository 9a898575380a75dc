package confine

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// run gives the filter one system call, and returns what the kernel would do.
func run(t *testing.T, arch, nr uint32, args ...uint32) uint32 {
	t.Helper()
	code, err := filter()
	if err != nil {
		t.Skip(err)
	}
	program := make([]bpf.Instruction, len(code))
	for i, c := range code {
		program[i] = bpf.RawInstruction{Op: c.Code, Jt: c.Jt, Jf: c.Jf, K: c.K}.Disassemble()
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	// struct seccomp_data, in the byte order in which the machine for packets loads.
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[offNr:], nr)
	binary.BigEndian.PutUint32(data[offArch:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[offArg0+8*i:], a)
		// The upper half is not part of an int argument: the kernel does not look at it.
		binary.BigEndian.PutUint32(data[offArg0+8*i+4:], 0xdeadbeef)
	}
	got, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(got)
}

func TestFilter(t *testing.T) {
	const (
		own     = unix.AUDIT_ARCH_X86_64
		foreign = unix.AUDIT_ARCH_I386
		allow   = unix.SECCOMP_RET_ALLOW
		errno   = unix.SECCOMP_RET_ERRNO
		cloexec = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	)
	arch := ownArch(t)
	for _, c := range []struct {
		name string
		arch uint32
		nr   uint32
		args []uint32
		want uint32
	}{
		{"read", arch, unix.SYS_READ, nil, allow},
		{"inet socket", arch, unix.SYS_SOCKET, []uint32{unix.AF_INET, unix.SOCK_STREAM | cloexec, 0}, allow},
		{"inet6 datagrams", arch, unix.SYS_SOCKET, []uint32{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP}, allow},
		{"unix socket", arch, unix.SYS_SOCKET, []uint32{unix.AF_UNIX, unix.SOCK_STREAM | cloexec, 0}, errno | uint32(unix.EACCES)},
		{"multipath", arch, unix.SYS_SOCKET, []uint32{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, errno | uint32(unix.EPROTONOSUPPORT)},
		{"stream pair", arch, unix.SYS_SOCKETPAIR, []uint32{unix.AF_UNIX, unix.SOCK_STREAM | cloexec, 0}, allow},
		{"packet pair", arch, unix.SYS_SOCKETPAIR, []uint32{unix.AF_UNIX, unix.SOCK_SEQPACKET, 0}, allow},
		{"datagram pair", arch, unix.SYS_SOCKETPAIR, []uint32{unix.AF_UNIX, unix.SOCK_DGRAM | cloexec, 0}, errno | uint32(unix.EACCES)},
		{"raw pair", arch, unix.SYS_SOCKETPAIR, []uint32{unix.AF_UNIX, unix.SOCK_RAW, 0}, errno | uint32(unix.EACCES)},
		{"io_uring", arch, unix.SYS_IO_URING_SETUP, nil, errno | uint32(unix.EPERM)},
		{"io_uring's other calls", arch, unix.SYS_IO_URING_REGISTER, nil, errno | uint32(unix.EPERM)},
		{"another convention", foreign, unix.SYS_READ, nil, unix.SECCOMP_RET_KILL_PROCESS},
	} {
		if got := run(t, c.arch, c.nr, c.args...); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, got, c.want)
		}
	}
	if arch == own {
		if got := run(t, own, 1<<30|unix.SYS_SOCKET, unix.AF_INET); got != errno|uint32(unix.ENOSYS) {
			t.Errorf("x32: %#x", got)
		}
	}
}

func ownArch(t *testing.T) uint32 {
	t.Helper()
	for _, arch := range []uint32{unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_AARCH64, unix.AUDIT_ARCH_RISCV64} {
		if run(t, arch, unix.SYS_READ) == unix.SECCOMP_RET_ALLOW {
			return arch
		}
	}
	t.Fatal("the filter is for no architecture")
	return 0
}
