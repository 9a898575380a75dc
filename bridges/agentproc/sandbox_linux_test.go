package agentproc

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/bridges/agentproc/internal/confine"
)

// attempts tries what a sandbox is there for, and tells the error of each attempt;
// "" is success. With TEST_DEEP it does so in a grandchild in a session of its own.
func attempts() {
	if os.Getenv("TEST_DEEP") != "" {
		self, err := os.Executable()
		if err != nil {
			panic(err)
		}
		child := exec.Command("/bin/sh", "-c", `setsid "$0" & wait`, self)
		for _, e := range os.Environ() {
			if !strings.HasPrefix(e, "TEST_DEEP=") {
				child.Env = append(child.Env, e)
			}
		}
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Run(); err != nil {
			panic(err)
		}
		return
	}
	result := map[string]string{}
	try := func(name string, err error) {
		result[name] = ""
		if err != nil {
			result[name] = err.Error()
		}
	}
	at := func(variable string) string { return filepath.Join(os.Getenv(variable), "attempt") }
	write := func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) }
	socket := func(domain, kind, protocol int) error {
		fd, err := unix.Socket(domain, kind, protocol)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	pair := func(kind int) error {
		fds, err := unix.Socketpair(unix.AF_UNIX, kind, 0)
		if err == nil {
			unix.Close(fds[0])
			unix.Close(fds[1])
		}
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	try("write cwd", write(filepath.Join(cwd, "attempt")))
	try("write home", write(at("HOME")))
	try("write state", write(at("STATE")))
	try("write tmp", write(filepath.Join(os.TempDir(), "attempt")))
	try("rename state to tmp", os.Rename(at("STATE"), filepath.Join(os.TempDir(), "moved")))
	try("write /dev/null", write("/dev/null"))
	try("truncate", os.Truncate(filepath.Join(os.Getenv("HOME"), "precious"), 0))
	try("unlink", os.Remove(filepath.Join(os.Getenv("HOME"), "precious")))
	_, err = os.ReadFile(filepath.Join(os.Getenv("HOME"), "readable"))
	try("read home", err)
	try("write records", write(filepath.Join(os.Getenv("RECORDS"), "exit.json")))
	orders, err := os.OpenFile(filepath.Join(os.Getenv("RECORDS"), "orders"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		orders.Close()
	}
	try("order", err)
	c, err := net.Dial("unix", os.Getenv("SOCKET"))
	if err == nil {
		c.Close()
	}
	try("unix socket", err)
	try("tcp socket", socket(unix.AF_INET, unix.SOCK_STREAM, 0))
	try("mptcp socket", socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP))
	try("stream pair", pair(unix.SOCK_STREAM|unix.SOCK_CLOEXEC))
	try("datagram pair", pair(unix.SOCK_DGRAM|unix.SOCK_CLOEXEC))
	try("raw pair", pair(unix.SOCK_RAW))
	_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 0, 0, 0)
	err = nil
	if errno != unix.EFAULT && errno != unix.EINVAL { // those are its own complaints
		err = errno
	}
	try("io_uring", err)
	try("signal the keeper", unix.Kill(os.Getppid(), 0))
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		panic(err)
	}
}

