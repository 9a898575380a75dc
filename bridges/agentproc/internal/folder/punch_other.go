//go:build !linux

package folder

import (
	"errors"
	"os"
)

// Punch frees what the file has in [from, to). It is not implemented here.
func Punch(*os.File, int64, int64) error { return errors.ErrUnsupported }
