package folder

import (
	"os"

	"golang.org/x/sys/unix"
)

// Punch frees what the file has in [from, to); its size stays. Where the file
// system cannot, it returns an error and changes nothing.
func Punch(f *os.File, from, to int64) error {
	if to <= from {
		return nil
	}
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
}
