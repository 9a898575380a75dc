//go:build linux

package matrix

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// atTerminal runs the program at a terminal of its own, answers each question with
// reply, and returns all that was on the screen.
func (c *cell) atTerminal(reply string, args ...string) string {
	master, slave, err := openTerminal()
	if err != nil {
		c.fatalf("terminal: %v", err)
	}
	defer master.Close()
	r := c.command("", args...)
	r.Stdin, r.Stdout, r.Stderr = slave, slave, slave
	r.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = r.Start()
	slave.Close() // the program has its own
	if err != nil {
		c.fatalf("start subspan: %v", err)
	}
	var screen bytes.Buffer
	var wg sync.WaitGroup
	wg.Go(func() { // ends with the program, which has the terminal's last open end
		answered := 0
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			screen.Write(b[:n])
			for ; answered < strings.Count(screen.String(), "[y/N]"); answered++ {
				fmt.Fprintln(master, reply)
			}
			if err != nil {
				return
			}
		}
	})
	err = r.Wait()
	wg.Wait()
	var exit *exec.ExitError
	if c.ctx.Err() != nil || err != nil && !errors.As(err, &exit) {
		c.fatalf("at the terminal: %v, %v\n%s", err, c.ctx.Err(), screen.String())
	}
	return screen.String()
}

// openTerminal makes a pseudo-terminal: what is written to one end is read at the other.
func openTerminal() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	n := 0
	if err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err == nil {
		n, err = unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, master.Close())
	}
	return master, slave, nil
}