func TestSandbox(t *testing.T) {
	needSandbox(t)
	t.Parallel()
	refused := map[string]bool{
		"write cwd": true, "write home": true, "truncate": true, "unlink": true, "write records": true, "order": true,
		"unix socket": true, "mptcp socket": true, "datagram pair": true, "raw pair": true, "io_uring": true,
	}
	for name, c := range map[string]struct {
		mode   SandboxMode
		deep   bool
		except []string // what is not refused after all
	}{
		"readonly":                 {mode: SandboxReadOnly},
		"readonly, its grandchild": {mode: SandboxReadOnly, deep: true},
		"workspace":                {mode: SandboxWorkspace, except: []string{"write cwd"}},
		"off":                      {mode: SandboxOff},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, state := t.TempDir(), t.TempDir()
			for _, f := range []string{"precious", "readable"} {
				if err := os.WriteFile(filepath.Join(home, f), []byte("data"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			short, err := os.MkdirTemp("", "s") // socket paths are short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(short) })
			listener, err := net.Listen("unix", filepath.Join(short, "s"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { listener.Close() })
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			spec := program(t, self)
			spec.Sandbox = Sandbox{Mode: c.mode, Writable: []string{state}, Workspace: spec.Cwd}
			spec.Env = append(spec.Env, "TEST_ROLE=attempts", "HOME="+home, "STATE="+state, "RECORDS="+spec.Dir, "SOCKET="+listener.Addr().String())
			if c.mode == SandboxOff {
				spec.Env = append(spec.Env, "TMPDIR="+t.TempDir())
			}
			if c.deep {
				spec.Env = append(spec.Env, "TEST_DEEP=1")
			}
			p := start(t, newRunner(t), spec)
			var got map[string]string
			if err := json.Unmarshal([]byte(frame(t, p.Reader(0))), &got); err != nil {
				t.Fatal(err)
			}
			for what, said := range got {
				want := refused[what] && c.mode != SandboxOff
				for _, e := range c.except {
					want = want && e != what
				}
				if what == "signal the keeper" && !c.deep { // from ABI 6 on
					want = c.mode != SandboxOff && landlockABI(t, p.Hold()) >= 6
				}
				if c.mode == SandboxOff && what == "io_uring" {
					continue // where the test runs it may be refused anyway
				}
				if (said != "") != want {
					t.Errorf("%s: %q, refused should be %v", what, said, want)
				}
			}
			if len(got) < 19 {
				t.Errorf("only %d attempts", len(got))
			}
			if hold := p.Hold(); c.mode == SandboxOff != (hold == bridges.Hold{}) ||
				c.mode != SandboxOff && (hold.Strength != bridges.HoldKernel || !strings.HasSuffix(hold.Detail, "+seccomp")) {
				t.Errorf("hold %v", hold)
			}
			<-p.Exited()
			if e, _ := p.Exit(); e.Code != 0 {
				t.Errorf("exit %+v", e)
			}
		})
	}
}

func landlockABI(t *testing.T, hold bridges.Hold) int {
	t.Helper()
	text, _, _ := strings.Cut(strings.TrimPrefix(hold.Detail, "landlock-"), "+")
	abi, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("hold %q: %v", hold.Detail, err)
	}
	return abi
}

func needSandbox(t *testing.T) {
	t.Helper()
	// Not the probe: where the kernel has what it takes, the rest is ours to get right.
	if _, err := confine.Check(); err != nil {
		t.Skip(err)
	}
}

func TestProbeSandbox(t *testing.T) {
	needSandbox(t)
	t.Setenv("TMPDIR", t.TempDir())
	detail, err := ProbeSandbox(limit(t))
	if err != nil || !strings.HasPrefix(detail, "landlock-") || !strings.HasSuffix(detail, "+seccomp") {
		t.Errorf("held by %q, %v", detail, err)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A program for the 32-bit calling convention has other numbers for everything that
// the filter looks at.
func TestForeignCallingConventionIsRefused(t *testing.T) {
	needSandbox(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("needs a machine with two conventions")
	}
	t.Parallel()
	// mov eax, 1 (exit); mov ebx, 7; int 0x80
	path := filepath.Join(t.TempDir(), "exit7")
	if err := os.WriteFile(path, elf32([]byte{0xb8, 1, 0, 0, 0, 0xbb, 7, 0, 0, 0, 0xcd, 0x80}), 0o700); err != nil {
		t.Fatal(err)
	}
	r := newRunner(t)
	spec := program(t, path)
	plain, err := r.Start(limit(t), spec)
	if err != nil {
		t.Skipf("this kernel does not run 32-bit programs: %v", err)
	}
	<-plain.Exited()
	if e, _ := plain.Exit(); e.Code != 7 {
		t.Fatalf("unconfined: %+v", e)
	}
	spec = program(t, path)
	spec.Sandbox.Mode = SandboxReadOnly
	p := start(t, r, spec)
	<-p.Exited()
	if e, _ := p.Exit(); e.Signal != "bad system call" {
		t.Errorf("confined: %+v", e)
	}
}

// elf32 is the smallest executable with that code.
func elf32(code []byte) []byte {
	const base, header = 0x08048000, 52 + 32
	b := append([]byte("\x7fELF\x01\x01\x01"), make([]byte, 9)...)
	u16 := func(v ...uint16) {
		for _, v := range v {
			b = binary.LittleEndian.AppendUint16(b, v)
		}
	}
	u32 := func(v ...uint32) {
		for _, v := range v {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	}
	u16(2, 3)                          // executable, i386
	u32(1, base+header, 52, 0, 0)      // version, entry, program headers, sections, flags
	u16(52, 32, 1, 0, 0, 0)            // sizes and counts
	size := uint32(header + len(code)) // the whole file is one segment
	u32(1, 0, base, base, size, size, 5, 0x1000)
	return append(b, code...)
}

// The keeper starts the agent from a confined thread, and stays free itself.
func TestKeeperIsNotConfined(t *testing.T) {
	needSandbox(t)
	t.Parallel()
	spec := program(t, "/bin/cat")
	spec.Sandbox.Mode = SandboxReadOnly
	p := start(t, newRunner(t), spec)
	confined := func(pid int) (yes, no int) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		if err != nil || len(threads) == 0 {
			t.Fatal(threads, err)
		}
		for _, path := range threads {
			data, err := os.ReadFile(path)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(data), "\nSeccomp:\t2\n") {
				yes++
			} else {
				no++
			}
		}
		return yes, no
	}
	if yes, no := confined(p.record.Agent.PID); yes != 1 || no != 0 {
		t.Errorf("agent: %d threads confined, %d not", yes, no)
	}
	if yes, no := confined(p.record.Keeper.PID); yes != 1 || no == 0 {
		t.Errorf("keeper: %d threads confined, %d not; only the one that started the agent should be", yes, no)
	}
}

func TestSandboxReadsWhatIsListed(t *testing.T) {
	needSandbox(t)
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := script(t, `cat "$0" 2>/dev/null && echo read; cat /etc/passwd >/dev/null && echo listed`)
	spec.Command = append(spec.Command, secret)
	spec.Sandbox = Sandbox{Mode: SandboxReadOnly, Read: []string{"/usr", "/bin", "/lib", "/lib64", "/etc/passwd", "/dev", spec.Cwd}}
	for i, path := range spec.Sandbox.Read { // not every system has all of them
		if _, err := os.Stat(path); err != nil {
			spec.Sandbox.Read[i] = "/usr"
		}
	}
	if got := frame(t, start(t, newRunner(t), spec).Reader(0)); got != "listed" {
		t.Errorf("got %q", got)
	}
}

func TestSandboxThatCannotHold(t *testing.T) {
	needSandbox(t)
	t.Parallel()
	r := newRunner(t)
	for name, c := range map[string]struct {
		sandbox func(Spec) Sandbox
		words   string
	}{
		"records in the workspace":       {func(s Spec) Sandbox { return Sandbox{Mode: SandboxWorkspace, Workspace: filepath.Dir(s.Dir)} }, "holds the session's own records"},
		"records in the state":           {func(s Spec) Sandbox { return Sandbox{Mode: SandboxReadOnly, Writable: []string{s.Dir}} }, "holds the session's own records"},
		"everything is writable":         {func(Spec) Sandbox { return Sandbox{Mode: SandboxReadOnly, Writable: []string{"/"}} }, "holds the session's own records"},
		"a folder that is not there":     {func(Spec) Sandbox { return Sandbox{Mode: SandboxReadOnly, Writable: []string{"/no/such"}} }, "/no/such"},
		"a relative folder":              {func(Spec) Sandbox { return Sandbox{Mode: SandboxReadOnly, Writable: []string{"state"}} }, "not absolute"},
		"a workspace without its folder": {func(Spec) Sandbox { return Sandbox{Mode: SandboxWorkspace} }, "needs the workspace's folder"},
		"something to read is not there": {func(Spec) Sandbox { return Sandbox{Mode: SandboxReadOnly, Read: []string{"/no/such"}} }, "/no/such"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := program(t, "/bin/cat")
			spec.Sandbox = c.sandbox(spec)
			_, err := r.Start(limit(t), spec)
			wantKind(t, err, bridges.KindSandboxUnavailable, c.words)
		})
	}
	spec := program(t, "/bin/cat")
	spec.Sandbox.Mode = 17
	_, err := r.Start(limit(t), spec)
	wantKind(t, err, bridges.KindInvalidArgument)
}
